//! A configuration from the command line's flags alone. Parses no command line.

use std::path::PathBuf;

use millrace_routing::Target;
use millrace_topology::ConfiguredRole;

use crate::check::{self, Item};
use crate::section::read_secret;
use crate::{
    Address, Config, ConfigError, Environment, Listener, ListenerTls, Place, Secret, Server,
};

/// The flags that stand in for a file.
#[derive(Debug, Clone, Default)]
pub struct Flags {
    /// `--listen`, repeatable.
    pub listen: Vec<String>,
    /// `--server`, repeatable.
    pub server: Vec<String>,
    /// `--monitor-user`.
    pub monitor_user: Option<String>,
    /// `--monitor-password-file`. Without it `MILLRACE_MONITOR_PASSWORD` is read.
    pub monitor_password_file: Option<PathBuf>,
    /// `--http`.
    pub http: Option<String>,
}

/// The environment variable that holds the monitor's password.
const PASSWORD_VARIABLE: &str = "MILLRACE_MONITOR_PASSWORD";

impl Config {
    /// A configuration from flags; everything else has its default.
    pub fn from_flags(
        flags: &Flags,
        environment: &Environment,
    ) -> Result<Config, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut config = Config::default();
        for text in &flags.listen {
            if let Some(address) = parse(text, None, "--listen", &mut errors) {
                config.listeners.push(Listener {
                    address,
                    target: Target::Auto,
                    tls: ListenerTls::default(),
                    consistency: None,
                });
            }
        }
        for text in &flags.server {
            if let Some(address) = parse(text, Some(3306), "--server", &mut errors) {
                config.servers.push(Server {
                    address,
                    role: ConfiguredRole::Auto,
                    weight: 1,
                    zone: String::new(),
                    tags: Vec::new(),
                });
            }
        }
        if let Some(text) = &flags.http {
            config.http = parse(text, None, "--http", &mut errors);
        }
        config.monitor.user = flags.monitor_user.clone();
        config.monitor.password = flags.password(environment, &mut errors);
        let places = flags.places();
        check::check(&mut config, &places, &mut |error| errors.push(error));
        if errors.is_empty() {
            Ok(config)
        } else {
            Err(errors)
        }
    }
}

impl Flags {
    fn password(&self, environment: &Environment, errors: &mut Vec<ConfigError>) -> Secret {
        let Some(path) = &self.monitor_password_file else {
            let variable = (environment.variable)(PASSWORD_VARIABLE);
            return Secret::new(variable.unwrap_or_default().into_bytes());
        };
        read_secret(environment, path).unwrap_or_else(|what| {
            errors.push(ConfigError {
                what: format!("the flag {what}"),
                place: Place::Flag("--monitor-password-file"),
                hint: None,
            });
            Secret::default()
        })
    }

    fn places(&self) -> check::Places<'static> {
        check::Places {
            of: Box::new(|item| {
                Place::Flag(match item {
                    Item::Listener(_) => "--listen",
                    Item::Server(_) => "--server",
                    Item::Http => "--http",
                    Item::Monitor => "--monitor-user",
                    Item::Whole
                    | Item::Discovery
                    | Item::Account(_)
                    | Item::Tls
                    | Item::ServerTls => "the flags",
                })
            }),
            listeners_named: !self.listen.is_empty(),
            servers_named: !self.server.is_empty(),
            how: check::How::Flags,
        }
    }
}

fn parse(
    text: &str,
    default_port: Option<u16>,
    flag: &'static str,
    errors: &mut Vec<ConfigError>,
) -> Option<Address> {
    Address::parse(text, default_port)
        .map_err(|what| {
            errors.push(ConfigError {
                what,
                place: Place::Flag(flag),
                hint: None,
            });
        })
        .ok()
}

//! A configuration from the command line's flags alone. Parses no command line.

use std::path::PathBuf;

use crate::check::{self, Item};
use crate::section::read_secret;
use crate::{Address, Admin, Config, ConfigError, Environment, Listener, Place, Secret, Server};

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
    /// `--admin`. Its password is read from `MILLRACE_ADMIN_PASSWORD` or a file.
    pub admin: Option<String>,
    /// `--admin-password-file`.
    pub admin_password_file: Option<PathBuf>,
}

/// The environment variable that holds the monitor's password.
const PASSWORD_VARIABLE: &str = "MILLRACE_MONITOR_PASSWORD";

/// The environment variable that holds the operators' password.
const ADMIN_VARIABLE: &str = "MILLRACE_ADMIN_PASSWORD";

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
                config.listeners.push(Listener::at(address));
            }
        }
        for text in &flags.server {
            if let Some(address) = parse(text, Some(3306), "--server", &mut errors) {
                config.servers.push(Server::at(address));
            }
        }
        if let Some(text) = &flags.http {
            config.http = parse(text, None, "--http", &mut errors);
        }
        config.admin = flags.admin(environment, &mut errors);
        config.monitor.user = flags.monitor_user.clone().unwrap_or_default();
        config.monitor.password = flags.password(environment, &mut errors);
        config.derive();
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
    /// The listener for operators, where one is wanted.
    fn admin(&self, environment: &Environment, errors: &mut Vec<ConfigError>) -> Option<Admin> {
        let address = parse(self.admin.as_ref()?, None, "--admin", errors)?;
        let mut wrong = |flag, what: String| {
            let hint = "give it in MILLRACE_ADMIN_PASSWORD or with --admin-password-file FILE";
            errors.push(ConfigError {
                what,
                place: Place::Flag(flag),
                hint: Some(hint.into()),
            });
        };
        let password = match &self.admin_password_file {
            Some(path) => match read_secret(environment, path) {
                Ok(password) => password,
                Err(what) => {
                    wrong("--admin-password-file", format!("the flag {what}"));
                    return None;
                }
            },
            None => {
                let variable = (environment.variable)(ADMIN_VARIABLE);
                Secret::new(variable.unwrap_or_default().into_bytes())
            }
        };
        if password.is_empty() {
            wrong("--admin", "no password for the admin listener".into());
            return None;
        }
        Some(Admin {
            address,
            ..Admin::new(password)
        })
    }

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
            Secret::new(Vec::new())
        })
    }

    fn places(&self) -> check::Places<'static> {
        check::Places {
            of: Box::new(|item| {
                Place::Flag(match item {
                    Item::Listener(_) => "--listen",
                    Item::Server(_) => "--server",
                    Item::Http => "--http",
                    Item::Admin => "--admin",
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

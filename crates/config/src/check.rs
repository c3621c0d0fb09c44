//! Rules across sections, the same for a file and for flags. Changes nothing but the warnings.

use std::collections::HashSet;

use millrace_topology::ConfiguredRole;

use millrace_backend::cache::Mode;
use millrace_backend::tls::ServerTlsMode;
use millrace_routing::rules::{Caching, Rule};
use millrace_worker::ListenerTls;

use crate::{Address, ClientCertificates, Config, ConfigError, DiscoveryMode, Place};

/// What a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Item {
    Whole,
    Listener(usize),
    Server(usize),
    Account(usize),
    Monitor,
    Discovery,
    Tls,
    ServerTls,
    Http,
    Admin,
}

/// How the configuration was given, for hints.
#[derive(Debug, Clone, Copy)]
pub(crate) enum How {
    File,
    Flags,
}

/// Where things stand.
pub(crate) struct Places<'a> {
    pub(crate) of: Box<dyn Fn(Item) -> Place + 'a>,
    /// There was a listener, maybe one that could not be read and has its error already.
    pub(crate) listeners_named: bool,
    /// The same for servers.
    pub(crate) servers_named: bool,
    pub(crate) how: How,
}

struct Check<'a> {
    config: &'a Config,
    places: &'a Places<'a>,
    report: &'a mut dyn FnMut(ConfigError),
}

/// Reports every broken rule.
pub(crate) fn check(config: &mut Config, places: &Places<'_>, report: &mut dyn FnMut(ConfigError)) {
    let mut check = Check {
        config,
        places,
        report,
    };
    check.listeners();
    check.servers();
    check.accounts();
    check.monitor();
    check.discovery();
    check.tls();
    let warnings = warnings(config);
    config.warnings.extend(warnings);
}

impl Check<'_> {
    fn error(&mut self, item: Item, what: impl Into<String>, hint: Option<&str>) {
        (self.report)(ConfigError {
            what: what.into(),
            place: (self.places.of)(item),
            hint: hint.map(Into::into),
        });
    }

    fn hint(&self, file: &'static str, flags: &'static str) -> Option<&'static str> {
        Some(match self.places.how {
            How::File => file,
            How::Flags => flags,
        })
    }

    fn listeners(&mut self) {
        if !self.places.listeners_named {
            let hint = self.hint(
                "add [[listen]] with address = \"127.0.0.1:3306\"",
                "give --listen ADDRESS",
            );
            self.error(Item::Whole, "no listener", hint);
        }
        let config = self.config;
        let mut taken: Vec<&Address> = Vec::new();
        for (at, listener) in config.listeners.iter().enumerate() {
            if taken.iter().any(|other| collide(other, &listener.address)) {
                let what = format!("the listener {} is there already", listener.address);
                self.error(Item::Listener(at), what, None);
            }
            taken.push(&listener.address);
        }
        if let Some(http) = &config.http
            && taken.iter().any(|other| collide(other, http))
        {
            let what = format!("{http} is a listener for clients already");
            self.error(Item::Http, what, None);
        }
        if let Some(admin) = &config.admin {
            taken.extend(&config.http);
            if taken.iter().any(|other| collide(other, &admin.address)) {
                let what = format!("{} is a listener already", admin.address);
                self.error(Item::Admin, what, None);
            }
        }
    }

    fn servers(&mut self) {
        if !self.places.servers_named {
            let hint = self.hint(
                "add [[server]] with address = \"host:3306\"",
                "give --server HOST:PORT",
            );
            self.error(Item::Whole, "no server", hint);
        }
        let config = self.config;
        let (mut seen, mut primaries) = (HashSet::new(), 0);
        for (at, server) in config.servers.iter().enumerate() {
            let address = &server.address;
            if !seen.insert(address) {
                let what = format!("the server {address} is there already");
                self.error(Item::Server(at), what, None);
            }
            if config.listeners.iter().any(|l| l.address == *address) {
                let what = format!("the server {address} is a listener: it would call itself");
                self.error(Item::Server(at), what, None);
            }
            primaries += usize::from(server.role == ConfiguredRole::Primary);
            if server.role == ConfiguredRole::Primary && primaries == 2 {
                let what = "a second server with role = \"primary\"";
                let hint = "two servers that take writes diverge; leave the roles to be found \
                            with role = \"auto\"";
                self.error(Item::Server(at), what, Some(hint));
            }
        }
        if config.servers.len() > usize::from(u16::MAX) {
            self.error(Item::Whole, "more than 65535 servers", None);
        }
    }

    fn accounts(&mut self) {
        let config = self.config;
        let mut seen = HashSet::new();
        for (at, account) in config.accounts.iter().enumerate() {
            if !seen.insert(&account.name) {
                let what = format!("the account `{}` is there already", account.name);
                self.error(Item::Account(at), what, None);
            }
        }
    }

    fn monitor(&mut self) {
        if self.config.monitor.user.is_empty() && self.config.servers.len() > 1 {
            let hint = self.hint(
                "add [monitor] with user and password_file or password_env",
                "give --monitor-user NAME, and its password in MILLRACE_MONITOR_PASSWORD or with \
                 --monitor-password-file FILE",
            );
            let what = "several servers, but no account to ask them for their roles";
            self.error(Item::Monitor, what, hint);
        }
    }

    fn discovery(&mut self) {
        let config = self.config;
        if config.discovery.mode == DiscoveryMode::Off {
            return;
        }
        if config.monitor.user.is_empty() && config.discovery.mode == DiscoveryMode::Auto {
            let what = "discovery.mode is \"auto\", but there is no account to ask the servers";
            self.error(Item::Discovery, what, Some("add [monitor] with user"));
        }
        if config.servers.len() > config.discovery.options.servers_max {
            let what = "more servers are listed than discovery.max_servers";
            self.error(Item::Discovery, what, None);
        }
    }

    fn tls(&mut self) {
        let tls = &self.config.tls;
        if tls.cert.is_some() != tls.key.is_some() {
            self.error(Item::Tls, "`cert` and `key` of [tls] belong together", None);
        }
        if tls.cert.is_some() && tls.keep.is_some() {
            let what = "`keep` of [tls] is for a certificate that is made: there is none where `cert` is given";
            self.error(Item::Tls, what, None);
        }
        if tls.client_certificates == Some(ClientCertificates::Required) && tls.ca.is_none() {
            let what = "client_certificates = \"required\" of [tls] needs `ca`: without it no client is asked";
            let hint = "name in `ca` the authority that signs clients' certificates";
            self.error(Item::Tls, what, Some(hint));
        }
        let tls = &self.config.server_tls;
        if tls.cert.is_some() != tls.key.is_some() {
            let what = "`cert` and `key` of [server_tls] belong together";
            self.error(Item::ServerTls, what, None);
        }
        let verifies = matches!(
            self.config.server_tls.mode,
            ServerTlsMode::VerifyCa | ServerTlsMode::VerifyIdentity
        );
        if verifies && self.config.server_tls.ca.is_none() {
            let what = "this `mode` of [server_tls] needs `ca`";
            self.error(Item::ServerTls, what, None);
        }
    }
}

/// Whether two listeners cannot both be opened.
fn collide(a: &Address, b: &Address) -> bool {
    let any = |host: &str| matches!(host, "*" | "0.0.0.0" | "::");
    match (a, b) {
        (Address::Tcp { host, port }, Address::Tcp { host: h, port: p }) => {
            port == p && *port != 0 && (host == h || any(host) || any(h))
        }
        _ => a == b,
    }
}

fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let tls = &config.server_tls;
    if tls.mode == ServerTlsMode::Disabled && (tls.ca.is_some() || tls.cert.is_some()) {
        warnings.push("[server_tls] names certificates, but its mode is \"disabled\"".into());
    }
    if matches!(
        tls.mode,
        ServerTlsMode::AsClient | ServerTlsMode::Preferred | ServerTlsMode::Required
    ) && tls.ca.is_some()
    {
        warnings.push(
            "[server_tls] names a `ca`, but only the modes \"verify_ca\" and \"verify_identity\" \
             use it"
                .into(),
        );
    }
    if config.tls.client_certificates == Some(ClientCertificates::Optional)
        && config.tls.ca.is_none()
    {
        warnings.push(
            "[tls] has client_certificates = \"optional\", but no `ca`: no client is asked for a certificate"
                .into(),
        );
    }
    if let Some(admin) = &config.admin
        && !admin.address.is_local()
        && admin.tls != ListenerTls::Required
    {
        warnings.push(format!(
            "[admin] listens on {}, for other machines too, and does not demand TLS: what operators \
             see can be read on the way; set tls = \"required\"",
            admin.address
        ));
    }
    let readers = config.servers.iter().filter(|server| server.weight > 0);
    if config.servers.len() > 1 && readers.count() == 0 {
        warnings.push("every server's weight is 0: all reads go to the primary".into());
    }
    let most = config.pool.max_connections;
    if let Some(workers) = config.workers.filter(|workers| *workers > most) {
        warnings.push(format!(
            "workers = {workers}, with no more than max_connections = {most} in [pool]: connections go round \
             among the workers, and are opened anew for nearly every statement; have no more workers than connections"
        ));
    }
    let caches = |rule: &Rule| rule.then.cache.is_some_and(|it| it != Caching::Never);
    if config.cache.mode == Mode::Off
        && let Some(rule) = config.rules.iter().find(|rule| caches(rule))
    {
        warnings.push(format!(
            "the rule \"{}\" has `cache`, but cache.mode is \"off\": nothing is cached",
            rule.name
        ));
    }
    let discovery = &config.discovery;
    if discovery.mode == DiscoveryMode::Off && !discovery.options.translate.is_empty() {
        warnings.push("[discovery.translate] is there, but discovery.mode is \"off\"".into());
    }
    warnings
}

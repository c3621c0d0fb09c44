//! The file's sections and keys. Defaults are `model`'s, rules across sections are `check`'s.

use std::time::Duration;

use millrace_routing::{AllLag, Balance, Consistency, Reads, Target};
use millrace_topology::ConfiguredRole;
use toml::de::{DeTable, DeValue};

use crate::check::{self, Item};
use crate::rules;
use crate::section::{Section, Source};
use crate::value::{Wrong, choice, duration, flag, number, size, text, texts};
use crate::{
    Account, Address, Admin, Auth, ClientCertificates, ClientTls, Concurrency, Config, ConfigError,
    Environment, Failover, Hosts, Limits, Listener, ListenerTls, Log, LogFormat, LogLevel, Monitor,
    Pool, Routing, Secret, Server, ServerTls, ServerTlsMode, Tcp,
};

const GIB: u64 = 1 << 30;
const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

impl Config {
    /// Reads a file's text. `file` names it in errors; relative paths in it are relative to its
    /// folder. All errors are reported, in the order of lines.
    pub fn from_toml(
        file: &str,
        text: &str,
        environment: &Environment,
    ) -> Result<Config, Vec<ConfigError>> {
        let (root, syntax) = DeTable::parse_recoverable(text);
        let source = Source::new(file, text, environment);
        for error in &syntax {
            let at = error.span().map_or(0, |span| span.start);
            source.error(at, error.message().replace('\n', ", "), None);
        }
        let mut config = Config::default();
        let mut origins = Origins::default();
        let section = Section::new(&source, root.get_ref(), 0);
        config.read(&section, &mut origins);
        section.finish();
        if syntax.is_empty() {
            check::check(&mut config, &origins.places(&source), &mut |error| {
                source.push(error);
            });
        }
        let errors = source.into_errors();
        if errors.is_empty() {
            Ok(config)
        } else {
            Err(errors)
        }
    }

    fn read(&mut self, root: &Section<'_>, origins: &mut Origins) {
        for section in root.tables("listen") {
            origins.listeners_named = true;
            if let Some(listener) = read_listener(&section) {
                origins.listeners.push(section.start);
                self.listeners.push(listener);
            }
            section.finish();
        }
        for section in root.tables("server") {
            origins.servers_named = true;
            if let Some(server) = read_server(&section) {
                origins.servers.push(section.start);
                self.servers.push(server);
            }
            section.finish();
        }
        for section in root.tables("account") {
            if let Some(account) = read_account(&section) {
                origins.accounts.push(section.start);
                self.accounts.push(account);
            }
            section.finish();
        }
        for section in root.tables("server_set") {
            if let Some((name, servers)) = rules::read_set(&section, &self.servers) {
                if self.sets.contains_key(&name) {
                    section.missing(&format!("the server set `{name}` is there already"));
                }
                self.sets.insert(name, servers);
            }
            section.finish();
        }
        for section in root.tables("rule") {
            let names = rules::Names {
                sets: &self.sets,
                listeners: &self.listeners,
            };
            let rule = rules::read_rule(&section, self.rules.len() + 1, &names);
            if self.rules.iter().any(|other| other.name == rule.name) {
                section.missing(&format!("the rule `{}` is there already", rule.name));
            }
            self.rules.push(rule);
            section.finish();
        }
        root.read("workers", &mut self.workers, workers);
        root.read("coalesce_limit", &mut self.coalesce_limit, coalesce_limit);
        let one = |key, read: &mut dyn FnMut(&Section<'_>)| {
            let section = root.table(key)?;
            read(&section);
            let start = section.start;
            section.finish();
            Some(start)
        };
        origins.monitor = one("monitor", &mut |s| self.monitor.read(s));
        origins.discovery = one("discovery", &mut |s| self.discovery.read(s));
        origins.tls = one("tls", &mut |s| self.tls.read(s));
        origins.server_tls = one("server_tls", &mut |s| self.server_tls.read(s));
        one("tcp", &mut |s| self.tcp.read(s));
        one("server_tcp", &mut |s| self.server_tcp.read(s));
        one("pool", &mut |s| self.pool.read(s));
        one("limits", &mut |s| self.limits.read(s));
        one("routing", &mut |s| self.routing.read(s));
        one("failover", &mut |s| self.failover.read(s));
        one("auth", &mut |s| self.auth.read(s));
        origins.http = one("http", &mut |s| {
            s.read_some("listen", &mut self.http, listen)
        });
        origins.admin = one("admin", &mut |s| self.admin = read_admin(s));
        one("log", &mut |s| self.log.read(s));
        one("drain", &mut |s| {
            s.read("timeout", &mut self.drain_timeout, duration(Duration::ZERO));
        });
    }
}

fn concurrency(value: &DeValue<'_>) -> Result<Concurrency, Wrong> {
    match value.as_str() {
        Some("auto") => return Ok(Concurrency::Auto),
        Some("off") => return Ok(Concurrency::Off),
        _ => {}
    }
    match number(1, 100_000)(value) {
        Ok(limit) => Ok(Concurrency::At(limit)),
        Err(_) => Err(Wrong::new(
            "must be \"auto\", \"off\" or a number from 1 to 100000",
        )),
    }
}

fn workers(value: &DeValue<'_>) -> Result<Option<usize>, Wrong> {
    if value.as_str() == Some("auto") {
        return Ok(None);
    }
    match number(1, 1024)(value) {
        Ok(workers) => Ok(Some(workers as usize)),
        Err(_) => Err(Wrong::new("must be \"auto\" or a number from 1 to 1024")),
    }
}

/// Beyond some milliseconds nothing is gained and much lost.
fn coalesce_limit(value: &DeValue<'_>) -> Result<Duration, Wrong> {
    let most = Duration::from_millis(10);
    match duration(Duration::ZERO)(value)? {
        limit if limit <= most => Ok(limit),
        limit => Err(Wrong::new(format!(
            "must be from 0 (never) to \"10ms\", not {limit:?}"
        ))),
    }
}

fn listen(value: &DeValue<'_>) -> Result<Address, Wrong> {
    Address::parse(&text(value)?, None).map_err(is_wrong)
}

pub(crate) fn connect(value: &DeValue<'_>) -> Result<Address, Wrong> {
    Address::parse(&text(value)?, Some(3306)).map_err(is_wrong)
}

fn is_wrong(why: String) -> Wrong {
    Wrong::new(format!("is wrong: {why}"))
}

fn read_listener(section: &Section<'_>) -> Option<Listener> {
    let mut address = None;
    section.read_required("address", &mut address, listen);
    let mut target = Target::Auto;
    section.read(
        "target",
        &mut target,
        choice(&[
            ("auto", Target::Auto),
            ("primary", Target::PrimaryOnly),
            ("replicas", Target::ReplicasOnly),
        ]),
    );
    let mut tls = ListenerTls::default();
    section.read("tls", &mut tls, choice(LISTENER_TLS));
    let mut consistency = None;
    section.read_some("consistency", &mut consistency, choice(CONSISTENCY));
    Some(Listener {
        address: address?,
        target,
        tls,
        consistency,
    })
}

fn read_server(section: &Section<'_>) -> Option<Server> {
    let mut address = None;
    section.read_required("address", &mut address, connect);
    let mut role = ConfiguredRole::Auto;
    section.read(
        "role",
        &mut role,
        choice(&[
            ("auto", ConfiguredRole::Auto),
            ("primary", ConfiguredRole::Primary),
            ("replica", ConfiguredRole::Replica),
        ]),
    );
    let mut weight = 1;
    section.read("weight", &mut weight, number(0, 1000));
    let mut zone = String::new();
    section.read("zone", &mut zone, text);
    let mut tags = Vec::new();
    section.read("tags", &mut tags, texts);
    let mut draining = false;
    section.read("draining", &mut draining, flag);
    Some(Server {
        address: address?,
        role,
        weight,
        zone,
        tags,
        draining,
    })
}

fn read_account(section: &Section<'_>) -> Option<Account> {
    let mut name = None;
    section.read_required("name", &mut name, text);
    let mut consistency = None;
    section.read_some("consistency", &mut consistency, choice(CONSISTENCY));
    let password = section.secret();
    if !section.names_secret() && consistency.is_none() {
        section.missing("`password_file`, `password_env` or `consistency` is missing");
    }
    // A secret that cannot be read is an error already.
    if section.names_secret() && password.is_none() {
        return None;
    }
    Some(Account {
        name: name?,
        password,
        consistency,
    })
}

/// None where it has no password: that is an error, never a listener without one.
fn read_admin(section: &Section<'_>) -> Option<Admin> {
    let secret = section.secret();
    if !section.names_secret() {
        section.missing("`password_file` or `password_env` is missing");
    } else if secret.as_ref().is_some_and(Secret::is_empty) {
        section.missing("the password of [admin] is empty");
    }
    let mut admin = Admin::new(secret.unwrap_or_default());
    section.read("listen", &mut admin.address, listen);
    section.read("user", &mut admin.user, text);
    section.read("tls", &mut admin.tls, choice(LISTENER_TLS));
    section.read(
        "max_connections",
        &mut admin.max_connections,
        number(1, 10_000),
    );
    (!admin.password.is_empty()).then_some(admin)
}

impl Monitor {
    fn read(&mut self, section: &Section<'_>) {
        section.read_some("user", &mut self.user, text);
        self.password = section.secret().unwrap_or_default();
        if self.user.is_none() && section.names_secret() {
            section.missing("`user` is missing");
        }
        section.read("interval", &mut self.interval, duration(50 * MS));
        section.read(
            "urgent_interval",
            &mut self.urgent_interval,
            duration(10 * MS),
        );
        section.read("timeout", &mut self.timeout, duration(10 * MS));
        section.read(
            "connect_timeout",
            &mut self.connect_timeout,
            duration(10 * MS),
        );
        section.read(
            "position_interval",
            &mut self.position_interval,
            duration(MS),
        );
        section.read(
            "commit_stall",
            &mut self.commit_stall,
            duration(Duration::ZERO),
        );
        section.read(
            "max_login_age",
            &mut self.max_login_age,
            duration(Duration::ZERO),
        );
        section.read("fail_after", &mut self.fail_after, number(1, 100));
    }
}

impl ClientTls {
    fn read(&mut self, section: &Section<'_>) {
        section.readable("cert", &mut self.cert);
        section.readable("key", &mut self.key);
        section.file("keep", &mut self.keep);
        section.readable("ca", &mut self.ca);
        section.read(
            "client_certificates",
            &mut self.client_certificates,
            choice(&[
                ("required", ClientCertificates::Required),
                ("optional", ClientCertificates::Optional),
            ]),
        );
        section.readable("rsa_key", &mut self.rsa_key);
        section.read("required", &mut self.required, flag);
    }
}

impl ServerTls {
    fn read(&mut self, section: &Section<'_>) {
        section.read(
            "mode",
            &mut self.mode,
            choice(&[
                ("disabled", ServerTlsMode::Disabled),
                ("as_client", ServerTlsMode::AsClient),
                ("preferred", ServerTlsMode::Preferred),
                ("required", ServerTlsMode::Required),
                ("verify_ca", ServerTlsMode::VerifyCa),
                ("verify_identity", ServerTlsMode::VerifyIdentity),
            ]),
        );
        section.readable("ca", &mut self.ca);
        section.readable("cert", &mut self.cert);
        section.readable("key", &mut self.key);
    }
}

impl Tcp {
    fn read(&mut self, section: &Section<'_>) {
        section.read(
            "keepalive_idle",
            &mut self.keepalive_idle,
            keepalive(Duration::ZERO),
        );
        section.read(
            "keepalive_interval",
            &mut self.keepalive_interval,
            keepalive(SECOND),
        );
        section.read("keepalive_count", &mut self.keepalive_count, number(1, 127));
        section.read(
            "user_timeout",
            &mut self.user_timeout,
            duration(Duration::ZERO),
        );
    }
}

/// Linux takes whole seconds, up to these (MAX_TCP_KEEPIDLE, MAX_TCP_KEEPINTVL).
fn keepalive(least: Duration) -> impl Fn(&DeValue<'_>) -> Result<Duration, Wrong> {
    const MOST: Duration = Duration::from_secs(32_767);
    move |value| match duration(least)(value)? {
        time if time <= MOST && time.subsec_nanos() == 0 => Ok(time),
        time => Err(Wrong::new(format!(
            "must be whole seconds, {MOST:?} at most, not {time:?}"
        ))),
    }
}

impl Pool {
    fn read(&mut self, section: &Section<'_>) {
        section.read(
            "max_connections",
            &mut self.max_connections,
            number(1, 100_000),
        );
        section.read("concurrency", &mut self.concurrency, concurrency);
        section.read("idle_timeout", &mut self.idle_timeout, duration(SECOND));
        section.read(
            "check_after",
            &mut self.check_after,
            duration(Duration::ZERO),
        );
        section.read(
            "connect_timeout",
            &mut self.connect_timeout,
            duration(10 * MS),
        );
        section.read("wait_timeout", &mut self.wait_timeout, duration(MS));
        section.read("max_waiting", &mut self.max_waiting, number(0, 10_000_000));
        section.read(
            "max_prepared_statements",
            &mut self.max_prepared_statements,
            number(1, 1_000_000),
        );
        section.read(
            "max_lifetime",
            &mut self.max_lifetime,
            duration(Duration::ZERO),
        );
    }
}

impl Limits {
    fn read(&mut self, section: &Section<'_>) {
        section.read("max_clients", &mut self.max_clients, number(1, 10_000_000));
        section.read("max_packet", &mut self.max_packet, size(1024, GIB));
        section.read("login_timeout", &mut self.login_timeout, duration(10 * MS));
        section.read("max_long_data", &mut self.max_long_data, size(0, 16 * GIB));
        section.read(
            "max_prepared_statements",
            &mut self.max_prepared_statements,
            number(0, 4_194_304),
        );
        section.read(
            "clients_per_address",
            &mut self.clients_per_address,
            number(0, 10_000_000),
        );
    }
}

/// Words for a listener's TLS.
const LISTENER_TLS: &[(&str, ListenerTls)] = &[
    ("optional", ListenerTls::Optional),
    ("required", ListenerTls::Required),
    ("off", ListenerTls::Off),
];

/// Words for levels.
pub(crate) const BALANCE: &[(&str, Balance)] = &[
    ("least_outstanding", Balance::LeastOutstanding),
    ("latency", Balance::Latency),
    ("weighted", Balance::Weighted),
    ("round_robin", Balance::RoundRobin),
];

pub(crate) const CONSISTENCY: &[(&str, Consistency)] = &[
    ("eventual", Consistency::Eventual),
    ("session", Consistency::Session),
    ("instance", Consistency::Instance),
    ("global", Consistency::Global),
];

impl Routing {
    fn read(&mut self, section: &Section<'_>) {
        section.read(
            "reads",
            &mut self.options.reads,
            choice(&[("replicas", Reads::Replicas), ("all", Reads::All)]),
        );
        section.read("balance", &mut self.options.balance, choice(BALANCE));
        section.read("zone", &mut self.options.zone, |value| {
            Ok(text(value)?.into())
        });
        section.read("sticky", &mut self.options.sticky, flag);
        section.read(
            "all_lag",
            &mut self.options.all_lag,
            choice(&[("primary", AllLag::Primary), ("replicas", AllLag::Replicas)]),
        );
        section.read("consistency", &mut self.consistency, choice(CONSISTENCY));
        section.read("waits_max", &mut self.options.waits_max, |value| {
            Ok(u8::try_from(number(0, 5)(value)?).unwrap_or(u8::MAX))
        });
        section.read("slow_start", &mut self.slow_start, duration(Duration::ZERO));
        section.read("wait_limit", &mut self.options.wait_limit_ms, |value| {
            let wait = duration(Duration::ZERO)(value)?;
            u32::try_from(wait.as_millis()).map_err(|_| Wrong::new("is too long"))
        });
        section.read("max_lag", &mut self.max_lag, duration(SECOND));
        section.read("max_running", &mut self.max_running, number(0, 1_000_000));
    }
}

impl Failover {
    fn read(&mut self, section: &Section<'_>) {
        let any = || duration(Duration::ZERO);
        section.read("hold_time", &mut self.hold_time, any());
        section.read("max_held", &mut self.max_held, number(0, 10_000_000));
        section.read(
            "max_held_bytes",
            &mut self.max_held_bytes,
            size(0, 64 * GIB),
        );
        section.read("retries", &mut self.retries, number(0, 100));
        section.read(
            "max_replay_statements",
            &mut self.max_replay_statements,
            number(0, 1_000_000),
        );
        section.read("max_replay_bytes", &mut self.max_replay_bytes, size(0, GIB));
        section.read(
            "max_replay_total_bytes",
            &mut self.max_replay_total_bytes,
            size(0, 1024 * GIB),
        );
        section.read("max_replay_time", &mut self.max_replay_time, any());
        section.read("drain_time", &mut self.drain_time, any());
    }
}

impl Auth {
    fn read(&mut self, section: &Section<'_>) {
        section.read(
            "failure_delay",
            &mut self.failure_delay,
            duration(Duration::ZERO),
        );
        section.read(
            "failure_delay_max",
            &mut self.failure_delay_max,
            duration(Duration::ZERO),
        );
        section.read(
            "failures_free",
            &mut self.failures_free,
            number(0, 1_000_000),
        );
        section.read("failure_memory", &mut self.failure_memory, duration(SECOND));
        section.read(
            "hosts",
            &mut self.hosts,
            choice(&[("check", Hosts::Check), ("ignore", Hosts::Ignore)]),
        );
    }
}

impl Log {
    fn read(&mut self, section: &Section<'_>) {
        section.read(
            "level",
            &mut self.level,
            choice(&[
                ("error", LogLevel::Error),
                ("warn", LogLevel::Warn),
                ("info", LogLevel::Info),
                ("debug", LogLevel::Debug),
                ("trace", LogLevel::Trace),
            ]),
        );
        section.read(
            "format",
            &mut self.format,
            choice(&[("text", LogFormat::Text), ("json", LogFormat::Json)]),
        );
    }
}

/// Where each thing stood, for the checks across sections.
#[derive(Default)]
struct Origins {
    listeners: Vec<usize>,
    servers: Vec<usize>,
    accounts: Vec<usize>,
    /// There was a `[[listen]]`, right or wrong.
    listeners_named: bool,
    /// There was a `[[server]]`, right or wrong.
    servers_named: bool,
    monitor: Option<usize>,
    discovery: Option<usize>,
    tls: Option<usize>,
    server_tls: Option<usize>,
    http: Option<usize>,
    admin: Option<usize>,
}

impl Origins {
    fn places<'a>(&'a self, source: &'a Source<'a>) -> check::Places<'a> {
        let at = move |item| {
            let offset = match item {
                Item::Whole => None,
                Item::Listener(at) => self.listeners.get(at).copied(),
                Item::Server(at) => self.servers.get(at).copied(),
                Item::Account(at) => self.accounts.get(at).copied(),
                Item::Monitor => self.monitor,
                Item::Discovery => self.discovery,
                Item::Tls => self.tls,
                Item::ServerTls => self.server_tls,
                Item::Http => self.http,
                Item::Admin => self.admin,
            };
            match offset {
                Some(offset) => source.place(offset),
                None => crate::Place::File(source.file.into()),
            }
        };
        check::Places {
            of: Box::new(at),
            listeners_named: self.listeners_named,
            servers_named: self.servers_named,
            how: check::How::File,
        }
    }
}

#[cfg(test)]
mod tests;

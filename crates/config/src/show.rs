//! The configuration in force as a list of keys and values, for operators. Secrets are never in
//! it: only whether there is one.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use millrace_routing::rules::{KindName, Rule, TableName, Then, When};
use millrace_routing::{AllLag, Balance, Options as RoutingOptions, Reads, Target, Wanted};
use millrace_topology::ConfiguredRole;

use crate::{
    Account, Admin, Auth, ClientCertificates, ClientTls, Concurrency, Config, Discovery,
    DiscoveryMode, Failover, Hosts, Limits, Listener, ListenerTls, Log, LogFormat, Monitor, Pool,
    Routing, Secret, Server, ServerTls, ServerTlsMode, Tcp,
};

/// One key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// `section.key`; of a list of tables, `section[1].key`, counted from 1.
    pub name: String,
    /// As it would stand in the file, without quotes. A secret is `(set)` or empty.
    pub value: String,
    /// The value is the default. Keys of listed tables (`[[listen]]`, `[[server]]`) have none.
    pub is_default: bool,
}

/// One rule in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleText {
    /// Its name.
    pub name: String,
    /// Its conditions, as `key = value`, separated by commas; empty: every statement.
    pub when: String,
    /// What it does, in the same form.
    pub then: String,
}

impl Config {
    /// Every key with its value, in the order of the sections.
    pub fn settings(&self) -> Vec<Setting> {
        let own = self.lines();
        let default = Config::default().lines();
        let is_default = |name: &str, value: &str| {
            let mut same = default.iter().filter(|(other, _)| other == name);
            same.any(|(_, other)| other == value)
        };
        own.into_iter()
            .map(|(name, value)| Setting {
                is_default: is_default(&name, &value),
                name,
                value,
            })
            .collect()
    }

    // Every struct is taken apart without `..`, so that a new key cannot be forgotten here.
    fn lines(&self) -> Vec<(String, String)> {
        let Config {
            listeners,
            servers,
            monitor,
            discovery,
            tls,
            server_tls,
            tcp,
            server_tcp,
            pool,
            limits,
            routing,
            failover,
            auth,
            accounts,
            sets: _,
            rules: _,
            http,
            admin,
            log,
            drain_timeout,
            workers,
            coalesce_limit,
            warnings: _,
        } = self;
        let mut lines = Lines::default();
        let workers = workers.map_or_else(|| "auto".to_owned(), |count| count.to_string());
        lines.put("workers", workers);
        lines.put("coalesce_limit", time(*coalesce_limit));
        for (number, listener) in (1..).zip(listeners) {
            lines.listener(number, listener);
        }
        for (number, server) in (1..).zip(servers) {
            lines.server(number, server);
        }
        for (number, account) in (1..).zip(accounts) {
            lines.account(number, account);
        }
        lines.monitor(monitor);
        lines.discovery(discovery);
        lines.tls(tls);
        lines.server_tls(server_tls);
        lines.tcp("tcp", *tcp);
        lines.tcp("server_tcp", *server_tcp);
        lines.pool(pool);
        lines.limits(limits);
        lines.routing(routing);
        lines.failover(failover);
        lines.auth(auth);
        lines.put("http.listen", some(http.as_ref()));
        lines.admin(admin.as_ref());
        lines.log(*log);
        lines.put("drain.timeout", time(*drain_timeout));
        lines.0
    }

    /// The rules, in order.
    pub fn rule_texts(&self) -> Vec<RuleText> {
        self.rules.iter().map(|rule| self.rule_text(rule)).collect()
    }

    fn rule_text(&self, rule: &Rule) -> RuleText {
        let mut then = self.then_text(&rule.then);
        if rule.goes_on {
            then.push("continue = true".to_owned());
        }
        RuleText {
            name: rule.name.to_string(),
            when: self.when_text(&rule.when).join(", "),
            then: then.join(", "),
        }
    }

    fn when_text(&self, when: &When) -> Vec<String> {
        let When {
            accounts,
            databases,
            clients,
            listeners,
            kinds,
            digests,
            tables,
            pattern,
            tags,
        } = when;
        let mut parts = Vec::new();
        let mut put = |key: &str, values: Vec<String>| match &values[..] {
            [] => {}
            [one] => parts.push(format!("{key} = {one}")),
            several => parts.push(format!("{key} = [{}]", several.join(", "))),
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        put("account", accounts.iter().map(|name| text(name)).collect());
        put(
            "database",
            databases.iter().map(|name| text(name)).collect(),
        );
        put("client", clients.iter().map(ToString::to_string).collect());
        let address = |number: &u16| {
            let listener = self.listeners.get(usize::from(*number));
            listener.map_or_else(String::new, |listener| listener.address.to_string())
        };
        put("listener", listeners.iter().map(address).collect());
        put("kind", kinds.iter().map(|kind| kind_name(*kind)).collect());
        put(
            "digest",
            digests.iter().map(|it| format!("0x{it:016x}")).collect(),
        );
        put("table", tables.iter().map(table_name).collect());
        put(
            "match",
            pattern.iter().map(|it| it.as_str().to_owned()).collect(),
        );
        put("tag", tags.iter().map(ToString::to_string).collect());
        parts
    }

    fn then_text(&self, then: &Then) -> Vec<String> {
        let Then {
            wanted,
            consistency,
            time_limit,
            concurrency,
            refuse,
            mirror,
            rewrite,
        } = then;
        let mut parts = Vec::new();
        match wanted {
            Some(Wanted::Primary) => parts.push("to = primary".to_owned()),
            Some(Wanted::Replica) => parts.push("to = replicas".to_owned()),
            Some(Wanted::Servers(set)) => {
                parts.push(format!("servers = {}", self.set_name(set.bits)));
            }
            None => {}
        }
        if let Some(level) = consistency {
            parts.push(format!("consistency = {}", level.name()));
        }
        if let Some(limit) = time_limit {
            parts.push(format!("time_limit = {}", time(*limit)));
        }
        if let Some(count) = concurrency {
            parts.push(format!("max_concurrent = {count}"));
        }
        if let Some(why) = refuse {
            parts.push(format!("refuse = {why}"));
        }
        if let Some(bits) = mirror {
            parts.push(format!("mirror = {}", self.set_name(*bits)));
        }
        if let Some(rewrite) = rewrite {
            parts.push(format!("rewrite = {}", rewrite.pattern.as_str()));
            let by = String::from_utf8_lossy(&rewrite.template);
            parts.push(format!("rewrite_to = {by}"));
        }
        parts
    }

    fn set_name(&self, bits: u64) -> String {
        let mut names: Vec<&str> = self
            .sets
            .iter()
            .filter(|(_, set)| set.bits == bits)
            .map(|(name, _)| name.as_str())
            .collect();
        names.sort_unstable();
        names.first().copied().unwrap_or_default().to_owned()
    }
}

#[derive(Default)]
struct Lines(Vec<(String, String)>);

impl Lines {
    fn put(&mut self, name: impl Into<String>, value: impl Display) {
        self.0.push((name.into(), value.to_string()));
    }

    fn listener(&mut self, number: usize, listener: &Listener) {
        let Listener {
            address,
            target,
            tls,
            consistency,
        } = listener;
        let at = |key: &str| format!("listen[{number}].{key}");
        self.put(at("address"), address);
        self.put(
            at("target"),
            match target {
                Target::Auto => "auto",
                Target::PrimaryOnly => "primary",
                Target::ReplicasOnly => "replicas",
            },
        );
        self.put(at("tls"), listener_tls(*tls));
        self.put(
            at("consistency"),
            consistency.map_or("", |level| level.name()),
        );
    }

    fn server(&mut self, number: usize, server: &Server) {
        let Server {
            address,
            role,
            weight,
            zone,
            tags,
            draining,
        } = server;
        let at = |key: &str| format!("server[{number}].{key}");
        self.put(at("address"), address);
        self.put(
            at("role"),
            match role {
                ConfiguredRole::Auto => "auto",
                ConfiguredRole::Primary => "primary",
                ConfiguredRole::Replica => "replica",
            },
        );
        self.put(at("weight"), weight);
        self.put(at("zone"), zone);
        self.put(at("tags"), tags.join(", "));
        self.put(at("draining"), draining);
    }

    fn account(&mut self, number: usize, account: &Account) {
        let Account {
            name,
            password,
            consistency,
        } = account;
        let at = |key: &str| format!("account[{number}].{key}");
        self.put(at("name"), name);
        self.put(at("password"), password.as_ref().map_or("", secret));
        self.put(
            at("consistency"),
            consistency.map_or("", |level| level.name()),
        );
    }

    fn monitor(&mut self, monitor: &Monitor) {
        let Monitor {
            user,
            password,
            interval,
            urgent_interval,
            timeout,
            connect_timeout,
            position_interval,
            commit_stall,
            max_login_age,
            fail_after,
        } = monitor;
        self.put("monitor.user", some(user.as_ref()));
        self.put("monitor.password", secret(password));
        self.put("monitor.interval", time(*interval));
        self.put("monitor.urgent_interval", time(*urgent_interval));
        self.put("monitor.timeout", time(*timeout));
        self.put("monitor.connect_timeout", time(*connect_timeout));
        self.put("monitor.position_interval", time(*position_interval));
        self.put("monitor.commit_stall", time(*commit_stall));
        self.put("monitor.max_login_age", time(*max_login_age));
        self.put("monitor.fail_after", fail_after);
    }

    fn discovery(&mut self, discovery: &Discovery) {
        let Discovery {
            mode,
            max_servers,
            forget_after,
            translate,
        } = discovery;
        let mode = match mode {
            DiscoveryMode::Off => "off",
            DiscoveryMode::Default | DiscoveryMode::Auto => "auto",
        };
        self.put("discovery.mode", mode);
        self.put("discovery.max_servers", max_servers);
        self.put("discovery.forget_after", time(*forget_after));
        for (named, reachable) in translate {
            self.put(format!("discovery.translate.{named}"), reachable);
        }
    }

    fn tls(&mut self, tls: &ClientTls) {
        let ClientTls {
            cert,
            key,
            keep,
            ca,
            client_certificates,
            rsa_key,
            required,
        } = tls;
        self.put("tls.cert", file(cert.as_ref()));
        self.put("tls.key", file(key.as_ref()));
        self.put("tls.keep", file(keep.as_ref()));
        self.put("tls.ca", file(ca.as_ref()));
        let certificates = match client_certificates {
            ClientCertificates::Required => "required",
            ClientCertificates::Optional => "optional",
        };
        self.put("tls.client_certificates", certificates);
        self.put("tls.rsa_key", file(rsa_key.as_ref()));
        self.put("tls.required", required);
    }

    fn server_tls(&mut self, tls: &ServerTls) {
        let ServerTls {
            mode,
            ca,
            cert,
            key,
        } = tls;
        self.put(
            "server_tls.mode",
            match mode {
                ServerTlsMode::Disabled => "disabled",
                ServerTlsMode::AsClient => "as_client",
                ServerTlsMode::Preferred => "preferred",
                ServerTlsMode::Required => "required",
                ServerTlsMode::VerifyCa => "verify_ca",
                ServerTlsMode::VerifyIdentity => "verify_identity",
            },
        );
        self.put("server_tls.ca", file(ca.as_ref()));
        self.put("server_tls.cert", file(cert.as_ref()));
        self.put("server_tls.key", file(key.as_ref()));
    }

    fn tcp(&mut self, section: &str, tcp: Tcp) {
        let Tcp {
            keepalive_idle,
            keepalive_interval,
            keepalive_count,
            user_timeout,
        } = tcp;
        let mut put = |key: &str, value: String| self.put(format!("{section}.{key}"), value);
        put("keepalive_idle", time(keepalive_idle));
        put("keepalive_interval", time(keepalive_interval));
        put("keepalive_count", keepalive_count.to_string());
        put("user_timeout", time(user_timeout));
    }

    fn pool(&mut self, pool: &Pool) {
        let Pool {
            max_connections,
            concurrency,
            idle_timeout,
            check_after,
            connect_timeout,
            wait_timeout,
            max_waiting,
            max_prepared_statements,
            max_lifetime,
        } = pool;
        self.put("pool.max_connections", max_connections);
        let concurrency = match concurrency {
            Concurrency::Auto => "auto".to_owned(),
            Concurrency::At(limit) => limit.to_string(),
            Concurrency::Off => "off".to_owned(),
        };
        self.put("pool.concurrency", concurrency);
        self.put("pool.idle_timeout", time(*idle_timeout));
        self.put("pool.check_after", time(*check_after));
        self.put("pool.connect_timeout", time(*connect_timeout));
        self.put("pool.wait_timeout", time(*wait_timeout));
        self.put("pool.max_waiting", max_waiting);
        self.put("pool.max_prepared_statements", max_prepared_statements);
        self.put("pool.max_lifetime", time(*max_lifetime));
    }

    fn limits(&mut self, limits: &Limits) {
        let Limits {
            max_clients,
            max_packet,
            login_timeout,
            max_long_data,
            max_prepared_statements,
            clients_per_address,
        } = limits;
        self.put("limits.max_clients", max_clients);
        self.put("limits.max_packet", size(*max_packet));
        self.put("limits.login_timeout", time(*login_timeout));
        self.put("limits.max_long_data", size(*max_long_data));
        self.put("limits.max_prepared_statements", max_prepared_statements);
        self.put("limits.clients_per_address", clients_per_address);
    }

    fn routing(&mut self, routing: &Routing) {
        let Routing {
            options,
            consistency,
            max_lag,
            max_running,
            slow_start,
        } = routing;
        let RoutingOptions {
            reads,
            balance,
            zone,
            sticky,
            all_lag,
            wait_limit_ms,
            waits_max,
        } = options;
        self.put(
            "routing.reads",
            match reads {
                Reads::Replicas => "replicas",
                Reads::All => "all",
            },
        );
        self.put(
            "routing.balance",
            match balance {
                Balance::LeastOutstanding => "least_outstanding",
                Balance::Latency => "latency",
                Balance::Weighted => "weighted",
                Balance::RoundRobin => "round_robin",
            },
        );
        self.put("routing.zone", zone);
        self.put("routing.sticky", sticky);
        self.put(
            "routing.all_lag",
            match all_lag {
                AllLag::Primary => "primary",
                AllLag::Replicas => "replicas",
            },
        );
        self.put("routing.consistency", consistency.name());
        self.put("routing.waits_max", waits_max);
        self.put("routing.slow_start", time(*slow_start));
        let wait_limit = Duration::from_millis((*wait_limit_ms).into());
        self.put("routing.wait_limit", time(wait_limit));
        self.put("routing.max_lag", time(*max_lag));
        self.put("routing.max_running", max_running);
    }

    fn failover(&mut self, failover: &Failover) {
        let Failover {
            hold_time,
            max_held,
            max_held_bytes,
            retries,
            max_replay_statements,
            max_replay_bytes,
            max_replay_total_bytes,
            max_replay_time,
            drain_time,
        } = failover;
        self.put("failover.hold_time", time(*hold_time));
        self.put("failover.max_held", max_held);
        self.put("failover.max_held_bytes", size(*max_held_bytes));
        self.put("failover.retries", retries);
        self.put("failover.max_replay_statements", max_replay_statements);
        self.put("failover.max_replay_bytes", size(*max_replay_bytes));
        self.put(
            "failover.max_replay_total_bytes",
            size(*max_replay_total_bytes),
        );
        self.put("failover.max_replay_time", time(*max_replay_time));
        self.put("failover.drain_time", time(*drain_time));
    }

    fn auth(&mut self, auth: &Auth) {
        let Auth {
            failure_delay,
            failure_delay_max,
            failures_free,
            failure_memory,
            hosts,
        } = auth;
        self.put("auth.failure_delay", time(*failure_delay));
        self.put("auth.failure_delay_max", time(*failure_delay_max));
        self.put("auth.failures_free", failures_free);
        self.put("auth.failure_memory", time(*failure_memory));
        let hosts = match hosts {
            Hosts::Check => "check",
            Hosts::Ignore => "ignore",
        };
        self.put("auth.hosts", hosts);
    }

    fn admin(&mut self, admin: Option<&Admin>) {
        let Some(admin) = admin else {
            return self.put("admin.listen", "");
        };
        let Admin {
            address,
            user,
            password,
            tls,
            max_connections,
        } = admin;
        self.put("admin.listen", address);
        self.put("admin.user", user);
        self.put("admin.password", secret(password));
        self.put("admin.tls", listener_tls(*tls));
        self.put("admin.max_connections", max_connections);
    }

    fn log(&mut self, log: Log) {
        let Log { level, format } = log;
        self.put("log.level", level.as_str());
        self.put(
            "log.format",
            match format {
                LogFormat::Text => "text",
                LogFormat::Json => "json",
            },
        );
    }
}

fn some<T: Display>(value: Option<&T>) -> String {
    value.map_or_else(String::new, ToString::to_string)
}

fn file(path: Option<&PathBuf>) -> String {
    path.map_or_else(String::new, |path| path.display().to_string())
}

fn secret(secret: &Secret) -> &'static str {
    if secret.is_empty() { "" } else { "(set)" }
}

fn listener_tls(tls: ListenerTls) -> &'static str {
    match tls {
        ListenerTls::Optional => "optional",
        ListenerTls::Required => "required",
        ListenerTls::Off => "off",
    }
}

/// In the largest unit that needs no fraction.
fn time(time: Duration) -> String {
    let us = time.as_micros();
    let units = [
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "m"),
        (1_000_000, "s"),
        (1_000, "ms"),
    ];
    match units
        .iter()
        .find(|(unit, _)| us >= *unit && us.is_multiple_of(*unit))
    {
        _ if us == 0 => "0s".to_owned(),
        Some((unit, name)) => format!("{}{name}", us / unit),
        None => format!("{us}us"),
    }
}

fn size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units
        .iter()
        .find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    match unit {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes}B"),
    }
}

fn kind_name(kind: KindName) -> String {
    let known = KindName::ALL.iter().find(|(_, known)| *known == kind);
    known.map_or("", |(name, _)| *name).to_owned()
}

fn table_name(table: &TableName) -> String {
    let name = String::from_utf8_lossy(&table.name);
    match &table.schema {
        Some(schema) => format!("{}.{name}", String::from_utf8_lossy(schema)),
        None => name.into_owned(),
    }
}

//! Every key, declared once: from here it is read, shown, and written into the default file and the
//! reference page. Rules across keys are `check`'s.

use std::time::Duration;

use millrace_backend::concurrency::Limit;
use toml::de::DeValue;

use crate::check::Item;
use crate::key::{Key, Sample, key};
use crate::kind::{
    ANY_TIME, At, Choice, File, Flag, Kind, Maybe, Millis, OrNever, Own, Seconds, Share, Text,
    Texts, Time, number, size, time,
};
use crate::model::{Account, Admin, Config, Listener, Server};
use crate::section::Section;
use crate::value::{Wrong, choice, duration, number as whole, text};
use crate::words::{
    ALL_LAG, BALANCE, CACHE_MODE, CERTIFICATES, CONSISTENCY, DISCOVERY, FORMAT, FRESHNESS, HOSTS,
    LEVEL, LISTENER_TLS, READS, ROLE, SERVER_TLS, TARGET,
};
use crate::{Address, DiscoveryMode, Secret};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// `[name]`: a table that is there once.
pub(crate) struct Table {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) keys: Vec<Key<'static, Config>>,
    /// What errors about it as a whole are about.
    pub(crate) item: Option<Item>,
    /// Reads what is more than keys, and checks what the keys are together.
    pub(crate) also: Option<fn(&Section<'_>, &mut Config)>,
}

impl Table {
    fn new(name: &'static str, doc: &'static str, keys: Vec<Key<'static, Config>>) -> Table {
        Table {
            name,
            doc,
            keys,
            item: None,
            also: None,
        }
    }

    fn about(self, item: Item) -> Table {
        Table {
            item: Some(item),
            ..self
        }
    }

    fn with(self, also: fn(&Section<'_>, &mut Config)) -> Table {
        Table {
            also: Some(also),
            ..self
        }
    }
}

/// The keys that stand before all tables.
pub(crate) fn root() -> Vec<Key<'static, Config>> {
    vec![
        key!(Config: "workers", workers, WORKERS,
            "Threads that serve clients. `auto` is the number of CPUs that the process may use, and no more \
             than `max_connections` of `[pool]`."),
        key!(Config: "coalesce_limit", coalesce_limit, COALESCE_LIMIT,
            "The longest time that a worker waits for more work before it sleeps; 0: never. It waits only \
             while CPU is scarce on the machine. While its control group is throttled, it waits up to four times \
             as long. It never waits longer than an eighth of what half of the statements take at least."),
    ]
}

/// The tables that are there once, in the order of the file. `[admin]` is not among them: it is there or not.
pub(crate) fn tables() -> Vec<Table> {
    vec![
        Table::new("monitor", MONITOR, monitor())
            .about(Item::Monitor)
            .with(name_the_user),
        Table::new("discovery", DISCOVERY_DOC, discovery())
            .about(Item::Discovery)
            .with(read_translations),
        Table::new(
            "tls",
            "TLS towards clients. Without a certificate, one is made at start.",
            tls(),
        )
        .about(Item::Tls),
        Table::new("server_tls", "TLS towards servers.", server_tls()).about(Item::ServerTls),
        Table::new("tcp", TCP, tcp()),
        Table::new("server_tcp", SERVER_TCP, server_tcp()),
        Table::new(
            "pool",
            "Server connections. All clients of an account share them.",
            pool(),
        ),
        Table::new("limits", "What clients may take.", limits()),
        Table::new(
            "routing",
            "Which server runs what: docs/routing.md and docs/consistency.md.",
            routing(),
        ),
        Table::new(
            "cache",
            "Results in memory that are exactly what the servers would answer: docs/cache.md.",
            cache(),
        ),
        Table::new(
            "failover",
            "What becomes of statements when a server is lost or moves: docs/failover.md.",
            failover(),
        ),
        Table::new(
            "auth",
            "How logins are judged, and failed ones slowed down: docs/logins.md.",
            auth(),
        ),
        Table::new(
            "http",
            "Metrics and health over HTTP: docs/metrics.md.",
            http(),
        )
        .about(Item::Http),
        Table::new("log", "The log goes to standard error.", log()),
        Table::new("drain", "The end, after SIGTERM.", drain()),
    ]
}

const WORKERS: Own<Option<usize>> = Own {
    parse: |value| {
        if value.as_str() == Some("auto") {
            return Ok(None);
        }
        match whole(1, 1024)(value) {
            Ok(workers) => Ok(Some(workers as usize)),
            Err(_) => Err(Wrong::new("must be \"auto\" or a number from 1 to 1024")),
        }
    },
    show: |workers| workers.map_or_else(|| "auto".to_owned(), |count| count.to_string()),
    takes: "\"auto\", or a number from 1 to 1024",
};

/// Beyond some milliseconds nothing is gained and much lost.
const COALESCE_LIMIT: Own<Duration> = Own {
    parse: |value| {
        let most = Duration::from_millis(10);
        match duration(Duration::ZERO)(value)? {
            limit if limit <= most => Ok(limit),
            limit => Err(Wrong::new(format!(
                "must be from 0 (never) to \"10ms\", not {limit:?}"
            ))),
        }
    },
    show: |limit| ANY_TIME.show(limit),
    takes: "duration, at most 10ms",
};

/// Where clients connect.
pub(crate) const LISTEN: &str = "Where clients connect. At least one.";

pub(crate) fn listen() -> Vec<Key<'static, Listener>> {
    vec![
        key!(Listener: "address", address, At::Listen,
            "`host:port`, `[v6]:port`, `*:port` for every interface, or the absolute path of a Unix socket.")
            .required()
            .given("127.0.0.1:6033"),
        key!(Listener: "target", target, Choice(TARGET),
            "`auto` splits reads from writes. `primary` and `replicas` send everything there."),
        key!(Listener: "tls", tls, Choice(LISTENER_TLS),
            "Whether clients may, must or cannot use TLS. A Unix socket counts as secure."),
        key!(Listener: "consistency", consistency, Maybe(Choice(CONSISTENCY)),
            "What reads of its clients must see, where that is not what `[routing]` says.")
            .example("session"),
    ]
}

/// The servers.
pub(crate) const SERVER: &str = "The servers, or some of them. At least one. Roles are found by asking them, and followed as they change.";

pub(crate) fn server() -> Vec<Key<'static, Server>> {
    vec![
        key!(Server: "address", address, At::Connect,
            "`host:port`, `[v6]:port`, or the absolute path of a Unix socket.")
        .required()
        .given("127.0.0.1:3306"),
        key!(Server: "role", role, Choice(ROLE), "`auto` asks the server. The others fix its role."),
        key!(Server: "weight", weight, number(0, 1000),
            "Its share of reads, relative to the other servers; 0: none."),
        key!(Server: "zone", zone, Text,
            "Where it stands: see `zone` of `[routing]`, and `[[server_set]]`.")
        .example("a"),
        key!(Server: "tags", tags, Texts, "Words by which a `[[server_set]]` chooses it.")
            .example("analytics"),
        key!(Server: "draining", draining, Flag, "It is out of use, as after DRAIN SERVER.")
            .followed(),
    ]
}

/// Accounts.
pub(crate) const ACCOUNT: &str = "Passwords are learnt when clients log in. An account whose password stands here needs no learning.";

pub(crate) fn account() -> Vec<Key<'static, Account>> {
    vec![
        key!(Account: "name", name, Text, "The account's name on the servers, without a host.")
            .required()
            .given("app"),
        Key::password(
            |account: &Account| account.password.as_ref(),
            |account, secret| account.password = Some(secret),
            Sample::Example("APP_PASSWORD"),
        ),
        key!(Account: "consistency", consistency, Maybe(Choice(CONSISTENCY)),
            "What its reads must see, where that is not what the listener or `[routing]` says.")
        .example("eventual"),
    ]
}

const MONITOR: &str = "How the servers are asked for their state. Nothing is ever written to them. The account needs this.\n\
     MySQL:   GRANT SELECT, SHOW VIEW, TRIGGER, SHOW_ROUTINE, REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO …\n\
     MariaDB: GRANT SELECT, SHOW VIEW, TRIGGER, BINLOG MONITOR, REPLICA MONITOR, REPLICATION SLAVE ON *.* TO …\n\
     SELECT, SHOW VIEW, TRIGGER and SHOW_ROUTINE show which functions, procedures and views only read. \
     What the account cannot see runs on the primary.";

fn monitor() -> Vec<Key<'static, Config>> {
    vec![
        key!(Config: "user", monitor.user, Text,
            "The account that asks. Several servers need one. Without it nothing is known of lag.")
        .given("millrace"),
        Key::password(
            |config: &Config| Some(&config.monitor.password),
            |config, secret: Secret| config.monitor.password = secret,
            Sample::Given("MILLRACE_MONITOR_PASSWORD"),
        ),
        key!(Config: "interval", monitor.interval, time(Duration::from_millis(50)),
            "The time between two probes of a server."),
        key!(Config: "urgent_interval", monitor.urgent_interval, time(Duration::from_millis(10)),
            "The same while no server takes writes."),
        key!(Config: "timeout", monitor.timeout, time(Duration::from_millis(10)),
            "How long the answers to one probe may take together."),
        key!(Config: "connect_timeout", monitor.connect_timeout, time(Duration::from_millis(10)),
            "How long a probe's connection may take, login included."),
        key!(Config: "position_interval", monitor.position_interval, time(MS),
            "The least time between two questions how far a server has come, while sessions need to know. \
             It grows up to sixteen times as long until something is written through Millrace."),
        key!(Config: "commit_stall", monitor.commit_stall, ANY_TIME,
            "Commits that take longer keep further writes from the primary until they end. Whole seconds; \
             0: never."),
        key!(Config: "max_login_age", monitor.max_login_age, ANY_TIME,
            "A change of accounts or global variables counts for every new login after this time at the latest."),
        key!(Config: "fail_after", monitor.topology.fail_after, number(1, 100),
            "The number of failed probes in a row that make a server down."),
    ]
}

fn name_the_user(section: &Section<'_>, _: &mut Config) {
    if !section.has("user") && section.names_secret() {
        section.missing("`user` is missing");
    }
}

const DISCOVERY_DOC: &str = "Which servers there are beside those listed: docs/failover.md. The listed servers are \
     asked for their sources, replicas and fellow members, and those are used as well. To list its replicas \
     a server needs one more privilege. Groups and Galera need none.\n\
     MySQL:   GRANT REPLICATION SLAVE ON *.* TO …\n\
     MariaDB: GRANT REPLICATION MASTER ADMIN ON *.* TO …";

fn discovery() -> Vec<Key<'static, Config>> {
    vec![
        key!(Config: "mode", discovery.mode, MODE,
            "`auto` finds servers. With `off`, the servers listed are all there are."),
        key!(Config: "max_servers", discovery.options.servers_max, number(1, 256),
            "The number of servers at a time, those listed included."),
        key!(Config: "forget_after", discovery.options.forget_after_ms, Millis(time(SECOND)),
            "A found server that does not answer, and that no server names any longer, is forgotten after this."),
    ]
}

/// Said aloud, `auto` asks for an account of the monitor.
const MODE: Own<DiscoveryMode> = Own {
    parse: |value| choice(DISCOVERY)(value),
    show: |mode| {
        match mode {
            DiscoveryMode::Off => "off",
            DiscoveryMode::Default | DiscoveryMode::Auto => "auto",
        }
        .to_owned()
    },
    takes: "\"off\" or \"auto\"",
};

fn read_translations(section: &Section<'_>, config: &mut Config) {
    let Some(table) = section.table("translate") else {
        return;
    };
    let connect = |text: &str| Address::parse(text, Some(3306));
    let value = |value: &DeValue<'_>| {
        connect(&text(value)?).map_err(|why| Wrong::new(format!("is wrong: {why}")))
    };
    for (named, reachable) in table.pairs(connect, value) {
        let (named, reachable) = (named.to_string(), reachable.to_string());
        let translate = &mut config.discovery.options.translate;
        translate.insert(named.into(), reachable.into());
    }
}

/// `[discovery.translate]`.
pub(crate) const TRANSLATE: &str = "The addresses to connect to in place of those that servers name. \
     Each key is an address as a server names it, each value the address to connect to.";

fn tls() -> Vec<Key<'static, Config>> {
    let readable = || Maybe(File::Readable);
    vec![
        key!(Config: "cert", tls.cert, readable(), "The certificate and its chain, PEM.")
            .example("server.pem"),
        key!(Config: "key", tls.key, readable(), "Its private key, PEM.").example("server.key"),
        key!(Config: "keep", tls.keep, Maybe(File::Any),
            "Where the certificate that is made at start is kept with its key, so that the next start has the \
             same. Not beside `cert`.")
            .example("made.pem"),
        key!(Config: "ca", tls.ca, readable(),
            "Clients must show a certificate that one of these authorities signed, PEM.")
            .example("clients-ca.pem"),
        key!(Config: "client_certificates", tls.client_certificates, Maybe(Choice(CERTIFICATES)),
            "With `ca`: whether every client that uses TLS must show a certificate, or only one whose account \
             asks for it. Without this key, every client.")
            .example("optional"),
        key!(Config: "rsa_key", tls.rsa_key, readable(),
            "The servers' private RSA key, PEM, for clients that were given the public one. Without it a key \
             is made at start.")
            .example("private_key.pem"),
        key!(Config: "required", tls.required, Flag,
            "TLS is required on every `[[listen]]` that does not say otherwise."),
    ]
}

fn server_tls() -> Vec<Key<'static, Config>> {
    let readable = || Maybe(File::Readable);
    vec![
        key!(Config: "mode", server_tls.mode, Choice(SERVER_TLS),
            "`as_client` encrypts where the client's connection is encrypted and the server offers it. The \
             others are as in MySQL's clients."),
        key!(Config: "ca", server_tls.ca, readable(),
            "The authorities, PEM. `verify_ca` and `verify_identity` need it.")
        .example("servers-ca.pem"),
        key!(Config: "cert", server_tls.cert, readable(), "A client certificate, PEM.")
            .example("client.pem"),
        key!(Config: "key", server_tls.key, readable(), "Its private key, PEM.")
            .example("client.key"),
    ]
}

const TCP: &str = "When a silent connection to a client is given up: its transaction and locks end with it. \
     These are Linux's TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT and TCP_USER_TIMEOUT: docs/failover.md.";

const SERVER_TCP: &str =
    "The same for connections to servers, the monitor's included: reads then go elsewhere.";

/// Both tables have the same keys.
macro_rules! tcp_keys {
    ($at:ident) => {
        vec![
            key!(Config: "keepalive_idle", $at.keepalive_idle, Keepalive(ANY_TIME),
                "A silent connection is probed after this; whole seconds, 0: never."),
            key!(Config: "keepalive_interval", $at.keepalive_interval, Keepalive(time(SECOND)),
                "The time between two probes; whole seconds."),
            key!(Config: "keepalive_count", $at.keepalive_count, number(1, 127),
                "This number of probes without an answer ends the connection, where `user_timeout` is 0."),
            key!(Config: "user_timeout", $at.user_timeout, ANY_TIME,
                "The connection ends when bytes or probes are not acknowledged, or the peer takes no bytes, \
                 for this long; 0: the kernel's limit, some 15 minutes."),
        ]
    };
}

fn tcp() -> Vec<Key<'static, Config>> {
    tcp_keys!(tcp)
}

fn server_tcp() -> Vec<Key<'static, Config>> {
    tcp_keys!(server_tcp)
}

/// Linux takes whole seconds, up to these (MAX_TCP_KEEPIDLE, MAX_TCP_KEEPINTVL).
struct Keepalive(Time);

impl Kind<Duration> for Keepalive {
    fn parse(
        &self,
        context: &crate::environment::Context<'_>,
        value: &DeValue<'_>,
    ) -> Result<Duration, Wrong> {
        const MOST: Duration = Duration::from_secs(32_767);
        match self.0.parse(context, value)? {
            time if time <= MOST && time.subsec_nanos() == 0 => Ok(time),
            time => Err(Wrong::new(format!(
                "must be whole seconds, {MOST:?} at most, not {time:?}"
            ))),
        }
    }

    fn show(&self, value: &Duration) -> String {
        self.0.show(value)
    }

    fn takes(&self) -> String {
        self.0.takes()
    }
}

fn pool() -> Vec<Key<'static, Config>> {
    vec![
        key!(Config: "max_connections", pool.max_connections, number(1, 100_000),
            "Connections to each server, over all workers."),
        key!(Config: "concurrency", pool.concurrency, CONCURRENCY,
            "Statements that one server runs at once, over all workers; others wait: docs/routing.md. `auto` is \
             as many as get the most done. A number holds for statements that do not take long, with at least one \
             for each worker. `off` is as many as there are connections."),
        key!(Config: "idle_timeout", pool.idle_timeout, time(SECOND),
            "An unused connection is closed after this."),
        key!(Config: "check_after", pool.check_after, ANY_TIME,
            "A connection that was idle for longer is asked for a sign of life (COM_PING) before a write. Whole \
             seconds; 0: never."),
        key!(Config: "connect_timeout", pool.connect_timeout, time(Duration::from_millis(10)),
            "How long opening a connection may take, login included."),
        key!(Config: "wait_timeout", pool.wait_timeout, time(MS),
            "How long a statement waits for a connection."),
        key!(Config: "max_waiting", pool.max_waiting, number(0, 10_000_000),
            "Statements that wait for connections of one server."),
        key!(Config: "max_prepared_statements", pool.max_prepared_statements, number(1, 1_000_000),
            "Prepared statements held on each server connection; the least used is closed. It is less for a \
             while where the server's own `max_prepared_stmt_count` is reached."),
        key!(Config: "max_lifetime", pool.max_lifetime, OrNever(ANY_TIME),
            "The age at which a connection is closed when it is given back; 0: no limit."),
    ]
}

const CONCURRENCY: Own<Limit> = Own {
    parse: |value| {
        match value.as_str() {
            Some("auto") => return Ok(Limit::Auto),
            Some("off") => return Ok(Limit::Off),
            _ => {}
        }
        match whole(1, 100_000)(value) {
            Ok(limit) => Ok(Limit::At(limit)),
            Err(_) => Err(Wrong::new(
                "must be \"auto\", \"off\" or a number from 1 to 100000",
            )),
        }
    },
    show: |limit| match limit {
        Limit::Auto => "auto".to_owned(),
        Limit::At(limit) => limit.to_string(),
        Limit::Off => "off".to_owned(),
    },
    takes: "\"auto\", \"off\", or a number from 1 to 100000",
};

fn limits() -> Vec<Key<'static, Config>> {
    vec![
        key!(Config: "max_clients", sessions.max_clients, number(1, 10_000_000),
            "Clients connected at once."),
        key!(Config: "max_packet", sessions.max_packet, size(1024, GIB), "The longest command."),
        key!(Config: "login_timeout", sessions.login_timeout, time(Duration::from_millis(10)),
            "From connect to the end of the login, for the client's part. What servers need comes on top."),
        key!(Config: "max_long_data", sessions.max_long_data, size(0, 16 * GIB),
            "Bytes of COM_STMT_SEND_LONG_DATA held for each session."),
        key!(Config: "max_prepared_statements", sessions.max_prepared_statements, number(0, 4_194_304),
            "Prepared statements open in each session."),
        key!(Config: "clients_per_address", sessions.clients_per_address, number(0, 10_000_000),
            "Clients of one address connected at once; 0: no limit."),
    ]
}

fn routing() -> Vec<Key<'static, Config>> {
    vec![
        key!(Config: "reads", sessions.routing.reads, Choice(READS),
            "Which servers share the reads. With `all` the primary takes its share."),
        key!(Config: "balance", sessions.routing.balance, Choice(BALANCE),
            "How the server of a read is chosen."),
        key!(Config: "zone", sessions.routing.zone, Text,
            "Where Millrace runs: servers of this zone come before all others.")
        .example("a"),
        key!(Config: "sticky", sessions.routing.sticky, Flag,
            "A session stays with the server of its last read."),
        key!(Config: "all_lag", sessions.routing.all_lag, Choice(ALL_LAG),
            "Where reads go while all replicas are later than `max_lag`."),
        key!(Config: "consistency", sessions.consistency, Choice(CONSISTENCY),
            "What reads must see."),
        key!(Config: "freshness", sessions.routing.freshness, Choice(FRESHNESS),
            "`position`: a read is held to all that was written. `table`: to what touches the tables and keys that it \
             reads, as the primary's binary log tells; the monitor's account needs REPLICATION SLAVE for that."),
        key!(Config: "waits_max", sessions.routing.waits_max, number(0, 5),
            "The number of replicas that are waited for, one after the other, before a read goes to the primary."),
        key!(Config: "slow_start", monitor.topology.slow_start_ms, Millis(ANY_TIME),
            "A server that takes reads again has its full share of them after this; 0: at once."),
        key!(Config: "wait_limit", sessions.routing.wait_limit_ms, Millis(ANY_TIME),
            "How long a replica may take to catch up with a session, before the read goes elsewhere; 0: no wait."),
        key!(Config: "max_lag", monitor.topology.lag_seconds_max, Seconds(time(SECOND)),
            "A replica further behind takes no reads. Whole seconds."),
        key!(Config: "max_running", monitor.topology.running_max, number(0, 1_000_000),
            "A replica that runs more statements at once takes no reads until it runs fewer; 0: no limit."),
    ]
}

fn cache() -> Vec<Key<'static, Config>> {
    vec![
        key!(Config: "mode", cache.mode, Choice(CACHE_MODE),
            "`off`: nothing is cached. `auto`: every result that can be, but for what rules keep out. `rules`: only \
             results of statements that a rule with `cache` is about. The monitor's account needs REPLICATION SLAVE."),
        key!(Config: "memory", cache.store.memory, size(MIB, 1024 * GIB),
            "The most memory that results and all that belongs to them take."),
        key!(Config: "entry_max", cache.store.entry_max, size(1, GIB),
            "The longest result that is kept."),
        key!(Config: "second_use", cache.store.second_use, Flag,
            "A result is kept when it is asked for the second time, so that what is asked for once takes no place."),
        key!(Config: "verify", cache.verify, Share,
            "This share of answers out of memory is read from a server all the same, and compared. There must be no \
             difference: `millrace_cache_verify_differences_total`."),
        key!(Config: "max_silence", cache.store.max_silence, time(Duration::from_millis(100)),
            "After so long without a word of the primary's binary log nothing is served from memory."),
    ]
}

fn failover() -> Vec<Key<'static, Config>> {
    vec![
        key!(Config: "hold_time", sessions.failover.hold_time, ANY_TIME,
            "How long a statement waits for a server that can run it; 0: no wait. The default is more than a \
             group of servers takes by its own defaults to elect another primary (21.5 s)."),
        key!(Config: "max_held", sessions.failover.max_held, number(0, 10_000_000),
            "Statements that wait at once."),
        key!(Config: "max_held_bytes", sessions.failover.max_held_bytes, size(0, 64 * GIB),
            "The length of their commands together."),
        key!(Config: "retries", sessions.failover.retries, number(0, 100),
            "How often a read is sent again whose connection broke while it ran."),
        key!(Config: "max_replay_statements", sessions.failover.max_replay_statements, number(0, 1_000_000),
            "The longest transaction that is run again on another server, in statements; 0: none is."),
        key!(Config: "max_replay_bytes", sessions.failover.max_replay_bytes, size(0, GIB),
            "The length of its commands together."),
        key!(Config: "max_replay_total_bytes", sessions.failover.max_replay_total_bytes, size(0, 1024 * GIB),
            "What is kept of all open transactions together."),
        key!(Config: "max_replay_time", sessions.failover.max_replay_time, ANY_TIME,
            "How old a transaction may be, from its first answer, to be run again."),
        key!(Config: "drain_time", sessions.failover.drain_time, ANY_TIME,
            "How long transactions may go on on a server that is drained."),
    ]
}

fn auth() -> Vec<Key<'static, Config>> {
    vec![
        key!(Config: "failure_delay", sessions.failure_delay, ANY_TIME,
            "How long the answer to a failed login of an address is held back. It doubles with each further \
             failure; 0: never."),
        key!(Config: "failure_delay_max", sessions.failure_delay_max, ANY_TIME,
            "The longest time that it is held back."),
        key!(Config: "failures_free", sessions.failures_free, number(0, 1_000_000),
            "Failures of an address that are answered at once."),
        key!(Config: "failure_memory", sessions.failure_memory, time(SECOND),
            "An address's failures are forgotten after this."),
        key!(Config: "hosts", sessions.hosts, Choice(HOSTS),
            "`check`: a client gets in only by the account whose host is for its own address, where the accounts \
             can be read. `ignore`: servers' accounts are for Millrace's address."),
    ]
}

fn http() -> Vec<Key<'static, Config>> {
    vec![
        key!(Config: "listen", http, Maybe(At::Listen),
            "Where `/metrics`, `/healthz` and `/readyz` are served, as a `[[listen]]`'s address. Without it they \
             are not.")
            .example("127.0.0.1:9104"),
    ]
}

/// `[admin]`.
pub(crate) const ADMIN: &str = "Operators ask and act here, in the MySQL protocol: docs/admin.md. There is no such \
     listener without this section, and none without a password.";

pub(crate) fn admin() -> Vec<Key<'static, Admin>> {
    vec![
        key!(Admin: "listen", address, At::Listen, "Where they connect, as a `[[listen]]`'s address."),
        key!(Admin: "user", user, Text, "The one account."),
        Key::password(
            |admin: &Admin| Some(&admin.password),
            |admin, secret| admin.password = secret,
            Sample::Example("MILLRACE_ADMIN_PASSWORD"),
        ),
        key!(Admin: "tls", tls, Choice(LISTENER_TLS), "As a `[[listen]]`'s."),
        key!(Admin: "max_connections", max_connections, number(1, 10_000),
            "Clients at once, those that are logging in included."),
    ]
}

fn log() -> Vec<Key<'static, Config>> {
    vec![
        key!(Config: "level", log.level, Choice(LEVEL),
            "The least important lines that are logged. The variable RUST_LOG overrides it."),
        key!(Config: "format", log.format, Choice(FORMAT),
            "Lines for people, or one JSON object a line."),
    ]
}

fn drain() -> Vec<Key<'static, Config>> {
    vec![key!(Config: "timeout", drain_timeout, ANY_TIME,
            "How long running statements and transactions may take to end.")]
}

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use millrace_backend::cache::{CacheOptions, Mode};
use millrace_backend::concurrency::Limit;
use millrace_backend::monitor::MonitorOptions;
use millrace_backend::pool::PoolOptions;
use millrace_backend::tcp::TcpOptions;
use millrace_backend::tls::ServerTlsMode;
use millrace_routing::{AllLag, Balance, Catalogue, Consistency, Reads, ServerSet, Target};
use millrace_topology::{ConfiguredRole, DiscoveryOptions};
use millrace_worker::{FailoverOptions, Hosts, Options};

use super::*;
use crate::{
    Address, ClientCertificates, ClientTls, Discovery, DiscoveryMode, Flags, Log, LogFormat,
    LogLevel, ServerTls,
};

/// Knows the files under `/etc/m` that are used below, and one variable.
fn environment() -> Environment {
    Environment {
        read: Box::new(|path| match path.to_str() {
            Some("/etc/m/secret") => Ok(b"hush\r\n".to_vec()),
            Some("/etc/m/empty") => Ok(Vec::new()),
            Some(path) if path.ends_with(".pem") => Ok(Vec::new()),
            _ => Err(io::Error::new(io::ErrorKind::NotFound, "no such file")),
        }),
        variable: Box::new(|name| (name == "MILLRACE_MONITOR_PASSWORD").then(|| "pst".into())),
    }
}

fn load(text: &str) -> Result<Config, Vec<ConfigError>> {
    Config::from_toml("/etc/m/m.toml", text, &environment())
}

fn errors(text: &str) -> String {
    match load(text) {
        Ok(_) => String::new(),
        Err(errors) => {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            lines.join("\n").replace("/etc/m/", "")
        }
    }
}

const SMALL: &str = "[[listen]]\naddress = \"*:1\"\n[[server]]\naddress = \"a\"\n";

/// What is added to a small right file, and the error that it makes. Lines count from 5.
#[test]
fn each_mistake_is_named_with_its_place_and_a_way_out() {
    let table = [
        (
            "lisen = 1",
            "unknown key `lisen` at m.toml:4; did you mean `listen`?",
        ),
        (
            "[pol]",
            "unknown key `pol` at m.toml:5; did you mean `pool`?",
        ),
        ("[weird]\nx = 1", "unknown key `weird` at m.toml:5"),
        (
            "[pool]\nmax-connections = 1",
            "unknown key `max-connections` at m.toml:6; did you mean `max_connections`?",
        ),
        (
            "[pool]\nmax_connections = 0",
            "`max_connections` must be a number from 1 to 100000, not 0 at m.toml:6",
        ),
        (
            "[pool]\nmax_connections = \"many\"",
            "`max_connections` must be a number from 1 to 100000, not \"many\" at m.toml:6",
        ),
        (
            "[pool]\nwait_timeout = 10",
            "`wait_timeout` must be a duration such as \"500ms\", \"10s\" or \"5m\", not 10 at \
             m.toml:6; give a unit: \"10s\" or \"10ms\"",
        ),
        (
            "[pool]\nidle_timeout = \"1ms\"",
            "`idle_timeout` must be at least 1s, not \"1ms\" at m.toml:6",
        ),
        (
            "[limits]\nmax_packet = \"2GiB\"",
            "`max_packet` must be from 1KiB to 1GiB, not \"2GiB\" at m.toml:6",
        ),
        (
            "[limits]\nmax_packet = \"big\"",
            "`max_packet` must be a size such as \"64MiB\" or \"512KiB\", not \"big\" at m.toml:6",
        ),
        (
            "[routing]\nreads = \"replica\"",
            "`reads` must be one of \"replicas\", \"all\", not \"replica\" at m.toml:6; did you \
             mean \"replicas\"?",
        ),
        (
            "[routing]\nconsistency = \"strong\"",
            "`consistency` must be one of \"eventual\", \"session\", \"instance\", \"global\", not \
             \"strong\" at m.toml:6",
        ),
        (
            "[tls]\nrequired = \"yes\"",
            "`required` must be true or false, not \"yes\" at m.toml:6",
        ),
        (
            "[tls]\ncert = \"a.pem\"",
            "`cert` and `key` of [tls] belong together at m.toml:5",
        ),
        (
            "[tls]\ncert = \"a.crt\"\nkey = \"b.pem\"",
            "`cert` names a file that cannot be read: no such file at m.toml:6\n`cert` and `key` \
             of [tls] belong together at m.toml:5",
        ),
        (
            "[tls]\ncert = \"a.pem\"\nkey = \"b.pem\"\nkeep = \"k.pem\"",
            "`keep` of [tls] is for a certificate that is made: there is none where `cert` is given at m.toml:5",
        ),
        (
            "[tls]\nclient_certificates = \"required\"",
            "client_certificates = \"required\" of [tls] needs `ca`: without it no client is asked at m.toml:5; \
             name in `ca` the authority that signs clients' certificates",
        ),
        (
            "[server_tls]\nmode = \"verify_ca\"",
            "this `mode` of [server_tls] needs `ca` at m.toml:5",
        ),
        (
            "[monitor]\nuser = \"m\"\npassword = \"x\"",
            "`password` is not allowed at m.toml:7; passwords are not kept in this file: put it \
             into a file of its own and name that with `password_file`, or into an environment \
             variable and name that with `password_env`",
        ),
        (
            "[monitor]\nuser = \"m\"\npassword_file = \"gone\"",
            "`password_file` names a file that cannot be read: no such file at m.toml:7",
        ),
        (
            "[monitor]\nuser = \"m\"\npassword_env = \"GONE\"",
            "`password_env` names `GONE`, which is not in the environment at m.toml:7",
        ),
        (
            "[monitor]\nuser = \"m\"\npassword_file = \"secret\"\npassword_env = \
             \"MILLRACE_MONITOR_PASSWORD\"",
            "`password_env` must not stand beside `password_file` at m.toml:8",
        ),
        (
            "[monitor]\npassword_file = \"secret\"",
            "`user` is missing at m.toml:5",
        ),
        (
            "[[account]]\nname = \"app\"",
            "`password_file`, `password_env` or `consistency` is missing at m.toml:5",
        ),
        (
            "[[account]]\npassword_file = \"secret\"",
            "`name` is missing at m.toml:5",
        ),
        (
            "[[account]]\nname = \"app\"\npassword_file = \"secret\"\n[[account]]\nname = \
             \"app\"\npassword_file = \"secret\"",
            "the account `app` is there already at m.toml:8",
        ),
        (
            "[[listen]]\naddress = \"127.0.0.1:1\"",
            "the listener 127.0.0.1:1 is there already at m.toml:5",
        ),
        (
            "[[listen]]\naddress = \"localhost\"",
            "`address` is wrong: `localhost` has no port; write `localhost:3306` at m.toml:6",
        ),
        (
            "[[listen]]\ntarget = \"auto\"",
            "`address` is missing at m.toml:5",
        ),
        (
            "[listen2]\n[server]\naddress = \"a\"",
            "duplicate key at m.toml:6",
        ),
        (
            "[http]\nlisten = \"*:1\"",
            "*:1 is a listener for clients already at m.toml:5",
        ),
        (
            "[admin]\nlisten = \"127.0.0.1:6032\"",
            "`password_file` or `password_env` is missing at m.toml:5",
        ),
        (
            "[admin]\npassword_file = \"empty\"",
            "the password of [admin] is empty at m.toml:5",
        ),
        (
            "[admin]\nlisten = \"127.0.0.1:1\"\npassword_file = \"secret\"",
            "127.0.0.1:1 is a listener already at m.toml:5",
        ),
        (
            "[[server]]\naddress = \"b\"",
            "several servers, but no account to ask them for their roles in m.toml; add \
             [monitor] with user and password_file or password_env",
        ),
        (
            "[[pool]]\nmax_connections = 1",
            "`pool` is one table; write [pool], not [[pool]] at m.toml:5",
        ),
        (
            "[account]\nname = \"a\"",
            "`account` is a list of tables; write [[account]] at m.toml:5",
        ),
        (
            "[log]\nlevel = \"loud\"",
            "`level` must be one of \"error\", \"warn\", \"info\", \
             \"debug\", \"trace\", not \"loud\" at m.toml:6",
        ),
    ];
    for (added, expected) in table {
        let text = if added.starts_with('[') {
            format!("{SMALL}{added}\n")
        } else {
            // A key of the root stands before the tables.
            format!("{}\n{SMALL}", added)
        };
        let expected = expected.replace("m.toml:4", "m.toml:1");
        let found = errors(&text);
        let first_lines = |text: &str| {
            let mut lines: Vec<&str> = text.lines().collect();
            lines.sort_unstable();
            lines.join("\n")
        };
        if expected.starts_with("duplicate") {
            assert!(found.contains("at m.toml:"), "{added}\n{found}");
        } else {
            assert_eq!(first_lines(&found), first_lines(&expected), "{added}");
        }
    }
}

#[test]
fn all_errors_come_at_once_in_the_order_of_lines() {
    let text = "workers = 0\n[[listen]]\nadress = \"*:1\"\n[pool]\nmax_waiting = -1\n[log]\nformat = \
                \"xml\"\n";
    assert_eq!(
        errors(text),
        "`workers` must be \"auto\" or a number from 1 to 1024 at m.toml:1\n\
         `address` is missing at m.toml:2\n\
         unknown key `adress` at m.toml:3; did you mean `address`?\n\
         `max_waiting` must be a number from 0 to 10000000, not -1 at m.toml:5\n\
         `format` must be one of \"text\", \"json\", not \"xml\" at m.toml:7\n\
         no server in m.toml; add [[server]] with address = \"host:3306\""
    );
}

#[test]
fn an_empty_file_says_what_is_needed() {
    assert_eq!(
        errors(""),
        "no listener in m.toml; add [[listen]] with address = \"127.0.0.1:3306\"\n\
         no server in m.toml; add [[server]] with address = \"host:3306\""
    );
}

#[test]
fn what_is_no_toml_is_an_error_with_its_line() {
    let text = format!("{SMALL}[pool\nmax_connections = \n");
    let found = errors(&text);
    assert!(found.contains("m.toml:5"), "{found}");
    assert!(found.contains("m.toml:6"), "{found}");
}

#[test]
fn servers_are_checked_against_each_other_and_the_listeners() {
    let server =
        |address: &str| format!("[[server]]\naddress = \"{address}\"\nrole = \"primary\"\n");
    let monitor = "[monitor]\nuser = \"m\"\npassword_file = \"empty\"\n";
    let listen = "[[listen]]\naddress = \"x:3306\"\n";
    let found = errors(&format!("{listen}{}{}{monitor}", server("a"), server("b")));
    assert!(
        found.starts_with("a second server with role = \"primary\" at m.toml:6;"),
        "{found}"
    );
    let found = errors(&format!("{listen}{}{monitor}", server("x")));
    assert_eq!(
        found,
        "the server x:3306 is a listener: it would call itself at m.toml:3"
    );
    let two =
        format!("{listen}[[server]]\naddress = \"a\"\n[[server]]\naddress = \"a:3306\"\n{monitor}");
    assert_eq!(
        errors(&two),
        "the server a:3306 is there already at m.toml:5"
    );
}

#[test]
fn every_key_is_read() {
    let text = r#"
workers = 3
coalesce_limit = "70us"
[[listen]]
address = "[::1]:3306"
target = "replicas"
tls = "required"
consistency = "global"
[[listen]]
address = "/run/millrace.sock"
[[server]]
address = "db1"
role = "primary"
weight = 0
zone = "a"
tags = ["olap", "big"]
[[server]]
address = "/run/db2.sock"
role = "replica"
weight = 7
draining = true
[monitor]
user = "m"
password_file = "secret"
interval = "2s"
urgent_interval = "40ms"
timeout = "500ms"
connect_timeout = "700ms"
position_interval = "5ms"
commit_stall = "9s"
max_login_age = "3s"
fail_after = 3
[discovery]
mode = "auto"
max_servers = 9
forget_after = "20s"
[discovery.translate]
"10.0.0.1" = "localhost:13306"
[tls]
cert = "c.pem"
key = "/keys/k.pem"
ca = "ca.pem"
client_certificates = "optional"
rsa_key = "rsa.pem"
required = true
[server_tls]
mode = "verify_identity"
ca = "sca.pem"
cert = "sc.pem"
key = "sk.pem"
[tcp]
keepalive_idle = 0
keepalive_interval = "31s"
keepalive_count = 32
user_timeout = "1500ms"
[server_tcp]
keepalive_idle = "33s"
keepalive_interval = "34s"
keepalive_count = 35
user_timeout = 0
[pool]
max_connections = 5
idle_timeout = "1m"
check_after = "36s"
connect_timeout = "1s"
wait_timeout = "2s"
max_waiting = 6
concurrency = 12
max_prepared_statements = 7
max_lifetime = 0
[limits]
max_clients = 8
max_packet = "1MiB"
login_timeout = "3s"
max_long_data = 9
max_prepared_statements = 10
clients_per_address = 11
[routing]
reads = "all"
consistency = "eventual"
balance = "latency"
zone = "a"
sticky = true
freshness = "position"
all_lag = "replicas"
wait_limit = "0"
waits_max = 2
max_lag = "12s"
max_running = 40
slow_start = "17s"
[cache]
mode = "auto"
memory = "41MiB"
entry_max = "42KiB"
second_use = false
verify = 0.25
max_silence = "43s"
[failover]
hold_time = "21s"
max_held = 22
max_held_bytes = "23KiB"
retries = 24
max_replay_statements = 25
max_replay_bytes = "26KiB"
max_replay_total_bytes = "29KiB"
max_replay_time = "27s"
drain_time = "28s"
[auth]
failure_delay = "13ms"
failure_delay_max = "14s"
hosts = "ignore"
failures_free = 15
failure_memory = "16s"
[[account]]
name = "app"
password_env = "MILLRACE_MONITOR_PASSWORD"
consistency = "instance"
[http]
listen = "127.0.0.1:9104"
[admin]
listen = "*:6032"
user = "ops"
password_file = "secret"
tls = "required"
max_connections = 18
[log]
level = "debug"
format = "json"
[drain]
timeout = "17s"
"#;
    let config = load(text).unwrap();
    let s = Duration::from_secs;
    let ms = Duration::from_millis;
    let tcp = |host: &str, port| Address::Tcp {
        host: host.into(),
        port,
    };
    let pem = |name: &str| Some(PathBuf::from(format!("/etc/m/{name}.pem")));
    let found = DiscoveryOptions {
        servers_max: 9,
        forget_after_ms: 20_000,
        translate: [("10.0.0.1:3306".into(), "localhost:13306".into())].into(),
    };
    // Taken apart in full: a field that no key fills does not pass.
    let expected = Config {
        listeners: vec![
            Listener {
                address: tcp("::1", 3306),
                target: Target::ReplicasOnly,
                tls: ListenerTls::Required,
                consistency: Some(Consistency::Global),
            },
            Listener {
                address: Address::Unix("/run/millrace.sock".into()),
                target: Target::Auto,
                tls: ListenerTls::Required,
                consistency: None,
            },
        ],
        servers: vec![
            Server {
                address: tcp("db1", 3306),
                role: ConfiguredRole::Primary,
                weight: 0,
                zone: "a".into(),
                tags: vec!["olap".into(), "big".into()],
                draining: false,
            },
            Server {
                address: Address::Unix("/run/db2.sock".into()),
                role: ConfiguredRole::Replica,
                weight: 7,
                zone: String::new(),
                tags: Vec::new(),
                draining: true,
            },
        ],
        monitor: MonitorOptions {
            user: "m".into(),
            password: Secret::new(b"hush".to_vec()),
            interval: s(2),
            urgent_interval: ms(40),
            timeout: ms(500),
            connect_timeout: ms(700),
            position_interval: ms(5),
            catalogue_interval: s(5),
            catalogue_queries: Catalogue::queries,
            topology: millrace_topology::Options {
                lag_seconds_max: 12,
                running_max: 40,
                slow_start_ms: 17_000,
                fail_after: 3,
                discovery: Some(found.clone()),
            },
            commit_stall: s(9),
            max_login_age: s(3),
            traffic: None,
        },
        discovery: Discovery {
            mode: DiscoveryMode::Auto,
            options: found,
        },
        tls: ClientTls {
            cert: pem("c"),
            key: Some("/keys/k.pem".into()),
            keep: None,
            ca: pem("ca"),
            client_certificates: Some(ClientCertificates::Optional),
            rsa_key: pem("rsa"),
            required: true,
        },
        server_tls: ServerTls {
            mode: ServerTlsMode::VerifyIdentity,
            ca: pem("sca"),
            cert: pem("sc"),
            key: pem("sk"),
        },
        tcp: TcpOptions {
            keepalive_idle: Duration::ZERO,
            keepalive_interval: s(31),
            keepalive_count: 32,
            user_timeout: ms(1500),
        },
        server_tcp: TcpOptions {
            keepalive_idle: s(33),
            keepalive_interval: s(34),
            keepalive_count: 35,
            user_timeout: Duration::ZERO,
        },
        cache: CacheOptions {
            mode: Mode::Auto,
            verify: 0.25,
            store: millrace_cache::Options {
                memory: 41 << 20,
                entry_max: 42 << 10,
                max_silence: s(43),
                second_use: false,
                ..millrace_cache::Options::default()
            },
        },
        pool: PoolOptions {
            max_connections: 5,
            idle_timeout: s(60),
            check_after: s(36),
            connect_timeout: s(1),
            wait_timeout: s(2),
            max_waiting: 6,
            concurrency: Limit::At(12),
            max_prepared_statements: 7,
            max_lifetime: Duration::MAX,
        },
        sessions: Options {
            max_clients: 8,
            clients_per_address: 11,
            max_packet: 1 << 20,
            login_timeout: s(3),
            max_long_data: 9,
            max_prepared_statements: 10,
            consistency: Consistency::Eventual,
            levels: [(b"app"[..].into(), Consistency::Instance)].into(),
            routing: millrace_routing::Options {
                reads: Reads::All,
                balance: Balance::Latency,
                zone: "a".into(),
                sticky: true,
                freshness: millrace_routing::Freshness::Position,
                all_lag: AllLag::Replicas,
                wait_limit_ms: 0,
                waits_max: 2,
            },
            failure_delay: ms(13),
            failure_delay_max: s(14),
            failures_free: 15,
            failure_memory: s(16),
            hosts: Hosts::Ignore,
            failover: FailoverOptions {
                hold_time: s(21),
                max_held: 22,
                max_held_bytes: 23 << 10,
                retries: 24,
                max_replay_statements: 25,
                max_replay_bytes: 26 << 10,
                max_replay_total_bytes: 29 << 10,
                max_replay_time: s(27),
                drain_time: s(28),
            },
        },
        accounts: vec![Account {
            name: "app".into(),
            password: Some(Secret::new(b"pst".to_vec())),
            consistency: Some(Consistency::Instance),
        }],
        sets: HashMap::new(),
        rules: Vec::new(),
        http: Some(tcp("127.0.0.1", 9104)),
        admin: Some(Admin {
            address: tcp("*", 6032),
            user: "ops".into(),
            password: Secret::new(b"hush".to_vec()),
            tls: ListenerTls::Required,
            max_connections: 18,
        }),
        log: Log {
            level: LogLevel::Debug,
            format: LogFormat::Json,
        },
        drain_timeout: s(17),
        workers: Some(3),
        coalesce_limit: Duration::from_micros(70),
        warnings: Vec::new(),
    };
    assert_eq!(format!("{config:#?}"), format!("{expected:#?}"));
    assert_eq!(config.monitor.password.password(), Some(&b"hush"[..]));
    let shown = config.settings();
    let by_default = shown.iter().filter(|setting| setting.is_default);
    let by_default: Vec<&str> = by_default.map(|setting| &*setting.name).collect();
    assert_eq!(
        by_default,
        ["discovery.mode", "tls.keep"],
        "shown as what they are"
    );
    let specs = config.server_specs();
    assert_eq!(&*specs[0].address, "db1:3306");
    assert_eq!(&*specs[1].address, "/run/db2.sock");
}

#[test]
fn no_secret_is_ever_shown() {
    let text = format!(
        "{SMALL}[monitor]\nuser = \"m\"\npassword_file = \"secret\"\n[[account]]\nname = \
         \"a\"\npassword_env = \"MILLRACE_MONITOR_PASSWORD\"\n"
    );
    let config = load(&text).unwrap();
    assert_eq!(config.monitor.password.password(), Some(&b"hush"[..]));
    let shown = format!("{config:?}{config:#?}");
    assert!(!shown.contains("hush") && !shown.contains("pst"), "{shown}");
    assert!(!shown.contains(&format!("{:?}", b"hush")), "{shown}");
    // A password in the wrong place is not repeated either.
    let found = errors(&format!(
        "{SMALL}[monitor]\nuser = \"m\"\npassword = \"hush\"\n"
    ));
    assert!(!found.contains("hush"), "{found}");
}

const EXAMPLE: &str = include_str!("../../../../deploy/millrace.toml");

#[test]
fn the_example_is_right() {
    let config = load(EXAMPLE).unwrap();
    assert_eq!(config.servers.len(), 3);
    assert!(config.warnings.is_empty());
}

#[test]
fn the_readme_shows_what_is_right() {
    let readme = include_str!("../../../../README.md");
    let (_, rest) = readme.split_once("```toml\n").expect("an example");
    let (example, _) = rest.split_once("```").expect("its end");
    assert_eq!(errors(example), "");
}

#[test]
fn servers_are_found_where_there_is_an_account_to_ask_with() {
    let base = "[[listen]]\naddress = \"*:1\"\n[[server]]\naddress = \"a:1\"\n";
    let finds = |more: &str| {
        let config = load(&format!("{base}{more}")).unwrap();
        config.monitor.topology.discovery.is_some()
    };
    let monitor = "[monitor]\nuser = \"m\"\npassword_file = \"secret\"\n";
    assert!(!finds(""), "nobody can be asked");
    assert!(finds(monitor));
    assert!(!finds(&format!("{monitor}[discovery]\nmode = \"off\"\n")));
}

/// What the example shows in comments is read, and as the default.
#[test]
fn the_example_shows_the_defaults() {
    // The keys of a section that is commented out belong to no other.
    let mut section_is_there = true;
    let shown: String = EXAMPLE
        .lines()
        .map(|line| {
            if line.starts_with('[') {
                section_is_there = true;
            } else if line.starts_with("#[") {
                section_is_there = false;
            }
            match line.strip_prefix('#') {
                Some(rest) if section_is_there && is_default_shown(rest) => format!("{rest}\n"),
                _ => format!("{line}\n"),
            }
        })
        .collect();
    let (with, without) = (load(&shown).unwrap(), load(EXAMPLE).unwrap());
    assert_eq!(with.settings(), without.settings());
    assert!(
        shown
            .lines()
            .filter(|line| line.contains(" = ") && !line.starts_with('#'))
            .count()
            > 75,
        "the defaults were uncommented"
    );
}

/// With everything uncommented, examples included, it is right as well.
#[test]
fn the_example_can_be_uncommented() {
    let is_code = |line: &str| {
        line.starts_with('[')
            || line.starts_with('"')
            || line
                .split_once(" = ")
                .is_some_and(|(key, _)| !key.contains(' '))
    };
    let lines = EXAMPLE.lines().map(|line| match line.strip_prefix('#') {
        Some(rest) if is_code(rest) => format!("{rest}\n"),
        _ => format!("{line}\n"),
    });
    let text: String = lines.collect();
    // What excludes each other, and what is only in an example's own environment.
    let text = text
        .replace("password_file = \"password\"\n", "")
        .replace("keep = \"made.pem\"\n", "")
        .replace("to = \"replicas\"\n", "")
        .replace("cache = \"exact\"\n", "")
        .replace("ttl = \"5s\"\n", "")
        .replace("APP_PASSWORD", "MILLRACE_MONITOR_PASSWORD")
        .replace("MILLRACE_ADMIN_PASSWORD", "MILLRACE_MONITOR_PASSWORD")
        .replace(".key\"", ".pem\"");
    assert_eq!(errors(&text), "");
    let config = load(&text).unwrap();
    assert_eq!(
        (config.rules.len(), config.sets.len(), config.accounts.len()),
        (1, 1, 1)
    );
    let when = config.rule_texts().remove(0).when;
    assert_eq!(when.matches(" = ").count(), 9, "{when}");
}

/// `key = value` that is the default: the default file has examples where there is none.
fn is_default_shown(line: &str) -> bool {
    let examples = [
        "password_",
        "cert =",
        "key =",
        "ca =",
        "client_certificates =",
        "keep =",
        "rsa_key =",
        "zone =",
        "tags =",
        "listen =",
        "consistency = \"session\"",
    ];
    let is_key = line.starts_with(|c: char| c.is_ascii_lowercase())
        && line
            .split_once(" = ")
            .is_some_and(|(key, _)| !key.contains(' '));
    is_key && !examples.iter().any(|start| line.starts_with(start))
}

#[test]
fn tls_is_required_on_listeners_that_do_not_say_otherwise() {
    let more = "[[listen]]\naddress = \"*:2\"\ntls = \"optional\"\n";
    let tls = |required: bool| -> Vec<ListenerTls> {
        let text = format!("{SMALL}{more}[tls]\nrequired = {required}\n");
        let listeners = load(&text).unwrap().listeners;
        listeners.iter().map(|listener| listener.tls).collect()
    };
    assert_eq!(tls(true), [ListenerTls::Required, ListenerTls::Optional]);
    assert_eq!(tls(false), [ListenerTls::Optional, ListenerTls::Optional]);
}

#[test]
fn flags_alone_make_a_configuration() {
    let flags = Flags {
        listen: vec!["127.0.0.1:6033".into(), "/run/m.sock".into()],
        server: vec!["a".into(), "b:3307".into()],
        monitor_user: Some("m".into()),
        monitor_password_file: None,
        http: Some("127.0.0.1:9104".into()),
        admin: None,
        admin_password_file: None,
    };
    let config = Config::from_flags(&flags, &environment()).unwrap();
    assert_eq!(config.listeners.len(), 2);
    assert_eq!(config.servers[1].address.to_string(), "b:3307");
    assert_eq!(config.monitor.password.password(), Some(&b"pst"[..]));
    let file = Flags {
        monitor_password_file: Some("/etc/m/secret".into()),
        ..flags
    };
    let config = Config::from_flags(&file, &environment()).unwrap();
    assert_eq!(config.monitor.password.password(), Some(&b"hush"[..]));
}

#[test]
fn wrong_flags_are_named() {
    let flags = Flags {
        listen: vec!["x".into()],
        server: vec!["a:b".into()],
        monitor_password_file: Some("/gone".into()),
        ..Flags::default()
    };
    let found: Vec<String> = Config::from_flags(&flags, &environment())
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        found,
        [
            "`x` has no port; write `x:3306` in --listen",
            "`b` in `a:b` is not a port in --server",
            "the flag names a file that cannot be read: no such file in --monitor-password-file",
        ]
    );
    let found = Config::from_flags(&Flags::default(), &environment()).unwrap_err();
    assert_eq!(
        found[0].to_string(),
        "no listener in the flags; give --listen ADDRESS"
    );
    assert_eq!(
        found[1].to_string(),
        "no server in the flags; give --server HOST:PORT"
    );
}

const SERVERS: &str = r#"
[[listen]]
address = "127.0.0.1:6033"
[[listen]]
address = "127.0.0.1:6034"
[[server]]
address = "db1"
zone = "a"
[[server]]
address = "db2"
zone = "b"
tags = ["olap"]
[[server]]
address = "db3"
zone = "b"
[monitor]
user = "m"
password_file = "secret"
"#;

#[test]
fn sets_and_rules_are_read() {
    use millrace_routing::Wanted;
    use millrace_routing::rules::{KindName, Network, Pattern, Rewrite, TableName};
    let text = format!(
        r#"{SERVERS}
[[server_set]]
name = "listed"
servers = ["db1:3306", "db3:3306"]
[[server_set]]
name = "zone b"
zone = "b"
[[server_set]]
name = "olap"
tag = "olap"
[[rule]]
name = "all"
account = ["app", "web"]
database = "shop"
client = ["10.0.0.0/8", "::1"]
listener = "127.0.0.1:6034"
kind = ["read", "call"]
digest = "0x1f"
table = ["shop.Orders", "users"]
match = "^SELECT"
tag = "report"
servers = "olap"
consistency = "eventual"
time_limit = "5s"
max_concurrent = 3
refuse = "no"
mirror = "listed"
rewrite = "LIMIT \\d+"
rewrite_to = "LIMIT 10"
continue = true
[[rule]]
to = "primary"
"#
    );
    let config = load(&text).unwrap();
    assert_eq!(config.sets["listed"], ServerSet::from(0b101));
    assert_eq!(config.sets["zone b"], ServerSet::from(0b110));
    assert_eq!(config.sets["olap"], ServerSet::from(0b010));
    let bytes = |text: &str| -> Box<[u8]> { text.as_bytes().into() };
    let [all, second] = &config.rules[..] else {
        panic!("two rules");
    };
    assert_eq!((&*all.name, all.goes_on), ("all", true));
    let when = &all.when;
    assert_eq!(when.accounts, [bytes("app"), bytes("web")]);
    assert_eq!(when.databases, [bytes("shop")]);
    let networks = ["10.0.0.0/8", "::1"].map(|text| Network::parse(text).unwrap());
    assert_eq!(when.clients, networks);
    assert_eq!(when.listeners, [1]);
    assert_eq!(when.kinds, [KindName::Read, KindName::Call]);
    assert_eq!(when.digests, [0x1f]);
    let tables = ["shop.orders", "users"].map(TableName::parse);
    assert_eq!(when.tables, tables);
    assert_eq!(when.pattern, Pattern::new("^SELECT").ok());
    assert_eq!(when.tags, ["report".into()]);
    let then = &all.then;
    assert_eq!(then.wanted, Some(Wanted::Servers(0b010.into())));
    assert_eq!(then.consistency, Some(Consistency::Eventual));
    assert_eq!(then.time_limit, Some(Duration::from_secs(5)));
    assert_eq!(then.concurrency, Some(3));
    assert_eq!(then.refuse.as_deref(), Some("no"));
    assert_eq!(then.mirror, Some(0b101));
    let rewrite = Rewrite {
        pattern: Pattern::new("LIMIT \\d+").unwrap(),
        template: bytes("LIMIT 10").into(),
    };
    assert_eq!(then.rewrite, Some(rewrite));
    assert_eq!(
        (&*second.name, second.then.wanted),
        ("rule 2", Some(Wanted::Primary))
    );
}

#[test]
fn what_is_wrong_with_a_rule_is_said() {
    let table = [
        ("[[rule]]\naccount = \"a\"", "this rule does nothing"),
        (
            "[[rule]]\nservers = \"x\"",
            "`servers` names the server set `x`, which there is not",
        ),
        (
            "[[rule]]\nto = \"primary\"\nmatch = \"(\"",
            "`match` is no regular expression",
        ),
        (
            "[[rule]]\nto = \"primary\"\nclient = \"10.0.0.0/99\"",
            "behind the / of `10.0.0.0/99` stands 0 to 32",
        ),
        (
            "[[rule]]\nto = \"primary\"\nkind = \"selects\"",
            "`kind` must be of \"read\", \"write\"",
        ),
        (
            "[[rule]]\nto = \"primary\"\ndigest = \"xyz\"",
            "`digest` must be a hash",
        ),
        (
            "[[rule]]\nto = \"primary\"\nlistener = \"1.2.3.4:5\"",
            "names the listener `1.2.3.4:5`, which there is not",
        ),
        (
            "[[rule]]\nrewrite = \"a\"",
            "`rewrite` and `rewrite_to` belong together",
        ),
        (
            "[[rule]]\nto = \"primary\"\nacount = \"a\"",
            "did you mean `account`?",
        ),
        (
            "[[rule]]\nname = \"a\"\nto = \"primary\"\n[[rule]]\nname = \"a\"\nto = \"primary\"",
            "the rule `a` is there already",
        ),
        ("[[server_set]]\nname = \"x\"", "this set has no servers"),
        (
            "[[server_set]]\nname = \"x\"\nservers = \"db9:3306\"",
            "names the server `db9:3306`, which there is not",
        ),
    ];
    for (text, expected) in table {
        let errors = load(&format!("{SERVERS}{text}\n")).unwrap_err();
        let errors = errors
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n");
        assert!(errors.contains(expected), "{text}\n{errors}");
    }
}

#[test]
fn the_settings_tell_all_but_the_secrets() {
    let text = format!(
        "{SMALL}[monitor]\nuser = \"m\"\npassword_file = \"secret\"\n[pool]\nwait_timeout = \
         \"90s\"\n[limits]\nmax_packet = \"1536KiB\"\n[admin]\npassword_file = \"secret\"\n"
    );
    let settings = load(&text).unwrap().settings();
    let find = |name: &str| {
        let found = settings.iter().find(|setting| setting.name == name);
        let found = found.unwrap_or_else(|| panic!("no {name}"));
        (&*found.value, found.is_default)
    };
    assert_eq!(find("listen[1].address"), ("*:1", false));
    assert_eq!(find("monitor.password"), ("(set)", false));
    assert_eq!(find("admin.password"), ("(set)", false));
    assert_eq!(find("pool.wait_timeout"), ("90s", false));
    assert_eq!(find("pool.max_connections"), ("100", true));
    assert_eq!(find("limits.max_packet"), ("1536KiB", false));
    assert_eq!(find("routing.wait_limit"), ("100ms", true));
    assert!(
        settings
            .iter()
            .all(|setting| !setting.value.contains("hush"))
    );
}

#[test]
fn rules_are_told_as_they_are_written() {
    let text = "[[server_set]]\nname = \"r\"\nservers = \"a:3306\"\n\
                [[rule]]\nname = \"n\"\naccount = [\"bi\", \"etl\"]\nkind = \"read\"\n\
                table = \"shop.orders\"\nservers = \"r\"\ntime_limit = \"60s\"\ncache = \"exact\"\n\
                continue = true\n";
    let rules = load(&format!("{SMALL}{text}")).unwrap().rule_texts();
    assert_eq!(rules[0].name, "n");
    assert_eq!(
        rules[0].when,
        "account = [bi, etl], kind = read, table = shop.orders"
    );
    assert_eq!(
        rules[0].then,
        "servers = r, time_limit = 1m, cache = exact, continue = true"
    );
}

#[test]
fn operators_by_flags_need_a_password() {
    let flags = Flags {
        listen: vec!["127.0.0.1:1".into()],
        server: vec!["a".into()],
        admin: Some("127.0.0.1:2".into()),
        ..Flags::default()
    };
    let errors = Config::from_flags(&flags, &environment()).unwrap_err();
    assert!(errors[0].to_string().contains("no password"), "{errors:?}");
    let flags = Flags {
        admin_password_file: Some("/etc/m/secret".into()),
        ..flags
    };
    let admin = Config::from_flags(&flags, &environment()).unwrap().admin;
    assert_eq!(admin.unwrap().address.to_string(), "127.0.0.1:2");
}

#[test]
fn operators_from_elsewhere_are_warned_about() {
    let warnings = |line: &str| {
        let text = format!("{SMALL}[admin]\npassword_file = \"secret\"\n{line}");
        load(&text).unwrap().warnings
    };
    assert!(warnings("").is_empty());
    assert!(warnings("listen = \"[::1]:9\"").is_empty());
    assert!(warnings("listen = \"*:9\"\ntls = \"required\"").is_empty());
    assert_eq!(warnings("listen = \"*:9\"").len(), 1);
}

#[test]
fn clients_that_nobody_asks_for_certificates_are_warned_about() {
    let warnings = |lines: &str| load(&format!("{SMALL}[tls]\n{lines}")).unwrap().warnings;
    let ca = "ca = \"ca.pem\"\n";
    assert!(warnings(ca).is_empty());
    for which in ["required", "optional"] {
        let which = format!("client_certificates = \"{which}\"\n");
        assert!(warnings(&format!("{ca}{which}")).is_empty());
    }
    assert_eq!(warnings("client_certificates = \"optional\"").len(), 1);
}

#[test]
fn a_time_to_live_belongs_to_a_rule_that_says_so() {
    let rule = |lines: &str| format!("{SMALL}[[rule]]\nname = \"r\"\n{lines}");
    let rules = load(&rule("cache = \"ttl\"\nttl = \"5s\"\n")).unwrap();
    assert_eq!(rules.rule_texts()[0].then, "cache = ttl, ttl = 5s");
    for wrong in [
        "cache = \"ttl\"\n",
        "ttl = \"5s\"\n",
        "cache = \"exact\"\nttl = \"5s\"\n",
    ] {
        let told = errors(&rule(wrong));
        assert!(told.contains("belong together"), "{wrong}: {told}");
    }
}

#[test]
fn a_share_is_a_part_of_a_whole() {
    let told = |share: &str| errors(&format!("{SMALL}[cache]\nverify = {share}\n"));
    for right in ["0", "0.0", "0.01", "1", "1.0"] {
        assert_eq!(told(right), "", "{right}");
    }
    for wrong in ["1.5", "-0.1", "2", "nan", "\"1\""] {
        let told = told(wrong);
        assert!(told.contains("a number from 0.0 to 1.0"), "{wrong}: {told}");
    }
}

#[test]
fn rules_for_a_cache_that_is_off_are_warned_about() {
    let warnings = |cache: &str, mode: &str| {
        let rule = format!("[[rule]]\nname = \"r\"\ncache = \"{cache}\"\n");
        let text = format!("{SMALL}{rule}[cache]\nmode = \"{mode}\"\n");
        load(&text).unwrap().warnings.len()
    };
    assert_eq!(warnings("exact", "off"), 1);
    assert_eq!(warnings("exact", "rules"), 0);
    assert_eq!(warnings("never", "off"), 0);
}

#[test]
fn more_workers_than_connections_are_warned_about() {
    let warnings = |workers: &str| {
        let text = format!("workers = {workers}\n{SMALL}[pool]\nmax_connections = 2");
        load(&text).unwrap().warnings.len()
    };
    assert_eq!(["\"auto\"", "2", "3"].map(warnings), [0, 0, 1]);
}

#[test]
fn workers_wait_for_milliseconds_at_most() {
    let told = |limit: &str| errors(&format!("coalesce_limit = \"{limit}\"\n{SMALL}"));
    assert_eq!(told("10ms"), "");
    assert_eq!(told("0s"), "");
    let wrong = told("11ms");
    assert!(
        wrong.contains("must be from 0 (never) to \"10ms\", not 11ms"),
        "{wrong}"
    );
}

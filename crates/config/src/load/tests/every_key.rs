use super::*;

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

mod every_key;
mod mistakes;

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

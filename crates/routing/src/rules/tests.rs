use std::collections::HashMap;
use std::net::IpAddr;

use millrace_sql::{Access, Hint, Kind};
use proptest::prelude::*;

use super::*;
use crate::ServerSet;

fn rule(name: &str, when: When, then: Then) -> Rule {
    Rule {
        name: name.into(),
        when,
        then,
        goes_on: false,
    }
}

fn to(wanted: Wanted) -> Then {
    Then {
        wanted: Some(wanted),
        ..Then::default()
    }
}

const WHO: Who<'static> = Who {
    account: b"app",
    database: b"shop",
    address: Some(IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 2, 3))),
    listener: 0,
};

const READ: Facts<'static> = Facts {
    kind: Kind::Select,
    access: Access::Read,
    tables: &[],
    database: b"shop",
    digest: 7,
    normalised: b"SELECT `a` FROM `orders` WHERE `id` = ?",
    tags: &[],
};

fn matches(when: When, who: &Who<'_>, facts: &Facts<'_>) -> bool {
    let rules = Rules::new(vec![rule("r", when, Then::default())]).unwrap();
    let found = rules.directions(&rules.select(who), facts).matched;
    assert_eq!(found, rules.directions_naively(who, facts).matched);
    !found.is_empty()
}

#[test]
fn each_condition_is_looked_at() {
    let orders = [TableName::parse("Orders")];
    let facts = Facts {
        tables: &orders,
        tags: &["report"],
        ..READ
    };
    let bytes = |text: &str| vec![text.as_bytes().into()];
    let table: &[(&str, When, bool)] = &[
        ("nothing", When::default(), true),
        (
            "account",
            When {
                accounts: bytes("app"),
                ..When::default()
            },
            true,
        ),
        (
            "other account",
            When {
                accounts: bytes("App"),
                ..When::default()
            },
            false,
        ),
        (
            "database",
            When {
                databases: bytes("shop"),
                ..When::default()
            },
            true,
        ),
        (
            "other database",
            When {
                databases: bytes("stock"),
                ..When::default()
            },
            false,
        ),
        (
            "network",
            When {
                clients: vec![Network::parse("10.0.0.0/8").unwrap()],
                ..When::default()
            },
            true,
        ),
        (
            "other network",
            When {
                clients: vec![Network::parse("10.1.2.4").unwrap()],
                ..When::default()
            },
            false,
        ),
        (
            "listener",
            When {
                listeners: vec![3, 0],
                ..When::default()
            },
            true,
        ),
        (
            "other listener",
            When {
                listeners: vec![3],
                ..When::default()
            },
            false,
        ),
        (
            "kind",
            When {
                kinds: vec![KindName::Delete, KindName::Read],
                ..When::default()
            },
            true,
        ),
        (
            "other kind",
            When {
                kinds: vec![KindName::Write],
                ..When::default()
            },
            false,
        ),
        (
            "digest",
            When {
                digests: vec![7],
                ..When::default()
            },
            true,
        ),
        (
            "other digest",
            When {
                digests: vec![8],
                ..When::default()
            },
            false,
        ),
        (
            "table",
            When {
                tables: vec![TableName::parse("orders")],
                ..When::default()
            },
            true,
        ),
        (
            "table of a database",
            When {
                tables: vec![TableName::parse("shop.ORDERS")],
                ..When::default()
            },
            true,
        ),
        (
            "of another",
            When {
                tables: vec![TableName::parse("stock.orders")],
                ..When::default()
            },
            false,
        ),
        (
            "pattern",
            When {
                pattern: Some(Pattern::new("^SELECT .* FROM `orders`").unwrap()),
                ..When::default()
            },
            true,
        ),
        (
            "other pattern",
            When {
                pattern: Some(Pattern::new("^UPDATE").unwrap()),
                ..When::default()
            },
            false,
        ),
        (
            "tag",
            When {
                tags: vec!["report".into()],
                ..When::default()
            },
            true,
        ),
        (
            "other tag",
            When {
                tags: vec!["reports".into()],
                ..When::default()
            },
            false,
        ),
        (
            "two, one of which fails",
            When {
                digests: vec![7],
                listeners: vec![1],
                ..When::default()
            },
            false,
        ),
    ];
    for (what, when, expected) in table {
        assert_eq!(matches(when.clone(), &WHO, &facts), *expected, "{what}");
    }
}

#[test]
fn the_first_match_decides_unless_it_goes_on() {
    let mut rules = vec![
        rule("count", When::default(), Then::default()),
        rule("primary", When::default(), to(Wanted::Primary)),
        rule("never", When::default(), to(Wanted::Replica)),
    ];
    rules[0].goes_on = true;
    let rules = Rules::new(rules).unwrap();
    let found = rules.directions(&rules.select(&WHO), &READ);
    assert_eq!(
        (found.wanted, &found.matched[..]),
        (Some(Wanted::Primary), &[0, 1][..])
    );
}

#[test]
fn of_what_several_say_the_first_counts() {
    let mut rules = vec![
        rule("a", When::default(), to(Wanted::Replica)),
        rule(
            "b",
            When::default(),
            Then {
                wanted: Some(Wanted::Primary),
                consistency: Some(Consistency::Global),
                concurrency: Some(2),
                ..Then::default()
            },
        ),
        rule(
            "c",
            When::default(),
            Then {
                concurrency: Some(9),
                cache: Some(Caching::Exact),
                ..Then::default()
            },
        ),
        rule(
            "d",
            When::default(),
            Then {
                cache: Some(Caching::Never),
                ..Then::default()
            },
        ),
    ];
    for rule in &mut rules {
        rule.goes_on = true;
    }
    let rules = Rules::new(rules).unwrap();
    let found = rules.directions(&rules.select(&WHO), &READ);
    assert_eq!(found.wanted, Some(Wanted::Replica));
    assert_eq!(found.consistency, Some(Consistency::Global));
    assert_eq!(found.limited_by, Some(1));
    assert_eq!(found.cache, Some(Caching::Exact));
}

#[test]
fn a_hint_counts_more_than_a_rule_about_memory() {
    let said = Directions {
        cache: Some(Caching::Exact),
        ..Directions::default()
    };
    let sets = HashMap::from([("s".to_owned(), ServerSet::from(1))]);
    let with = |hint: Hint<'_>| said.with_hint(&hint, &sets).cache;
    assert_eq!(with(Hint::default()), Some(Caching::Exact));
    let level = Hint {
        consistency: Some("eventual"),
        ..Hint::default()
    };
    assert_eq!(with(level), Some(Caching::Exact));
    for hint in [
        Hint {
            no_cache: true,
            ..Hint::default()
        },
        Hint {
            primary: Some(true),
            ..Hint::default()
        },
        Hint {
            servers: Some("s"),
            ..Hint::default()
        },
    ] {
        assert_eq!(with(hint), Some(Caching::Never));
    }
}

#[test]
fn networks_are_read_and_hold_what_is_in_them() {
    let table = [
        ("10.0.0.0/8", "10.255.0.1", true),
        ("10.0.0.0/8", "11.0.0.1", false),
        ("10.1.2.3", "10.1.2.3", true),
        ("10.1.2.3", "10.1.2.2", false),
        ("0.0.0.0/0", "1.2.3.4", true),
        ("0.0.0.0/0", "::1", false),
        ("fe80::/10", "fe80::1", true),
        ("fe80::/10", "fec0::1", false),
        ("10.0.0.0/8", "::ffff:10.1.1.1", true),
        ("::/0", "fe80::1", true),
    ];
    for (network, address, expected) in table {
        let network = Network::parse(network).unwrap();
        assert_eq!(
            network.contains(address.parse().unwrap()),
            expected,
            "{network} {address}"
        );
    }
    for wrong in [
        "",
        "10.0.0.0/33",
        "10.0.0/8",
        "fe80::/129",
        "10.0.0.0/x",
        "host",
    ] {
        assert!(Network::parse(wrong).is_err(), "{wrong}");
    }
}

const WORDS: [&str; 6] = ["orders", "users", "items", "a", "b", "shop"];

fn some<T: Clone + std::fmt::Debug + 'static>(of: Vec<T>) -> impl Strategy<Value = Vec<T>> {
    prop_oneof![
        3 => Just(Vec::new()),
        1 => prop::collection::vec(prop::sample::select(of), 1..3),
    ]
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let bytes = |words: &[&str]| words.iter().map(|word| word.as_bytes().into()).collect();
    let tables = WORDS
        .iter()
        .flat_map(|word| [(*word).to_owned(), format!("shop.{word}")]);
    (
        some::<Box<[u8]>>(bytes(&WORDS)),
        some::<Box<[u8]>>(bytes(&WORDS)),
        some((0..4).collect::<Vec<u16>>()),
        some(KindName::ALL.map(|(_, kind)| kind).to_vec()),
        some((0..6).collect::<Vec<u64>>()),
        some(tables.map(|name| TableName::parse(&name)).collect()),
        prop::option::weighted(0.3, prop::sample::select(WORDS.to_vec())),
        some(WORDS.map(Into::into).to_vec()),
        any::<bool>(),
        0_u64..8,
    )
        .prop_map(
            |(
                accounts,
                databases,
                listeners,
                kinds,
                digests,
                tables,
                pattern,
                tags,
                goes_on,
                bits,
            )| Rule {
                name: "r".into(),
                when: When {
                    accounts,
                    databases,
                    clients: Vec::new(),
                    listeners,
                    kinds,
                    digests,
                    tables,
                    pattern: pattern.map(|word| Pattern::new(word).unwrap()),
                    tags,
                },
                then: Then {
                    wanted: (bits > 0).then_some(Wanted::Servers(ServerSet::from(bits))),
                    concurrency: (bits % 3 == 1).then_some(1),
                    ..Then::default()
                },
                goes_on,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_thousand_rules_say_what_looking_at_each_says(
        rules in prop::collection::vec(any_rule(), 1_000),
        statements in prop::collection::vec(
            (
                prop::sample::select(WORDS.to_vec()),
                prop::sample::select(WORDS.to_vec()),
                0_u16..4,
                prop::sample::select(vec![
                    (Kind::Select, Access::Read),
                    (Kind::Select, Access::Write),
                    (Kind::Insert, Access::Write),
                    (Kind::Set, Access::Session),
                    (Kind::Begin, Access::Write),
                ]),
                0_u64..7,
                prop::collection::vec(prop::sample::select(WORDS.to_vec()), 0..3),
                prop::collection::vec(prop::sample::select(WORDS.to_vec()), 0..2),
            ),
            20,
        ),
    ) {
        let rules = Rules::new(rules).unwrap();
        for (account, database, listener, (kind, access), digest, tables, tags) in statements {
            let who = Who {
                account: account.as_bytes(),
                database: database.as_bytes(),
                address: None,
                listener,
            };
            let normalised = tables.join(" ");
            let tables: Vec<TableName> = tables.iter().map(|name| TableName::parse(name)).collect();
            let facts = Facts {
                kind,
                access,
                tables: &tables,
                database: database.as_bytes(),
                digest,
                normalised: normalised.as_bytes(),
                tags: &tags,
            };
            let fast = rules.directions(&rules.select(&who), &facts);
            let naive = rules.directions_naively(&who, &facts);
            prop_assert_eq!(&fast.matched, &naive.matched);
            prop_assert_eq!(fast.wanted, naive.wanted);
            prop_assert_eq!(fast.limited_by, naive.limited_by);
        }
    }
}

//! `[[server_set]]` and `[[rule]]`: named sets of servers, and rules for query routing. What their keys
//! may name depends on the tables before them.

use std::collections::HashMap;
use std::time::Duration;

use millrace_routing::rules::{
    Caching, KindName, Network, Pattern, Rewrite, Rule, TableName, Then,
};
use millrace_routing::{Balance, ServerSet, Wanted};
use toml::de::DeValue;

use crate::environment::Context;
use crate::key::{Key, key, read_all};
use crate::kind::{Choice, Flag, Kind, Maybe, Own, Text, number, time};
use crate::section::Section;
use crate::value::{Wrong, text, texts};
use crate::words::{BALANCE, CACHING, CONSISTENCY, CacheWord, TO};
use crate::{Listener, Server};

type Parsed<V> = Result<V, Wrong>;

/// Sets hold the first so many servers: a bit for each.
const SERVERS_MAX: usize = 64;

/// Named sets of servers, for rules and hints.
pub(crate) const SERVER_SET: &str = "A set of servers by name, for rules and hints: docs/routing.md. It has the servers that `servers` lists, and \
     those of a zone or with a tag.";

/// A set as it is read.
#[derive(Default)]
pub(crate) struct SetDraft {
    name: String,
    listed: u64,
    zone: Option<String>,
    tag: Option<String>,
    balance: Option<Balance>,
}

pub(crate) fn set_keys(servers: &[Server]) -> Vec<Key<'_, SetDraft>> {
    vec![
        key!(SetDraft: "name", name, Text, "Its name.")
            .required()
            .given("analytics"),
        key!(SetDraft: "servers", listed, Listed(servers), "Servers, by their addresses.")
            .example("127.0.0.1:3308"),
        key!(SetDraft: "zone", zone, Maybe(Text), "All servers of this zone.").example("a"),
        key!(SetDraft: "tag", tag, Maybe(Text), "All servers with this tag.").given("analytics"),
        key!(SetDraft: "balance", balance, Maybe(Choice(BALANCE)),
            "How its servers share reads, where that is not as `[routing]` says.")
        .example("round_robin"),
    ]
}

/// Reads a set and its name.
pub(crate) fn read_set(section: &Section<'_>, servers: &[Server]) -> Option<(String, ServerSet)> {
    let mut draft = SetDraft::default();
    let is_named = read_all(&set_keys(servers), section, &mut draft);
    let in_it = |server: &Server| {
        draft.zone.as_ref() == Some(&server.zone)
            || draft
                .tag
                .as_ref()
                .is_some_and(|tag| server.tags.contains(tag))
    };
    let bits = (0..SERVERS_MAX)
        .zip(servers)
        .filter(|(_, server)| in_it(server))
        .fold(draft.listed, |bits, (at, _)| bits | 1 << at);
    if bits == 0 {
        section.missing("this set has no servers: name them with `servers`, `zone` or `tag`");
    }
    let balance = draft.balance;
    is_named.then_some((draft.name, ServerSet { bits, balance }))
}

/// Servers by address, as bits.
struct Listed<'a>(&'a [Server]);

impl Kind<u64> for Listed<'_> {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<u64> {
        let is_at = |address: &String| {
            let mut servers = self.0.iter();
            let at = servers.position(|server| server.address.to_string() == *address);
            at.filter(|at| *at < SERVERS_MAX)
                .ok_or_else(|| unknown("server", address))
        };
        texts(value)?
            .iter()
            .try_fold(0, |bits, address| Ok(bits | 1 << is_at(address)?))
    }

    fn show(&self, _: &u64) -> String {
        String::new()
    }

    fn takes(&self) -> String {
        "address, or a list of addresses".to_owned()
    }
}

fn unknown(what: &str, name: &str) -> Wrong {
    Wrong::new(format!("names the {what} `{name}`, which there is not"))
}

/// What a rule may name.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    pub(crate) sets: &'a HashMap<String, ServerSet>,
    pub(crate) listeners: &'a [Listener],
}

impl Names<'_> {
    fn set(&self, value: &DeValue<'_>) -> Parsed<ServerSet> {
        let name = text(value)?;
        let set = self.sets.get(&name).copied();
        set.ok_or_else(|| unknown("server set", &name))
    }

    /// The name of a set; the first of several that are alike.
    fn name_of(&self, bits: u64) -> String {
        let alike = self.sets.iter().filter(|(_, set)| set.bits == bits);
        let first = alike.map(|(name, _)| name.as_str()).min();
        first.unwrap_or_default().to_owned()
    }
}

/// Rules for query routing.
pub(crate) const RULE: &str = "A rule for query routing: docs/routing.md. Rules are asked in order. The keys up to `tag` say which statements \
     it is for; without any it is for all. The others say what it does.";

/// A rule as it is read.
pub(crate) struct RuleDraft {
    pub(crate) rule: Rule,
    /// `rewrite` and `rewrite_to`, which belong together.
    pattern: Option<Pattern>,
    template: Option<String>,
    /// `cache` and `ttl`, which belong together where the first says so.
    cache: Option<CacheWord>,
    ttl: Option<Duration>,
}

impl RuleDraft {
    /// What a rule is of.
    pub(crate) fn of(rule: Rule) -> Self {
        let rewrite = rule.then.rewrite.as_ref();
        RuleDraft {
            pattern: rewrite.map(|rewrite| rewrite.pattern.clone()),
            template: rewrite
                .map(|rewrite| String::from_utf8_lossy(&rewrite.template).into_owned()),
            cache: rule.then.cache.map(|caching| match caching {
                Caching::Never => CacheWord::Never,
                Caching::Exact => CacheWord::Exact,
                Caching::Within(_) => CacheWord::Ttl,
            }),
            ttl: match rule.then.cache {
                Some(Caching::Within(ttl)) => Some(ttl),
                _ => None,
            },
            rule,
        }
    }

    /// An empty rule, for documents.
    pub(crate) fn none() -> Self {
        RuleDraft::of(nameless(String::new()))
    }
}

fn nameless(name: String) -> Rule {
    Rule {
        name: name.into(),
        when: Default::default(),
        then: Then::default(),
        goes_on: false,
    }
}

pub(crate) fn name_key() -> Key<'static, RuleDraft> {
    key!(RuleDraft: "name", rule.name, Text, "Its name, for metrics and EXPLAIN ROUTE; `rule` and its number \
        where it has none.")
        .example("reports")
}

/// Which statements a rule is for.
pub(crate) fn when_keys<'a>(names: Names<'a>) -> Vec<Key<'a, RuleDraft>> {
    vec![
        key!(RuleDraft: "account", rule.when.accounts, NAMES, "Accounts, by name.")
            .given("reports"),
        key!(RuleDraft: "database", rule.when.databases, NAMES, "Default databases.")
            .example("shop"),
        key!(RuleDraft: "client", rule.when.clients, NETWORKS,
            "Networks that the client is in. A client on a Unix socket is in none.")
        .example("10.0.0.0/8"),
        key!(RuleDraft: "listener", rule.when.listeners, Listeners(names.listeners),
            "Listeners, by their addresses.")
        .example("127.0.0.1:6033"),
        key!(RuleDraft: "kind", rule.when.kinds, KINDS, "Kinds of statements.").example("read"),
        key!(RuleDraft: "digest", rule.when.digests, DIGESTS,
            "Hashes of normalised texts, as EXPLAIN ROUTE shows them.")
        .example("0x1f3a5b7c9d0e2f41"),
        key!(RuleDraft: "table", rule.when.tables, TABLES,
            "Tables that it names, among others perhaps; with or without their database.")
        .example("shop.orders"),
        key!(RuleDraft: "match", rule.when.pattern, Maybe(PATTERN),
            "A regular expression that matches somewhere in the normalised text.")
        .example("^SELECT"),
        key!(RuleDraft: "tag", rule.when.tags, TAGS, "Tags in its comments.").example("report"),
    ]
}

/// What a rule does.
pub(crate) fn then_keys<'a>(names: Names<'a>) -> Vec<Key<'a, RuleDraft>> {
    vec![
        key!(RuleDraft: "to", rule.then.wanted, Maybe(Choice(TO)),
            "Where the statement goes, if it may run there.")
        .example("replicas"),
        key!(RuleDraft: "servers", rule.then.wanted, OneOf(names),
            "It goes to one of the servers of this set, if it may run there.")
        .given("analytics"),
        key!(RuleDraft: "consistency", rule.then.consistency, Maybe(Choice(CONSISTENCY)),
            "What it must see.")
        .given("eventual"),
        key!(RuleDraft: "time_limit", rule.then.time_limit, Maybe(time(Duration::from_millis(1))),
            "It is ended on its server after this.")
        .example("60s"),
        key!(RuleDraft: "max_concurrent", rule.then.concurrency, Maybe(number(1, 1_000_000)),
            "The number of the rule's statements that run at once; others wait.")
        .example("4"),
        key!(RuleDraft: "refuse", rule.then.refuse, Maybe(Text), "It is refused, with this text.")
            .example("not here"),
        key!(RuleDraft: "mirror", rule.then.mirror, Maybe(Bits(names)),
            "It is sent to the servers of this set too; their answers are dropped.")
        .example("analytics"),
        key!(RuleDraft: "rewrite", pattern, Maybe(PATTERN),
            "A regular expression; what it matches is replaced by `rewrite_to`.")
        .example("LIMIT \\d+"),
        key!(RuleDraft: "rewrite_to", template, Maybe(Text), "What stands there instead.")
            .example("LIMIT 10"),
        key!(RuleDraft: "cache", cache, Maybe(Choice(CACHING)),
            "`exact`: its results are kept in memory, also where the rule names servers or `cache.mode` is `rules`. \
             `ttl`: they are kept and served for as long as `ttl` says, whatever is written. `never`: a server answers \
             each time.")
        .example("exact"),
        key!(RuleDraft: "ttl", ttl, Maybe(time(Duration::from_millis(1))),
            "For how long results are served where `cache` is `ttl`.")
        .example("5s"),
    ]
}

pub(crate) fn continue_key() -> Key<'static, RuleDraft> {
    key!(RuleDraft: "continue", rule.goes_on, Flag,
        "The rules behind it are asked as well. A rule that does nothing else counts only.")
}

/// Reads a rule; `number` names it where it has no name.
pub(crate) fn read_rule(section: &Section<'_>, number: usize, names: &Names<'_>) -> Rule {
    let mut draft = RuleDraft::of(nameless(format!("rule {number}")));
    name_key().read(section, &mut draft);
    continue_key().read(section, &mut draft);
    read_all(&when_keys(*names), section, &mut draft);
    read_all(&then_keys(*names), section, &mut draft);
    let mut rule = draft.rule;
    match (draft.pattern, draft.template) {
        (Some(pattern), Some(template)) => {
            rule.then.rewrite = Some(Rewrite {
                pattern,
                template: template.into_bytes().into(),
            });
        }
        (None, None) => {}
        _ => section.missing("`rewrite` and `rewrite_to` belong together"),
    }
    rule.then.cache = match (draft.cache, draft.ttl) {
        (Some(CacheWord::Ttl), Some(ttl)) => Some(Caching::Within(ttl)),
        (Some(CacheWord::Ttl), None) | (_, Some(_)) => {
            section.missing("`cache = \"ttl\"` and `ttl` belong together");
            None
        }
        (Some(CacheWord::Never), None) => Some(Caching::Never),
        (Some(CacheWord::Exact), None) => Some(Caching::Exact),
        (None, None) => None,
    };
    if rule.then == Then::default() && !rule.goes_on {
        section.missing(
            "this rule does nothing: give it `to`, `servers`, `consistency`, `time_limit`, \
             `max_concurrent`, `refuse`, `mirror`, `rewrite` or `cache`, or let it count only, with \
             `continue = true`",
        );
    }
    rule
}

/// One of something, or a list.
struct Each<V> {
    parse: fn(&str) -> Parsed<V>,
    show: fn(&V) -> String,
    takes: &'static str,
}

impl<V> Kind<Vec<V>> for Each<V> {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<Vec<V>> {
        texts(value)?
            .iter()
            .map(|text| (self.parse)(text))
            .collect()
    }

    fn show(&self, value: &Vec<V>) -> String {
        list(value.iter().map(self.show))
    }

    fn takes(&self) -> String {
        format!("{}, or a list", self.takes)
    }
}

/// As it would stand in the file, without quotes; empty for none.
fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    match &items[..] {
        [] => String::new(),
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

const NAMES: Each<Box<[u8]>> = Each {
    parse: |text| Ok(text.as_bytes().into()),
    show: |name| String::from_utf8_lossy(name).into_owned(),
    takes: "name",
};

const TAGS: Each<Box<str>> = Each {
    parse: |text| Ok(text.into()),
    show: |tag| tag.to_string(),
    takes: "text",
};

const NETWORKS: Each<Network> = Each {
    parse: |text| Network::parse(text).map_err(|why| Wrong::new(format!("is wrong: {why}"))),
    show: ToString::to_string,
    takes: "network or address",
};

const KINDS: Each<KindName> = Each {
    parse: |name| {
        let known = KindName::ALL.iter().find(|(known, _)| *known == name);
        known.map(|(_, kind)| *kind).ok_or_else(|| {
            let names = KindName::ALL.map(|(name, _)| format!("\"{name}\""));
            Wrong::new(format!("must be of {}, not \"{name}\"", names.join(", ")))
        })
    },
    show: |kind| {
        let known = KindName::ALL.iter().find(|(_, known)| known == kind);
        known.map_or("", |(name, _)| *name).to_owned()
    },
    takes: "kind",
};

const DIGESTS: Each<u64> = Each {
    parse: |text| {
        let digits = text.trim_start_matches("0x");
        u64::from_str_radix(digits, 16)
            .map_err(|_| Wrong::new(format!("must be a hash such as 0x1f3a…, not \"{text}\"")))
    },
    show: |digest| format!("0x{digest:016x}"),
    takes: "hash",
};

const TABLES: Each<TableName> = Each {
    parse: |name| Ok(TableName::parse(name)),
    show: |table| {
        let name = String::from_utf8_lossy(&table.name);
        match &table.schema {
            Some(schema) => format!("{}.{name}", String::from_utf8_lossy(schema)),
            None => name.into_owned(),
        }
    },
    takes: "table",
};

const PATTERN: Own<Pattern> = Own {
    parse: |value| {
        let text = text(value)?;
        Pattern::new(&text).map_err(|error| {
            let why = error.to_string();
            let last = why.lines().last().unwrap_or_default();
            Wrong::new(format!("is no regular expression: {last}"))
        })
    },
    show: |pattern| pattern.as_str().to_owned(),
    takes: "regular expression",
};

/// Listeners by address, as numbers.
struct Listeners<'a>(&'a [Listener]);

impl Kind<Vec<u16>> for Listeners<'_> {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<Vec<u16>> {
        let number = |address: &String| {
            let mut listeners = (0..).zip(self.0);
            let found = listeners.find(|(_, it)| it.address.to_string() == *address);
            found
                .map(|(number, _)| number)
                .ok_or_else(|| unknown("listener", address))
        };
        texts(value)?.iter().map(number).collect()
    }

    fn show(&self, value: &Vec<u16>) -> String {
        let address = |number: &u16| {
            let listener = self.0.get(usize::from(*number));
            listener.map_or_else(String::new, |listener| listener.address.to_string())
        };
        list(value.iter().map(address))
    }

    fn takes(&self) -> String {
        "address, or a list".to_owned()
    }
}

/// A set's name, for the servers in it.
struct OneOf<'a>(Names<'a>);

impl Kind<Option<Wanted>> for OneOf<'_> {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<Option<Wanted>> {
        Ok(Some(Wanted::Servers(self.0.set(value)?)))
    }

    fn show(&self, value: &Option<Wanted>) -> String {
        match value {
            Some(Wanted::Servers(set)) => self.0.name_of(set.bits),
            _ => String::new(),
        }
    }

    fn takes(&self) -> String {
        "name of a set".to_owned()
    }
}

/// A set's name, for the bits of its servers.
struct Bits<'a>(Names<'a>);

impl Kind<u64> for Bits<'_> {
    fn parse(&self, _: &Context<'_>, value: &DeValue<'_>) -> Parsed<u64> {
        Ok(self.0.set(value)?.bits)
    }

    fn show(&self, value: &u64) -> String {
        self.0.name_of(*value)
    }

    fn takes(&self) -> String {
        "name of a set".to_owned()
    }
}

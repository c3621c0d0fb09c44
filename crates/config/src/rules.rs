//! `[[server_set]]` and `[[rule]]`: named sets of servers, and rules for query routing.

use std::collections::HashMap;
use std::time::Duration;

use millrace_routing::rules::{KindName, Network, Pattern, Rewrite, Rule, TableName, Then, When};
use millrace_routing::{ServerSet, Wanted};
use toml::de::DeValue;

use crate::load::{BALANCE, CONSISTENCY};
use crate::section::Section;
use crate::value::{Wrong, choice, duration, flag, number, text, texts};
use crate::{Listener, Server};

/// Sets hold the first so many servers: a bit for each.
const SERVERS_MAX: usize = 64;

/// Reads a set and its name.
pub(crate) fn read_set(section: &Section<'_>, servers: &[Server]) -> Option<(String, ServerSet)> {
    let mut name = None;
    section.read_required("name", &mut name, text);
    let (mut listed, mut zone, mut tag) = (0, None, None);
    section.read("servers", &mut listed, |value| {
        texts(value)?.iter().try_fold(0, |bits, address| {
            Ok(bits
                | bit_of(servers, |server| server.address.to_string() == *address)
                    .ok_or_else(|| unknown("server", address))?)
        })
    });
    section.read_some("zone", &mut zone, text);
    section.read_some("tag", &mut tag, text);
    let in_it = |server: &Server| {
        zone.as_ref() == Some(&server.zone)
            || tag.as_ref().is_some_and(|tag| server.tags.contains(tag))
    };
    let bits = (0..SERVERS_MAX)
        .zip(servers)
        .filter(|(_, server)| in_it(server))
        .fold(listed, |bits, (at, _)| bits | 1 << at);
    if bits == 0 {
        section.missing("this set has no servers: name them with `servers`, `zone` or `tag`");
    }
    let mut balance = None;
    section.read_some("balance", &mut balance, choice(BALANCE));
    Some((name?, ServerSet { bits, balance }))
}

fn bit_of(servers: &[Server], test: impl Fn(&Server) -> bool) -> Option<u64> {
    let at = servers.iter().position(test)?;
    (at < SERVERS_MAX).then(|| 1 << at)
}

fn unknown(what: &str, name: &str) -> Wrong {
    Wrong::new(format!("names the {what} `{name}`, which there is not"))
}

/// What a rule may name.
pub(crate) struct Names<'a> {
    pub(crate) sets: &'a HashMap<String, ServerSet>,
    pub(crate) listeners: &'a [Listener],
}

/// Reads a rule; `number` names it where it has no name.
pub(crate) fn read_rule(section: &Section<'_>, number: usize, names: &Names<'_>) -> Rule {
    let mut name = format!("rule {number}");
    section.read("name", &mut name, text);
    let mut goes_on = false;
    section.read("continue", &mut goes_on, flag);
    let rule = Rule {
        name: name.into(),
        when: read_when(section, names),
        then: read_then(section, names),
        goes_on,
    };
    if rule.then == Then::default() && !goes_on {
        section.missing(
            "this rule does nothing: give it `to`, `servers`, `consistency`, `time_limit`, \
             `max_concurrent`, `refuse`, `mirror` or `rewrite`, or let it count only, with \
             `continue = true`",
        );
    }
    rule
}

fn read_when(section: &Section<'_>, names: &Names<'_>) -> When {
    let mut when = When::default();
    section.read("account", &mut when.accounts, bytes);
    section.read("database", &mut when.databases, bytes);
    section.read("client", &mut when.clients, |value| {
        let networks = texts(value)?;
        let networks = networks.iter().map(|text| Network::parse(text));
        networks
            .collect::<Result<_, _>>()
            .map_err(|why| Wrong::new(format!("is wrong: {why}")))
    });
    section.read("listener", &mut when.listeners, |value| {
        texts(value)?
            .iter()
            .map(|address| {
                (0..)
                    .zip(names.listeners)
                    .find(|(_, listener)| listener.address.to_string() == *address)
                    .map(|(number, _)| number)
                    .ok_or_else(|| unknown("listener", address))
            })
            .collect()
    });
    section.read("kind", &mut when.kinds, |value| {
        texts(value)?.iter().map(|name| kind(name)).collect()
    });
    section.read("digest", &mut when.digests, |value| {
        texts(value)?.iter().map(|hash| digest(hash)).collect()
    });
    section.read("table", &mut when.tables, |value| {
        Ok(texts(value)?
            .iter()
            .map(|name| TableName::parse(name))
            .collect())
    });
    section.read_some("match", &mut when.pattern, pattern);
    section.read("tag", &mut when.tags, |value| {
        Ok(texts(value)?.into_iter().map(Into::into).collect())
    });
    when
}

fn read_then(section: &Section<'_>, names: &Names<'_>) -> Then {
    let mut then = Then::default();
    let set = |value: &DeValue<'_>| {
        let name = text(value)?;
        let set = names.sets.get(&name).copied();
        set.ok_or_else(|| unknown("server set", &name))
    };
    section.read_some(
        "to",
        &mut then.wanted,
        choice(&[("primary", Wanted::Primary), ("replicas", Wanted::Replica)]),
    );
    section.read_some("servers", &mut then.wanted, |value| {
        set(value).map(Wanted::Servers)
    });
    section.read_some("consistency", &mut then.consistency, choice(CONSISTENCY));
    section.read_some(
        "time_limit",
        &mut then.time_limit,
        duration(Duration::from_millis(1)),
    );
    section.read_some(
        "max_concurrent",
        &mut then.concurrency,
        number(1, 1_000_000),
    );
    section.read_some("refuse", &mut then.refuse, |value| Ok(text(value)?.into()));
    section.read_some("mirror", &mut then.mirror, |value| {
        set(value).map(|set| set.bits)
    });
    let (mut what, mut by) = (None, None);
    section.read_some("rewrite", &mut what, pattern);
    section.read_some("rewrite_to", &mut by, text);
    match (what, by) {
        (Some(pattern), Some(template)) => {
            then.rewrite = Some(Rewrite {
                pattern,
                template: template.into_bytes().into(),
            });
        }
        (None, None) => {}
        _ => section.missing("`rewrite` and `rewrite_to` belong together"),
    }
    then
}

fn bytes(value: &DeValue<'_>) -> Result<Vec<Box<[u8]>>, Wrong> {
    let texts = texts(value)?;
    Ok(texts
        .into_iter()
        .map(|text| text.into_bytes().into())
        .collect())
}

fn pattern(value: &DeValue<'_>) -> Result<Pattern, Wrong> {
    let text = text(value)?;
    Pattern::new(&text).map_err(|error| {
        let why = error.to_string();
        let last = why.lines().last().unwrap_or_default();
        Wrong::new(format!("is no regular expression: {last}"))
    })
}

fn kind(name: &str) -> Result<KindName, Wrong> {
    let known = KindName::ALL.iter().find(|(known, _)| *known == name);
    known.map(|(_, kind)| *kind).ok_or_else(|| {
        let names = KindName::ALL.map(|(name, _)| format!("\"{name}\""));
        Wrong::new(format!("must be of {}, not \"{name}\"", names.join(", ")))
    })
}

fn digest(text: &str) -> Result<u64, Wrong> {
    let digits = text.trim_start_matches("0x");
    u64::from_str_radix(digits, 16)
        .map_err(|_| Wrong::new(format!("must be a hash such as 0x1f3a…, not \"{text}\"")))
}

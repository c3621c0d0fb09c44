//! Says in words what would become of a statement, and why: the answer of EXPLAIN ROUTE. Decides
//! with [`decide`] itself, so that it cannot say anything else than what happens.

use std::fmt::Write;

use millrace_sql::{Flags, Kind, Statement};
use millrace_topology::{GtidSet, ServerView, Snapshot};

use crate::rules::{Caching, Directions, Rules};
use crate::{
    Access, Consistency, Decision, Load, Options, SessionView, Target, Transaction, Wanted, decide,
};

/// Everything that the decision depends on.
pub struct Question<'a> {
    /// The statement.
    pub text: &'a [u8],
    /// What it is.
    pub class: &'a Statement,
    /// What it needs, stored routines and views looked at.
    pub access: Access,
    /// What rules and hints say.
    pub directions: Option<&'a Directions>,
    /// Items of its hint that are not known.
    pub unknown_hint: Option<&'a str>,
    /// All rules.
    pub rules: &'a Rules,
    /// Why the session keeps a connection, if it does, and of which server.
    pub pins: &'a [String],
    /// The session.
    pub session: SessionView<'a>,
    /// The servers.
    pub world: &'a Snapshot,
    /// How reads are shared.
    pub options: &'a Options,
    /// How busy the servers are.
    pub load: Load<'a>,
}

/// One line of the answer: what it is about, and what there is to say.
pub type Line = (String, String);

/// The answer.
pub fn explain(question: &Question<'_>) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut say = |about: &str, what: String| lines.push((about.to_owned(), what));
    let class = question.class;
    say("statement", kind(class.kind));
    say("needs", needs(question));
    let tables = names(class, question.text);
    if !tables.is_empty() {
        say("tables", tables.join(", "));
    }
    let effects = effects(class);
    if !effects.is_empty() {
        say("effects", effects.join(", "));
    }
    if let Some(directions) = question.directions {
        for number in &directions.matched {
            if let Some(rule) = question.rules.get(*number) {
                say("rule", rule.name.to_string());
            }
        }
        let directions = directions_in_words(directions, question.world);
        if !directions.is_empty() {
            say("directions", directions.join(", "));
        }
    }
    if let Some(item) = question.unknown_hint {
        say("hint", format!("`{item}` is not known and does nothing"));
    }
    if !question.pins.is_empty() {
        say("kept connection", question.pins.join(", "));
    }
    let session = &question.session;
    say("level", session.consistency.name().to_owned());
    if session.consistency != Consistency::Eventual {
        say("must have", position(session.required));
        if let Some(seen) = session.seen {
            let name = question
                .world
                .server(seen)
                .map_or("a server that is gone", |view| &*view.address);
            say(
                "has read from",
                format!("{name}, whose position then is not known yet"),
            );
        }
    }
    for view in &question.world.servers {
        say("server", server(view, question));
    }
    match decide(
        question.world,
        question.options,
        session,
        question.access,
        &question.load,
    ) {
        Decision::Send { candidates, reason } => {
            let order: Vec<String> = candidates
                .iter()
                .filter_map(|candidate| {
                    let name = &question.world.server(candidate.server)?.address;
                    let wait = if candidate.wait {
                        " (asked to wait)"
                    } else {
                        ""
                    };
                    Some(format!("{name}{wait}"))
                })
                .collect();
            say("goes to", order.join(", then "));
            say("because", reason.as_str().to_owned());
        }
        Decision::NoServer(why) => say("goes to", format!("nowhere: {why}")),
    }
    lines
}

fn kind(kind: Kind) -> String {
    let debug = format!("{kind:?}");
    let end = debug.find(['(', ' ', '{']).unwrap_or(debug.len());
    debug[..end].to_ascii_lowercase()
}

fn needs(question: &Question<'_>) -> String {
    let class = question.class;
    let flags = class.flags;
    let why = if question.session.target != Target::Auto {
        "the listener is for one kind of server"
    } else if class.kind == Kind::Unknown {
        "it is not understood"
    } else if flags.contains(Flags::LOCKING_READ) {
        "it locks rows"
    } else if !class.functions.is_empty() && question.access >= Access::PrimaryRead {
        "it calls functions that may write"
    } else if question.session.transaction == Transaction::ReadWrite {
        "a transaction is open that may write"
    } else if question.access == Access::Write {
        "it may change something"
    } else if flags.contains(Flags::SERVER_LOCAL) {
        "its answer differs from server to server"
    } else if question.access == Access::PrimaryRead {
        "only the primary can tell"
    } else if question.access == Access::Session {
        "it concerns the session only"
    } else {
        "it only reads"
    };
    let what = match question.access {
        Access::Session => "any server",
        Access::Read => "a server with the data",
        Access::PrimaryRead | Access::Write => "the primary",
    };
    format!("{what}: {why}")
}

fn names(class: &Statement, text: &[u8]) -> Vec<String> {
    class
        .tables
        .iter()
        .map(|table| {
            let name = String::from_utf8_lossy(table.name.of(text)).into_owned();
            match table.schema {
                Some(schema) => {
                    format!("{}.{name}", String::from_utf8_lossy(schema.of(text)))
                }
                None => name,
            }
        })
        .collect()
}

fn effects(class: &Statement) -> Vec<&'static str> {
    let table = [
        (Flags::ASSIGNS_USER_VARS, "sets user variables"),
        (Flags::CREATES_TEMP_TABLE, "creates a temporary table"),
        (Flags::ACQUIRES_USER_LOCK, "takes a named lock"),
        (Flags::IMPLICIT_COMMIT, "commits"),
        (Flags::SETS_LAST_INSERT_ID, "sets LAST_INSERT_ID()"),
        (Flags::CALC_FOUND_ROWS, "sets FOUND_ROWS()"),
        (Flags::SETS_GLOBAL, "sets global variables"),
        (Flags::TX_ONE_SHOT, "is about the next transaction"),
    ];
    let mut effects: Vec<&str> = table
        .iter()
        .filter(|(flag, _)| class.flags.contains(*flag))
        .map(|(_, effect)| *effect)
        .collect();
    match class.kind {
        Kind::Set => effects.push("sets session variables"),
        Kind::Use => effects.push("changes the default database"),
        Kind::Begin => effects.push("begins a transaction with the next statement"),
        Kind::Commit | Kind::Rollback => effects.push("ends the transaction"),
        Kind::LockTables => effects.push("locks tables: keeps its connection"),
        Kind::Prepare => effects.push("prepares a statement"),
        _ => {}
    }
    effects
}

fn directions_in_words(directions: &Directions, world: &Snapshot) -> Vec<String> {
    let mut words = Vec::new();
    match directions.wanted {
        Some(Wanted::Primary) => words.push("to the primary".to_owned()),
        Some(Wanted::Replica) => words.push("to replicas".to_owned()),
        Some(Wanted::Servers(set)) => words.push(format!("to {}", servers(set.bits, world))),
        None => {}
    }
    if let Some(consistency) = directions.consistency {
        words.push(format!("consistency {}", consistency.name()));
    }
    if let Some(limit) = directions.time_limit {
        words.push(format!("at most {limit:?}"));
    }
    if directions.limited_by.is_some() {
        words.push("limited in number".to_owned());
    }
    if let Some(bits) = directions.mirror {
        words.push(format!("mirrored to {}", servers(bits, world)));
    }
    if directions.rewritten_by.is_some() {
        words.push("written anew".to_owned());
    }
    match directions.cache {
        Some(Caching::Never) => words.push("never out of memory".to_owned()),
        Some(Caching::Exact) => words.push("out of memory while that is exact".to_owned()),
        Some(Caching::Within(ttl)) => words.push(format!("out of memory for {ttl:?}")),
        None => {}
    }
    if let Some(text) = &directions.refuse {
        words.push(format!("refused: {text}"));
    }
    words
}

fn servers(bits: u64, world: &Snapshot) -> String {
    let named = world.servers.iter().filter(|view| {
        !view.gone && bits.checked_shr(u32::from(view.entry().0)).unwrap_or(0) & 1 != 0
    });
    let names: Vec<&str> = named.map(|view| &*view.address).collect();
    names.join(", ")
}

fn position(set: &GtidSet) -> String {
    if set.is_empty() {
        "nothing".to_owned()
    } else {
        set.to_string()
    }
}

fn server(view: &ServerView, question: &Question<'_>) -> String {
    let mut text = format!("{} {}", view.address, view.role);
    // Writing to a String cannot fail.
    let _ = match &view.unfit {
        Some(why) => write!(text, ", takes no reads ({why})"),
        None => write!(text, ", takes reads"),
    };
    if let Some(seconds) = view.lag_seconds {
        let _ = write!(text, ", {seconds} s behind");
    }
    if !view.zone.is_empty() {
        let _ = write!(text, ", zone {}", view.zone);
    }
    let index = view.id.index();
    let busy = question.load.outstanding.get(index).copied().unwrap_or(0);
    let _ = write!(text, ", {busy} statements under way here");
    if view.share != view.weight.saturating_mul(100) {
        let _ = write!(text, ", starting slowly");
    }
    let mut known = view.executed.clone();
    if let Some(learnt) = question.load.known.get(index) {
        known.union(learnt);
    }
    let _ = write!(text, ", known to have {}", position(&known));
    text
}

#[cfg(test)]
mod tests;

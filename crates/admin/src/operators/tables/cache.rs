//! SHOW CACHE, SHOW CACHE TABLES, SHOW CACHE STATEMENTS: what is in memory, what it is worth, and why something is not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use millrace_backend::cache::{Cache, Following};
use millrace_cache::{Cause, Miss, Never, NoFill, Refused, Statement, Subject};

use crate::operators::answer::Answer;
use crate::operators::cell::{Cell, Refusal, Trouble};
use crate::operators::listing::{Listing, Show, int, text};
use crate::operators::sources::Sources;

pub(crate) const LISTING: Listing = Listing {
    show: Show::Cache,
    name: "CACHE",
    also: &[],
    statement: "SHOW CACHE",
    help: "the cache as a whole: whether it serves, how full it is, what came of look-ups and why",
    columns: &[text("name", "what is told"), text("value", "its value")],
    like: 0,
};

pub(crate) const TABLES: Listing = Listing {
    show: Show::CacheTables,
    name: "CACHE TABLES",
    also: &[],
    statement: "SHOW CACHE TABLES",
    help: "the tables that results in memory depend on",
    columns: &[
        text("database", "the database"),
        text("table", "the table"),
        int(
            "results",
            "results that depend on it, those that are being read included",
        ),
    ],
    like: 1,
};

pub(crate) const STATEMENTS: Listing = Listing {
    show: Show::CacheStatements,
    name: "CACHE STATEMENTS",
    also: &[],
    statement: "SHOW CACHE STATEMENTS",
    help: "statements with what the cache does for them, or why it does nothing",
    columns: &[
        text("digest", "the statement's number, in hexadecimal digits"),
        text("statement", "its text, values left out"),
        int("hits", "answers out of memory"),
        int("misses", "look-ups without one"),
        int("results", "results that were kept"),
        int("bytes", "bytes of its results that are in memory"),
        int(
            "saved_ms",
            "what servers would have spent on its hits, in milliseconds",
        ),
        int("invalidated", "results that a change removed"),
        int("evicted", "results whose memory was needed"),
        text("never", "why it is not cached as it is, where it is not"),
        text("missed", "why most of its misses were misses"),
        text("not_kept", "why most of its misses were not kept"),
    ],
    like: 1,
};

/// The largest of several counts, in words.
fn most<R: Copy + ToString>(all: &[R], count: impl Fn(R) -> u64) -> (u64, String) {
    let counted = all.iter().map(|reason| (count(*reason), *reason));
    let most = counted.filter(|(count, _)| *count > 0);
    let most = most.max_by_key(|(count, _)| *count);
    most.map_or((0, String::new()), |(count, reason)| {
        (count, reason.to_string())
    })
}

fn state(cache: &Cache) -> (String, String) {
    match cache.following() {
        Following::NotYet => ("starting".into(), "the log is not followed yet".into()),
        Following::Off(why) => ("off".into(), why.into()),
        Following::Log(server) => match cache.store().not_serving(Instant::now()) {
            None => ("serving".into(), format!("follows the log of {server}")),
            Some(why) => ("waiting".into(), format!("{why} ({server})")),
        },
    }
}

pub(crate) async fn rows(sources: &Sources, answer: &mut Answer<'_>) -> Result<(), Trouble> {
    let mut rows: Vec<(String, String)> = Vec::new();
    match &sources.cache {
        None => rows.push((
            "state".into(),
            "off: the configuration says cache.mode = \"off\"".into(),
        )),
        Some(cache) => {
            let (state, why) = state(cache);
            if cache.keeps_results() {
                rows.push(("state".into(), state));
                rows.push(("reason".into(), why));
            } else {
                rows.push(("state".into(), "off".into()));
                let off = "cache.mode = \"off\"; the log is followed for routing.freshness";
                rows.push(("reason".into(), off.into()));
                rows.push(("log".into(), why));
            }
            let store = cache.store();
            let totals = store.totals();
            let mut number = |name: &str, value: u64| rows.push((name.into(), value.to_string()));
            number("results", store.len() as u64);
            number("memory_used", store.bytes() as u64);
            number("memory_max", cache.options().memory as u64);
            number("hits", totals.hits);
            number("misses", totals.misses());
            number("fills", totals.fills);
            number("saved_ms", millis(totals));
            number("compared", store.verified().compared);
            number("differences", store.verified().differences);
            number("waits", totals.waits());
            number("waits_served", totals.waits_served());
            let followed = cache.followed();
            let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            number("log_transactions", of(&followed.transactions));
            number("log_behind_seconds", of(&followed.behind_seconds));
            number("definitions_read", of(&followed.readings));
            for reason in Miss::ALL {
                number(&format!("miss: {reason}"), totals.missed(*reason));
            }
            for reason in NoFill::ALL {
                number(&format!("not filled: {reason}"), totals.not_filled(*reason));
            }
            for reason in Refused::ALL {
                number(&format!("not kept: {reason}"), totals.refused(*reason));
            }
            for cause in Cause::ALL {
                number(&format!("removed: {cause}"), totals.removed(*cause));
            }
            for reason in Never::ALL {
                number(&format!("never: {reason}"), totals.never(*reason));
            }
            rows.push(("applied".into(), store.applied().to_string()));
        }
    }
    for (name, value) in rows {
        answer.row(&[Cell::from(name), Cell::from(value)]).await?;
    }
    Ok(())
}

fn millis(statement: &Statement) -> u64 {
    u64::try_from(statement.saved.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) async fn tables(sources: &Sources, answer: &mut Answer<'_>) -> Result<(), Trouble> {
    let Some(cache) = &sources.cache else {
        return Ok(());
    };
    let mut rows: Vec<_> = {
        let store = cache.store();
        let tables = store.subjects().filter(|(subject, _)| subject.is_table());
        tables
            .map(|(subject, results)| (subject.clone(), results))
            .collect()
    };
    rows.sort();
    for (subject, results) in rows {
        let (database, table) = subject.names();
        let row = [
            Cell::bytes(database),
            Cell::bytes(table),
            (results as u64).into(),
        ];
        answer.row(&row).await?;
    }
    Ok(())
}

pub(crate) async fn statements(sources: &Sources, answer: &mut Answer<'_>) -> Result<(), Trouble> {
    let Some(cache) = &sources.cache else {
        return Ok(());
    };
    // Their number is bounded by what the store keeps.
    let mut rows: Vec<(u64, Statement)> = {
        let store = cache.store();
        store
            .statements()
            .map(|(digest, one)| (digest, one.clone()))
            .collect()
    };
    rows.sort_by_key(|(digest, one)| (std::cmp::Reverse(one.hits + one.misses()), *digest));
    for (digest, one) in rows {
        let row = [
            format!("{digest:016x}").into(),
            cache
                .text(digest)
                .map_or(Cell::Null, |text| Cell::bytes(&text)),
            one.hits.into(),
            one.misses().into(),
            one.fills.into(),
            one.bytes.into(),
            millis(&one).into(),
            (one.removed(Cause::Key) + one.removed(Cause::Table)).into(),
            one.removed(Cause::Evicted).into(),
            one.last_never()
                .map(|why| why.to_string())
                .unwrap_or_default()
                .into(),
            most(Miss::ALL, |reason| one.missed(reason)).1.into(),
            not_kept(&one).into(),
        ];
        answer.row(&row).await?;
    }
    Ok(())
}

fn not_kept(one: &Statement) -> String {
    let not_filled = most(NoFill::ALL, |reason| one.not_filled(reason));
    let refused = most(Refused::ALL, |reason| one.refused(reason));
    not_filled.max(refused).1
}

/// FLUSH CACHE: how many results were removed.
pub(crate) fn flush(sources: &Sources, table: Option<&(String, String)>) -> Result<u64, Refusal> {
    let Some(cache) = &sources.cache else {
        return Err(Refusal::cannot(
            "Millrace: the cache is off (cache.mode)".to_owned(),
        ));
    };
    let subject = table.map(|(database, table)| {
        let (database, table) = (database.as_bytes(), table.as_bytes());
        let store = cache.store();
        // As the servers compare names, where that is known.
        let known = store.definitions();
        let known = known.and_then(|(all, _)| all.subject(database, table));
        known.unwrap_or_else(|| Subject::table(database, table))
    });
    let removed = cache.store().flush(subject.as_ref(), Instant::now());
    Ok(removed as u64)
}

//! Single rules of the store, one after the other.

mod verified;
mod within;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use millrace_topology::{Family, GtidSet};

use crate::model::epoch;
use crate::{
    Access, Begun, Cause, Finished, IndexKeys, Interval, Key, Miss, NoFill, Options, Refused,
    Resumed, Scope, Store, Subject, Token, Touch, Verified, Waiting, Wanted, XaId,
};

const MS: Duration = Duration::from_millis(1);

fn set(text: &str) -> GtidSet {
    let uuid = "11111111-1111-1111-1111-111111111111";
    GtidSet::parse_mysql(format!("{uuid}:{text}").as_bytes()).unwrap()
}

fn table() -> Subject {
    Subject::table(b"d", b"t")
}

fn options() -> Options {
    Options {
        second_use: false,
        ..Options::default()
    }
}

/// A store whose log has been followed up to transaction 10.
fn store_with(options: Options) -> (Store, Instant) {
    let now = epoch();
    let mut store = Store::new(options);
    store.follow(set("1-10"), b"one", now);
    store.forget_known(&set("1-10"));
    store.define(Arc::default());
    (store, now)
}

fn store() -> (Store, Instant) {
    store_with(options())
}

fn by_key(lo: i64, hi: i64) -> Access {
    Access {
        subject: table(),
        scope: Scope::Within {
            index: 0,
            interval: Interval {
                lo: Key::new().signed(lo),
                hi: Key::new().signed(hi),
            },
        },
    }
}

fn row(key: i64) -> Touch {
    Touch {
        subject: table(),
        keys: Some(vec![IndexKeys {
            index: 0,
            keys: vec![Key::new().signed(key)],
        }]),
    }
}

fn lead(store: &mut Store, key: &[u8], access: Access, now: Instant) -> Token {
    match store.begin_fill(1, key, &[access], 1, now) {
        Ok(Begun::Lead(token)) => token,
        other => panic!("{other:?}"),
    }
}

fn result<'a>(lower: &'a GtidSet, upper: &'a GtidSet, bytes: &[u8]) -> Finished<'a> {
    Finished {
        rows: 1,
        lower,
        upper,
        bytes: bytes.into(),
        cost: MS,
    }
}

fn fill(
    store: &mut Store,
    key: &[u8],
    access: Access,
    position: &str,
    now: Instant,
) -> Result<(), Refused> {
    let token = lead(store, key, access, now);
    let position = set(position);
    store
        .finish(token, result(&position, &position, b"rows"), now)
        .kept
}

fn look(store: &mut Store, key: &[u8], now: Instant) -> Result<Arc<[u8]>, Miss> {
    store
        .look(key, &[&GtidSet::new(Family::MySql)], now)
        .map(|hit| hit.bytes)
}

#[test]
fn a_fill_is_served_until_its_table_changes() {
    let (mut store, now) = store();
    assert_eq!(look(&mut store, b"k", now), Err(Miss::Absent));
    assert_eq!(
        fill(&mut store, b"k", Access::whole(table()), "1-10", now),
        Ok(())
    );
    assert_eq!(look(&mut store, b"k", now).as_deref(), Ok(&b"rows"[..]));
    store.apply(
        &set("11"),
        &[Touch::whole(Subject::table(b"d", b"other"))],
        now,
    );
    assert!(look(&mut store, b"k", now).is_ok());
    assert_eq!(store.apply(&set("12"), &[row(1)], now).removed, 1);
    assert_eq!(look(&mut store, b"k", now), Err(Miss::Absent));
    assert_eq!(store.totals().removed(Cause::Key), 1);
}

#[test]
fn rows_outside_its_keys_leave_an_entry() {
    let (mut store, now) = store();
    fill(&mut store, b"point", by_key(5, 5), "1-10", now).unwrap();
    fill(&mut store, b"range", by_key(-5, 4), "1-10", now).unwrap();
    store.apply(&set("11"), &[row(6)], now);
    assert!(look(&mut store, b"point", now).is_ok() && look(&mut store, b"range", now).is_ok());
    store.apply(&set("12"), &[row(-5)], now);
    assert!(look(&mut store, b"point", now).is_ok());
    assert_eq!(look(&mut store, b"range", now), Err(Miss::Absent));
    // Keys of another index say nothing of this one.
    let mut other = row(100);
    other.keys.as_mut().unwrap()[0].index = 1;
    store.apply(&set("13"), &[other], now);
    assert_eq!(look(&mut store, b"point", now), Err(Miss::Absent));
}

#[test]
fn rule_2_a_server_that_may_lack_a_change_fills_nothing() {
    let (mut store, now) = store();
    store.apply(&set("11"), &[row(5)], now);
    let access = || by_key(5, 5);
    assert_eq!(
        fill(&mut store, b"k", access(), "1-10", now),
        Err(Refused::Stale)
    );
    assert_eq!(
        fill(&mut store, b"other key", by_key(6, 6), "1-10", now),
        Ok(())
    );
    assert_eq!(fill(&mut store, b"k", access(), "1-11", now), Ok(()));
    // A change that comes while it is filled, and even settles before the end.
    store.flush(None, now);
    let token = lead(&mut store, b"k", access(), now);
    store.apply(&set("12"), &[row(5)], now);
    store.forget_known(&set("1-12"));
    let position = set("1-11");
    let ended = store.finish(token, result(&position, &position, b"rows"), now);
    assert_eq!(ended.kept, Err(Refused::Stale));
}

#[test]
fn rule_2_it_is_served_once_f_has_what_it_may_show() {
    let (mut store, now) = store();
    let token = lead(&mut store, b"k", by_key(5, 5), now);
    let (lower, upper) = (set("1-11"), set("1-12"));
    store
        .finish(token, result(&lower, &upper, b"rows"), now)
        .kept
        .unwrap();
    assert_eq!(look(&mut store, b"k", now), Err(Miss::NotYet));
    // 11 is in P: the result shows it. Rule 3.
    store.apply(&set("11"), &[row(5)], now);
    assert_eq!(look(&mut store, b"k", now), Err(Miss::NotYet));
    store.apply(&set("12"), &[row(7)], now);
    assert!(look(&mut store, b"k", now).is_ok());
}

#[test]
fn rule_4_a_session_that_must_see_more_gets_no_hit() {
    let (mut store, now) = store();
    fill(&mut store, b"k", by_key(5, 5), "1-10", now).unwrap();
    assert_eq!(store.look(b"k", &[&set("11")], now), Err(Miss::Behind));
    store.apply(&set("11"), &[row(9)], now);
    let hit = store.look(b"k", &[&set("11")], now).unwrap();
    assert!(hit.seen.is_empty(), "nothing of it is new to any server");
    store.apply(&set("12"), &[row(5)], now);
    fill(&mut store, b"k", by_key(5, 5), "1-12", now).unwrap();
    assert_eq!(
        store.look(b"k", &[&set("11")], now).unwrap().seen,
        set("12")
    );
    store.forget_known(&set("1-12"));
    assert!(
        store
            .look(b"k", &[&set("11")], now)
            .unwrap()
            .seen
            .is_empty()
    );
}

#[test]
fn rule_6_silence_and_gaps() {
    let (mut store, now) = store();
    fill(&mut store, b"k", by_key(5, 5), "1-10", now).unwrap();
    let later = now + Duration::from_millis(1001);
    assert_eq!(look(&mut store, b"k", later), Err(Miss::Silent));
    store.heard(later);
    assert!(look(&mut store, b"k", later).is_ok());
    store.gap();
    store.heard(later);
    assert_eq!(look(&mut store, b"k", later), Err(Miss::Stopped));
    assert_eq!(
        store.begin_fill(1, b"new", &[], 1, later),
        Err(NoFill::Stopped)
    );
    assert_eq!(store.resume(&set("1-15"), b"one", later), Resumed::Kept);
    assert!(look(&mut store, b"k", later).is_ok());
    let token = lead(&mut store, b"new", by_key(1, 1), later);
    store.gap();
    assert_eq!(store.resume(&set("1-9"), b"one", later), Resumed::Dropped);
    assert_eq!(look(&mut store, b"k", later), Err(Miss::Absent));
    store.follow(set("1-9"), b"one", later);
    let position = set("1-20");
    let ended = store.finish(token, result(&position, &position, b"rows"), later);
    assert_eq!(ended.kept, Err(Refused::Dropped));
    assert_eq!(
        store.resume(&set("1-30"), b"another", later),
        Resumed::Dropped
    );
}

#[test]
fn what_f_began_with_may_be_missing_anywhere() {
    let (mut store, now) = store();
    store.follow(set("1-20"), b"one", now);
    assert_eq!(
        fill(&mut store, b"k", by_key(5, 5), "1-19", now),
        Err(Refused::Stale)
    );
    assert_eq!(fill(&mut store, b"k", by_key(5, 5), "1-20", now), Ok(()));
    assert_eq!(
        store.look(b"k", &[&set("1")], now).unwrap().seen,
        set("1-20")
    );
    store.forget_known(&set("1-20"));
    assert!(store.look(b"k", &[&set("1")], now).unwrap().seen.is_empty());
}

#[test]
fn an_errant_transaction_of_a_replica_is_never_served() {
    let (mut store, now) = store();
    let errant = GtidSet::parse_mysql(b"22222222-2222-2222-2222-222222222222:1").unwrap();
    let mut position = set("1-10");
    position.union(&errant);
    let token = lead(&mut store, b"k", by_key(5, 5), now);
    store
        .finish(token, result(&position, &position, b"rows"), now)
        .kept
        .unwrap();
    assert_eq!(look(&mut store, b"k", now), Err(Miss::NotYet));
    assert_eq!(store.begin_fill(1, b"k", &[], 1, now), Err(NoFill::Present));
    // But it keeps no other server's result away for ever.
    let later = now + Duration::from_secs(11);
    store.heard(later);
    fill(&mut store, b"k", by_key(5, 5), "1-10", later).unwrap();
    assert!(look(&mut store, b"k", later).is_ok());
}

#[test]
fn rights_are_subjects_as_tables_are() {
    let (mut store, now) = store();
    let account = Subject::account(b"app", b"%");
    let accesses = [
        by_key(5, 5),
        Access::whole(account.clone()),
        Access::whole(Subject::rights()),
    ];
    let Ok(Begun::Lead(token)) = store.begin_fill(1, b"k", &accesses, 1, now) else {
        panic!("no fill");
    };
    let position = set("1-10");
    store
        .finish(token, result(&position, &position, b"rows"), now)
        .kept
        .unwrap();
    store.apply(
        &set("11"),
        &[Touch::whole(Subject::account(b"other", b"%"))],
        now,
    );
    assert!(look(&mut store, b"k", now).is_ok());
    store.apply(&set("12"), &[Touch::whole(account)], now);
    assert_eq!(look(&mut store, b"k", now), Err(Miss::Absent));
    assert_eq!(store.totals().removed(Cause::Rights), 1);
}

#[test]
fn what_was_prepared_changes_when_it_is_committed() {
    let (mut store, now) = store();
    fill(&mut store, b"k", by_key(5, 5), "1-10", now).unwrap();
    let xa = XaId::new(1, b"trx", b"branch");
    store.prepare(&set("11"), xa.clone(), vec![row(5)], now);
    assert!(look(&mut store, b"k", now).is_ok());
    assert_eq!(store.complete(&set("12"), &xa, true, now).removed, 1);
    fill(&mut store, b"k", by_key(5, 5), "1-12", now).unwrap();
    store.prepare(&set("13"), xa.clone(), vec![row(5)], now);
    assert_eq!(store.complete(&set("14"), &xa, false, now).removed, 0);
    // Whose PREPARE was not seen.
    assert_eq!(store.complete(&set("15"), &xa, true, now).removed, 1);
    assert_eq!(store.totals().removed(Cause::NotUnderstood), 1);
    assert_eq!(
        fill(&mut store, b"k", by_key(5, 5), "1-14", now),
        Err(Refused::Stale)
    );
    assert_eq!(fill(&mut store, b"k", by_key(5, 5), "1-15", now), Ok(()));
}

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A store whose statement 1 was kept when it took so long.
fn store_after(cost: Duration, waiters_max: u32) -> (Store, Instant) {
    let (mut store, now) = store_with(Options {
        waiters_max,
        ..options()
    });
    let token = lead(&mut store, b"before", by_key(1, 1), now);
    let position = set("1-10");
    let result = Finished {
        cost,
        ..result(&position, &position, b"rows")
    };
    store.finish(token, result, now).kept.unwrap();
    (store, now)
}

fn wait(store: &mut Store, now: Instant) -> Waiting {
    match store.wants(1, b"k", Some(Miss::Filling), now) {
        Ok(Wanted::Wait(waiting)) => waiting,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_fills_and_a_bounded_number_waits() {
    let (mut store, now) = store_after(20 * MS, 1);
    let token = lead(&mut store, b"k", by_key(5, 5), now);
    let begin = |store: &mut Store, now| store.begin_fill(1, b"k", &[by_key(5, 5)], 1, now);
    let waiting = begin(&mut store, now);
    assert!(matches!(waiting, Ok(Begun::Wait(_))), "{waiting:?}");
    assert_eq!(begin(&mut store, now), Err(NoFill::Crowded));
    assert_eq!(look(&mut store, b"k", now), Err(Miss::Filling));
    assert_eq!(store.abandon(token), 1);
    let first = lead(&mut store, b"k", by_key(5, 5), now);
    // One that never ends keeps nobody for ever.
    let later = now + Duration::from_secs(11);
    store.heard(later);
    let second = begin(&mut store, later);
    assert!(matches!(second, Ok(Begun::Lead(_))), "{second:?}");
    let position = set("1-10");
    let ended = store.finish(first, result(&position, &position, b"rows"), later);
    assert_eq!(ended.kept, Err(Refused::Dropped));
}

#[test]
fn a_fill_wakes_all_that_wait_however_it_ends() {
    type End = fn(&mut Store, Token, Instant);
    let ends: [(&str, End); 5] = [
        ("kept", |store, token, now| {
            let position = set("1-10");
            let result = result(&position, &position, b"rows");
            store.finish(token, result, now).kept.unwrap();
        }),
        ("refused", |store, token, now| {
            store.apply(&set("11"), &[row(5)], now);
            let position = set("1-10");
            let result = result(&position, &position, b"rows");
            store.finish(token, result, now).kept.unwrap_err();
        }),
        ("abandoned", |store, token, _| {
            store.abandon(token);
        }),
        ("redefined", |store, _, now| {
            store.redefine(Some(&table()), now);
        }),
        ("dropped", |store, _, now| {
            store.apply_unknown(&set("11"), now);
        }),
    ];
    for (name, end) in ends {
        let (mut store, now) = store_after(20 * MS, 8);
        let token = lead(&mut store, b"k", by_key(5, 5), now);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let waiting = [wait(&mut store, now), wait(&mut store, now)];
        for one in &waiting {
            assert!(!store.wait_for_fill(one, &waker), "{name}");
        }
        end(&mut store, token, now);
        assert_eq!(woken.0.load(Ordering::Relaxed), 2, "{name}");
        for one in &waiting {
            assert!(store.wait_for_fill(one, &waker), "{name}");
        }
    }
}

#[test]
fn only_what_takes_long_and_was_kept_is_waited_for() {
    let wants = |store: &mut Store, now| store.wants(1, b"k", Some(Miss::Filling), now);
    let (mut store, now) = store_after(19 * MS, 8);
    let _token = lead(&mut store, b"k", by_key(5, 5), now);
    assert_eq!(wants(&mut store, now), Err(NoFill::QuickerAsked));
    let (mut store, now) = store_after(20 * MS, 8);
    let token = lead(&mut store, b"k", by_key(5, 5), now);
    assert_eq!(wait(&mut store, now).until, now + 35 * MS);
    // Its time is over: it takes longer than it did.
    assert_eq!(wants(&mut store, now + 35 * MS), Err(NoFill::QuickerAsked));
    store.apply(&set("11"), &[row(5)], now);
    let position = set("1-10");
    store
        .finish(token, result(&position, &position, b"rows"), now)
        .kept
        .unwrap_err();
    let _token = lead(&mut store, b"k", by_key(5, 5), now);
    assert_eq!(wants(&mut store, now), Err(NoFill::QuickerAsked));
    // However long it takes.
    let (mut store, now) = store_after(Duration::from_secs(5), 8);
    let _token = lead(&mut store, b"k", by_key(5, 5), now);
    assert_eq!(wait(&mut store, now).until, now + 500 * MS);
}

#[test]
fn a_key_is_filled_at_its_second_use() {
    let (mut store, now) = store_with(Options::default());
    let begin = |store: &mut Store| store.begin_fill(1, b"k", &[by_key(5, 5)], 1, now);
    assert_eq!(begin(&mut store), Err(NoFill::FirstSight));
    assert!(matches!(begin(&mut store), Ok(Begun::Lead(_))));
    let mut wants = |key: &[u8]| store.wants(1, key, Some(Miss::Absent), now);
    assert_eq!(wants(b"other"), Err(NoFill::FirstSight));
    assert_eq!(wants(b"other"), Ok(Wanted::Fill));
}

#[test]
fn a_statement_whose_results_change_unused_rests() {
    let (mut store, now) = store();
    for n in 0..8 {
        fill(
            &mut store,
            b"k",
            by_key(5, 5),
            &format!("1-{}", 10 + n),
            now,
        )
        .unwrap();
        store.apply(&set(&(11 + n).to_string()), &[row(5)], now);
    }
    let begin = |store: &mut Store, now| store.begin_fill(1, b"k", &[by_key(5, 5)], 1, now);
    assert_eq!(begin(&mut store, now), Err(NoFill::Resting));
    assert_eq!(store.statement(1).unwrap().not_filled(NoFill::Resting), 1);
    let later = now + Duration::from_secs(1);
    assert!(matches!(begin(&mut store, later), Ok(Begun::Lead(_))));
}

#[test]
fn memory_is_bounded_and_what_saves_most_stays() {
    let limit = 2 << 20;
    let (mut store, now) = store_with(Options {
        memory: limit,
        statements_max: 10,
        ..options()
    });
    let position = set("1-10");
    fill(&mut store, b"hot", by_key(0, 0), "1-10", now).unwrap();
    for n in 0..20_000_i64 {
        let key = format!("statement {n}");
        if let Ok(Begun::Lead(token)) =
            store.begin_fill(n as u64, key.as_bytes(), &[by_key(n, n + n % 3)], 1, now)
        {
            let _ = store.finish(token, result(&position, &position, &[0; 300]), now);
        }
        assert!(store.bytes() <= limit, "{} bytes", store.bytes());
        if n % 50 == 0 {
            assert!(look(&mut store, b"hot", now).is_ok(), "after {n}");
        }
    }
    assert!(store.bytes() > limit * 9 / 10, "{} bytes", store.bytes());
    assert!(store.len() > 2000, "{} entries", store.len());
    let full = store.len();
    store.flush(Some(&table()), now);
    assert_eq!((store.len(), full > 0), (0, true));
    assert_eq!(store.subjects().count(), 0);
}

#[test]
fn changes_without_end_are_given_up_and_count_for_all() {
    let (mut store, now) = store_with(Options {
        memory: 1 << 20,
        ..options()
    });
    for n in 0..20_000_u64 {
        let table = Subject::table(b"d", n.to_string().as_bytes());
        let mut touch = row(n as i64);
        touch.subject = table;
        store.apply(&set(&(11 + n).to_string()), &[touch], now);
        assert!(store.bytes() <= 1 << 20);
    }
    // A table that nobody changed: but which ones were is no longer known.
    assert_eq!(
        fill(&mut store, b"k", by_key(5, 5), "1-10", now),
        Err(Refused::Stale)
    );
    assert_eq!(fill(&mut store, b"k", by_key(5, 5), "1-20010", now), Ok(()));
    store.forget_known(&set("1-20010"));
    assert!(store.look(b"k", &[&set("1")], now).unwrap().seen.is_empty());
}

#[test]
fn a_large_result_and_a_position_of_another_kind_are_refused() {
    let (mut store, now) = store();
    let token = lead(&mut store, b"k", by_key(5, 5), now);
    let position = set("1-10");
    let large = vec![0; (1 << 20) + 1];
    let ended = store.finish(token, result(&position, &position, &large), now);
    assert_eq!(ended.kept, Err(Refused::TooLarge));
    let token = lead(&mut store, b"k", by_key(5, 5), now);
    let other = GtidSet::parse_mariadb(b"0-1-50").unwrap();
    let ended = store.finish(token, result(&other, &other, b"rows"), now);
    assert_eq!(ended.kept, Err(Refused::Incomparable));
    assert_eq!(
        store.statement(1).unwrap().refused(Refused::Incomparable),
        1
    );
}

/// A table that changes its definition loses what was read under the old one, whatever the server had when it read,
/// and nothing is read into the cache until the tables are known again.
#[test]
fn definitions_hold_for_what_is_filled_under_them() {
    let (mut store, now) = store();
    let kept = fill(&mut store, b"kept", by_key(1, 1), "1-11", now);
    assert_eq!(kept, Ok(()));
    let token = lead(&mut store, b"under way", by_key(2, 2), now);
    store.redefine(Some(&table()), now);
    store.apply(&set("11"), &[Touch::whole(table())], now);
    assert_eq!(
        look(&mut store, b"kept", now),
        Err(Miss::Absent),
        "although its server had transaction 11"
    );
    let position = set("1-11");
    let ended = store.finish(token, result(&position, &position, b"rows"), now);
    assert_eq!(ended.kept, Err(Refused::Dropped));
    let begin =
        |store: &mut Store, version| store.begin_fill(1, b"k", &[by_key(5, 5)], version, now);
    assert_eq!(begin(&mut store, 1), Err(NoFill::Undefined));
    assert_eq!(begin(&mut store, 2), Err(NoFill::Undefined));
    store.define(Arc::default());
    assert_eq!(begin(&mut store, 1), Err(NoFill::Undefined), "read before");
    let version = store.definitions().map(|(_, version)| version);
    assert_eq!(version, Some(3));
    assert!(matches!(begin(&mut store, 3), Ok(Begun::Lead(_))));
}

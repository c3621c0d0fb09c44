use super::*;

const TTL: Duration = Duration::from_secs(5);

fn fill_within(store: &mut Store, key: &[u8], now: Instant) -> Result<(), Refused> {
    match store.begin_within(1, key, TTL, Some(Miss::Absent), now) {
        Ok(Begun::Lead(token)) => {
            let bytes: Arc<[u8]> = b"old".as_slice().into();
            store.finish_within(token, (bytes, 1), MS, now).kept
        }
        other => panic!("{other:?}"),
    }
}

fn look_within(store: &mut Store, now: Instant) -> Result<Arc<[u8]>, Miss> {
    store.look_within(b"timed", now).map(|hit| hit.bytes)
}

#[test]
fn what_is_served_for_a_time_is_served_whatever_changes() {
    type Change = fn(&mut Store, Instant);
    let changes: [(&str, Change); 8] = [
        ("a row", |store, now| {
            store.apply(&set("11"), &[row(5)], now);
        }),
        ("not understood", |store, now| {
            store.apply_unknown(&set("11"), now);
        }),
        ("a definition", |store, now| {
            store.redefine(Some(&table()), now);
        }),
        ("definitions", |store, now| {
            store.redefine(None, now);
        }),
        ("a gap", |store, now| {
            store.gap();
            store.resume(&set("1-9"), b"one", now);
        }),
        ("another log", |store, now| {
            store.follow(set("1-99"), b"another", now);
        }),
        ("no log", |store, _| store.gap()),
        ("unlogged", |store, now| {
            store.distrust(now);
        }),
    ];
    for (name, change) in changes {
        let (mut store, now) = store();
        fill_within(&mut store, b"timed", now).unwrap();
        fill(&mut store, b"exact", by_key(5, 5), "1-10", now).unwrap();
        change(&mut store, now);
        assert!(look(&mut store, b"exact", now).is_err(), "{name}");
        let last = now + TTL - MS;
        assert_eq!(
            look_within(&mut store, last).as_deref(),
            Ok(&b"old"[..]),
            "{name}"
        );
        assert_eq!(
            look_within(&mut store, now + TTL),
            Err(Miss::Absent),
            "{name}"
        );
        assert_eq!(store.totals().removed(Cause::Expired), 1, "{name}");
        assert_eq!(store.timed_slots(), 0, "{name}");
    }
}

#[test]
fn rights_and_flush_end_it_before_its_time() {
    type End = fn(&mut Store, Instant) -> usize;
    let ends: [End; 4] = [
        |store, now| store.flush(None, now),
        |store, now| store.flush(Some(&Subject::table(b"d", b"any")), now),
        |store, now| {
            let touch = Touch::whole(Subject::rights());
            store.apply(&set("11"), &[touch], now).removed
        },
        |store, now| {
            let touch = Touch::whole(Subject::account(b"app", b"%"));
            store.apply(&set("11"), &[touch], now).removed
        },
    ];
    for end in ends {
        let (mut store, now) = store();
        fill_within(&mut store, b"timed", now).unwrap();
        assert_eq!(end(&mut store, now), 1);
        assert_eq!(look_within(&mut store, now), Err(Miss::Absent));
        // A fill under way has read what was before.
        let begun = store.begin_within(1, b"timed", TTL, None, now);
        let Ok(Begun::Lead(token)) = begun else {
            panic!("{begun:?}");
        };
        store.flush(None, now);
        let bytes: Arc<[u8]> = b"old".as_slice().into();
        let ended = store.finish_within(token, (bytes, 1), MS, now);
        assert_eq!(ended.kept, Err(Refused::Dropped));
        assert_eq!((store.len(), store.timed_slots()), (0, 0));
    }
}

#[test]
fn it_needs_no_log_and_has_keys_of_its_own() {
    let now = epoch();
    let mut store = Store::new(options());
    fill_within(&mut store, b"timed", now).unwrap();
    assert!(look_within(&mut store, now).is_ok());
    // A look-up that must be exact never has it, nor the other way round.
    assert_eq!(look(&mut store, b"timed", now), Err(Miss::Stopped));
    let (mut store, now) = store_with(options());
    fill(&mut store, b"timed", by_key(5, 5), "1-10", now).unwrap();
    assert_eq!(look_within(&mut store, now), Err(Miss::Absent));
    // It shares the memory of the others.
    let (mut store, now) = store_with(Options {
        memory: 1 << 20,
        ..options()
    });
    for n in 0..5_000_u32 {
        let _ = fill_within(&mut store, &[&n.to_le_bytes()[..], &[0; 200]].concat(), now);
        assert!(store.bytes() <= 1 << 20);
    }
    assert!(store.timed_slots() > 500);
}

#[test]
fn one_reads_what_is_served_for_a_time_and_others_wait() {
    let (mut store, now) = store_after(20 * MS, 8);
    let begin = |store: &mut Store| store.begin_within(1, b"timed", TTL, Some(Miss::Filling), now);
    let Ok(Begun::Lead(token)) = begin(&mut store) else {
        panic!("no fill");
    };
    let Ok(Begun::Wait(waiting)) = begin(&mut store) else {
        panic!("no wait");
    };
    let waker = Waker::from(Arc::new(Woken::default()));
    assert!(!store.wait_for_fill(&waiting, &waker));
    store.abandon(token);
    assert!(store.wait_for_fill(&waiting, &waker));
}

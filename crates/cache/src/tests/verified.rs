use super::*;

/// A text result of one column.
fn text_rows(rows: &[&str]) -> Vec<u8> {
    let mut packets = vec![vec![1], b"\x03def".to_vec()];
    packets.extend(rows.iter().map(|row| row.as_bytes().to_vec()));
    packets.push(vec![0xFE, 0, 0, 2, 0]);
    let mut out = Vec::new();
    for packet in packets {
        out.extend_from_slice(&(packet.len() as u32).to_le_bytes());
        out.extend_from_slice(&packet);
    }
    out
}

/// Puts an entry of these rows there, and reads it again: other rows, with P and Q.
fn checked(
    store: &mut Store,
    now: Instant,
    (kept, read): (&[&str], &[&str]),
    (lower, upper): (&str, &str),
    between: impl FnOnce(&mut Store),
) -> Verified {
    let token = lead(store, b"k", by_key(5, 5), now);
    let position = store.applied().clone();
    let entry = result(&position, &position, &text_rows(kept));
    store.finish(token, entry, now).kept.unwrap();
    let token = store.begin_check(b"k", &[&set("1")], now).unwrap();
    between(store);
    let (lower, upper) = (set(lower), set(upper));
    let read = result(&lower, &upper, &text_rows(read));
    let ended = store.finish(token, read, now);
    assert_eq!(ended.kept, Err(Refused::Compared));
    store.verified()
}

#[test]
fn a_wrong_entry_is_found_and_everything_goes() {
    let (mut store, now) = store();
    fill(&mut store, b"other", by_key(7, 7), "1-10", now).unwrap();
    let told = checked(&mut store, now, (&["a"], &["b"]), ("1-10", "1-10"), |_| ());
    assert_eq!((told.compared, told.differences), (1, 1));
    assert_eq!(told.last, Some(1));
    assert!(store.is_empty());
    assert_eq!(store.totals().removed(Cause::Wrong), 2);
    assert_eq!(store.totals().missed(Miss::Checked), 1);
}

#[test]
fn a_right_entry_stays() {
    let (mut store, now) = store();
    let told = checked(
        &mut store,
        now,
        (&["a", "b"], &["b", "a"]),
        ("1-10", "1-10"),
        |_| (),
    );
    assert_eq!((told.compared, told.differences), (1, 0));
    assert!(look(&mut store, b"k", now).is_ok());
    // Nor does one go whose check came to nothing.
    let token = store.begin_check(b"k", &[&set("1")], now).unwrap();
    assert_eq!(store.abandon(token), 0);
    assert!(look(&mut store, b"k", now).is_ok());
    assert_eq!(store.begin_check(b"k", &[&set("11")], now), None);
    assert_eq!(store.begin_check(b"absent", &[&set("1")], now), None);
}

#[test]
fn what_may_rightly_differ_is_not_compared() {
    let rows: (&[&str], &[&str]) = (&["a"], &["b"]);
    // Its table has changed since.
    let (mut store, now) = store();
    let told = checked(&mut store, now, rows, ("1-11", "1-11"), |store| {
        store.apply(&set("11"), &[row(5)], now);
    });
    assert_eq!(told, Verified::default());
    // The server may lack a change.
    let (mut store, now) = store_with(options());
    store.apply(&set("11"), &[row(5)], now);
    let told = checked(&mut store, now, rows, ("1-10", "1-11"), |_| ());
    assert_eq!(told, Verified::default());
    // It may show one that the log has not told of yet: it is compared when it has.
    for (touch, differences) in [(row(5), 0), (row(6), 1)] {
        let (mut store, now) = store_with(options());
        let told = checked(&mut store, now, rows, ("1-10", "1-11"), |_| ());
        assert_eq!(told, Verified::default());
        store.apply(&set("11"), &[touch], now);
        assert_eq!(store.verified().differences, differences);
    }
}

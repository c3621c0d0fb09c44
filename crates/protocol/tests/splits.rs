//! However a stream of responses is cut into pieces, the tracker says the same.
#![allow(clippy::unwrap_used, reason = "tests")]

use millrace_protocol::packet::{HEADER, MAX_PAYLOAD, frame, header};
use millrace_protocol::response::{Event, Expect, Tracker};
use millrace_protocol::{Capabilities, Status};
use proptest::prelude::*;

mod support;
use support::{follow, follow_with, tracker_of, vectors};

#[test]
fn real_responses_in_pieces_of_every_size() {
    for vector in vectors() {
        let whole = follow_with(tracker_of(&vector), &[&vector.response]);
        for size in (1..=24).chain([61, 128, 500]) {
            let pieces: Vec<&[u8]> = vector.response.chunks(size).collect();
            let cut = follow_with(tracker_of(&vector), &pieces);
            assert_eq!(cut, whole, "{} in pieces of {size}", vector.name);
        }
    }
}

#[test]
fn real_responses_cut_once_anywhere() {
    for vector in vectors() {
        let whole = follow_with(tracker_of(&vector), &[&vector.response]);
        for at in 0..vector.response.len() {
            let (head, tail) = vector.response.split_at(at);
            let cut = follow_with(tracker_of(&vector), &[head, tail]);
            assert_eq!(cut, whole, "{} cut at {at}", vector.name);
        }
    }
}

/// With the counts shown the events are the same, but for what was passed around them.
#[test]
fn column_counts_are_whole_packets() {
    let mut seen = 0;
    for vector in vectors() {
        let tracker = tracker_of(&vector).showing_counts();
        let whole = follow_with(tracker, &[&vector.response]);
        let pieces: Vec<&[u8]> = vector.response.chunks(3).collect();
        assert_eq!(follow_with(tracker, &pieces), whole, "{}", vector.name);
        let (mut merged, mut passed, mut at) = (Vec::new(), 0, 0);
        for event in &whole.0 {
            match *event {
                Event::Pass(len) => (passed, at) = (passed + len, at + len),
                Event::ColumnCount { len } => {
                    let count = header(&vector.response[at..]).unwrap();
                    assert_eq!(len, HEADER + count.len as usize, "{}", vector.name);
                    seen += 1;
                    (passed, at) = (passed + len, at + len);
                }
                other => {
                    if passed > 0 {
                        merged.push(Event::Pass(std::mem::take(&mut passed)));
                    }
                    merged.push(other);
                    if let Event::Ok { len, .. }
                    | Event::Eof { len, .. }
                    | Event::MarkedDefinitionsEnd { len }
                    | Event::Err { len }
                    | Event::PrepareOk { len, .. }
                    | Event::LocalInfile { len }
                    | Event::Progress { len } = other
                    {
                        at += len;
                    }
                }
            }
        }
        let plain = follow_with(tracker_of(&vector), &[&vector.response]);
        assert_eq!((merged, whole.1), plain, "{}", vector.name);
    }
    assert!(seen > 20, "only {seen} counts in all responses");
}

#[test]
fn what_follows_a_response_is_left_alone() {
    for vector in vectors() {
        let mut stream = vector.response.clone();
        stream.extend_from_slice(&[7, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        let alone = follow_with(tracker_of(&vector), &[&vector.response]);
        let followed = follow_with(tracker_of(&vector), &[&stream]);
        assert_eq!(followed, (alone.0, 11), "{}", vector.name);
    }
}

const EOF_FREE: Capabilities = Capabilities::PROTOCOL_41.union(Capabilities::DEPRECATE_EOF);

/// A text result of one column with these rows, given as whole payloads.
fn result(caps: Capabilities, rows: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut seq = frame(&mut out, 1, &[1]);
    seq = frame(&mut out, seq, b"\x03def");
    let deprecated = caps.contains(Capabilities::DEPRECATE_EOF);
    let end: &[u8] = if deprecated {
        &[0xFE, 0, 0, 2, 0, 0, 0]
    } else {
        &[0xFE, 0, 0, 2, 0]
    };
    if !deprecated {
        seq = frame(&mut out, seq, end);
    }
    for row in rows {
        seq = frame(&mut out, seq, row);
    }
    frame(&mut out, seq, end);
    out
}

/// The first byte of a continuation frame can be anything, also that of an end or an
/// error, and a value of 16 MiB starts with 0xFE.
#[test]
fn rows_of_many_frames() {
    for caps in [Capabilities::PROTOCOL_41, EOF_FREE] {
        for len in [
            MAX_PAYLOAD - 1,
            MAX_PAYLOAD,
            MAX_PAYLOAD + 1,
            2 * MAX_PAYLOAD + 3,
        ] {
            for (first, rest) in [(0xFE, 0xFE), (0xFE, 0xFF), (0x00, 0xFF), (0xFC, 0x00)] {
                if first == 0xFE && len < MAX_PAYLOAD {
                    continue;
                }
                let mut row = vec![rest; len];
                row[0] = first;
                let stream = result(caps, &[b"\x01a".to_vec(), row, b"\x01b".to_vec()]);
                let mut tracker = Tracker::new(Expect::Query, caps);
                let end = stream.len() - if caps == EOF_FREE { 11 } else { 9 };
                assert_eq!(tracker.next(&stream), Event::Pass(end));
                assert_eq!(tracker.rows(), 3);

                let pieces: Vec<&[u8]> = stream.chunks(65_537).collect();
                let whole = follow(Expect::Query, caps, &[&stream]);
                assert!(follow(Expect::Query, caps, &pieces) == whole);
            }
        }
    }
}

#[test]
fn cuts_inside_the_headers_of_a_long_row() {
    let mut row = vec![0xFF; 2 * MAX_PAYLOAD];
    row[0] = 0xFE;
    let stream = result(EOF_FREE, &[row]);
    let whole = follow(Expect::Query, EOF_FREE, &[&stream]);
    let mut at = 0;
    while let Some(found) = header(&stream[at..]) {
        for cut in (at.saturating_sub(2)..at + 7).filter(|&cut| cut < stream.len()) {
            let (head, tail) = stream.split_at(cut);
            assert_eq!(follow(Expect::Query, EOF_FREE, &[head, tail]), whole);
        }
        at += HEADER + found.len as usize;
    }
}

fn any_expect() -> impl Strategy<Value = Expect> {
    prop_oneof![
        Just(Expect::Query),
        Just(Expect::Prepare),
        Just(Expect::Execute),
        Just(Expect::Fetch),
        Just(Expect::FieldList),
        Just(Expect::Statistics),
        Just(Expect::Simple),
        Just(Expect::ChangeUser),
        Just(Expect::SetOption),
        Just(Expect::BinlogStream),
    ]
}

fn any_caps() -> impl Strategy<Value = Capabilities> {
    prop::sample::subsequence(
        vec![
            Capabilities::DEPRECATE_EOF,
            Capabilities::SESSION_TRACK,
            Capabilities::OPTIONAL_RESULTSET_METADATA,
            Capabilities::CACHE_METADATA,
            Capabilities::PROGRESS,
        ],
        0..=5,
    )
    .prop_map(|flags| {
        flags
            .into_iter()
            .fold(Capabilities::PROTOCOL_41, |all, flag| all | flag)
    })
}

/// Payloads that mean something often enough.
fn any_payload() -> impl Strategy<Value = Vec<u8>> {
    let status = prop_oneof![Just(2u16), Just(10), Just(0x42), Just(0x100A), any::<u16>()];
    prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..40),
        2 => (1u8..4).prop_map(|columns| vec![columns]),
        1 => (1u8..4, 0u8..2).prop_map(|(columns, flag)| vec![columns, flag]),
        2 => Just(b"\x03def\x00\x00\x00\x01a".to_vec()),
        2 => (prop_oneof![Just(0u8), Just(0xFE)], status.clone()).prop_map(|(first, status)| {
            let [a, b] = status.to_le_bytes();
            vec![first, 0, 0, a, b, 0, 0]
        }),
        2 => status.prop_map(|status| {
            let [a, b] = status.to_le_bytes();
            vec![0xFE, 0, 0, a, b]
        }),
        1 => Just(b"\xff\x48\x04#42S02no".to_vec()),
        1 => Just(b"\xff\xff\xff\x01\x01\x01\x00\x00\x00\x00".to_vec()),
        1 => (0u8..4, 0u8..4).prop_map(|(columns, params)| {
            vec![0, 1, 0, 0, 0, columns, 0, params, 0, 0, 0, 0]
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn any_stream_cut_anywhere(
        expect in any_expect(),
        caps in any_caps(),
        payloads in prop::collection::vec(any_payload(), 0..12),
        sizes in prop::collection::vec(1usize..30, 1..10),
    ) {
        let mut stream = Vec::new();
        for (seq, payload) in payloads.iter().enumerate() {
            frame(&mut stream, seq as u8, payload);
        }
        let whole = follow(expect, caps, &[&stream]);
        let mut pieces = Vec::new();
        let mut rest = &stream[..];
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, more) = rest.split_at(rest.len().min(*size));
            pieces.push(piece);
            rest = more;
        }
        prop_assert_eq!(follow(expect, caps, &pieces), whole);
    }
}

#[test]
fn a_file_is_asked_for_and_answered() {
    let caps = EOF_FREE | Capabilities::LOCAL_FILES;
    let mut tracker = Tracker::new(Expect::Query, caps);
    assert!(!tracker.started());
    assert_eq!(tracker.next(b""), Event::NeedMore);
    assert!(!tracker.started());
    let ask = b"\x02\0\0\x01\xfbx";
    assert_eq!(tracker.next(ask), Event::LocalInfile { len: 6 });
    assert!(tracker.started() && tracker.wants_infile());
    assert_eq!(tracker.next(b""), Event::NeedMore);
    tracker.infile_sent();
    assert!(!tracker.wants_infile());
    let ok = [7, 0, 0, 4, 0, 1, 0, 2, 0, 0, 0];
    assert_eq!(
        tracker.next(&ok),
        Event::Ok {
            len: 11,
            last: true
        }
    );
    assert_eq!(tracker.status(), Status::AUTOCOMMIT);
    assert_eq!(tracker.next(&ok), Event::Done);
}

#[test]
fn a_server_that_talks_nonsense_is_found_out() {
    for (expect, bytes) in [
        (Expect::Query, &b"\0\0\0\x01"[..]),
        (Expect::Query, b"\x01\0\0\x01\0"),
        (Expect::Query, b"\x03\0\0\x01\x01\x01\x01"),
        (Expect::Simple, b"\x01\0\0\x01\x05"),
        (Expect::Prepare, b"\x05\0\0\x01\xfe\0\0\x02\0"),
        (Expect::Fetch, b"\0\0\0\x01"),
        (Expect::Query, b"\xff\xff\xff\x01\0"),
    ] {
        let mut tracker = Tracker::new(expect, EOF_FREE);
        assert_eq!(
            tracker.next(bytes),
            Event::Malformed,
            "{expect:?} {bytes:?}"
        );
        assert_eq!(tracker.next(bytes), Event::Malformed);
        assert!(!tracker.is_done());
    }
}

#[test]
fn progress_reports_come_before_the_answer() {
    let report = b"\x0a\0\0\x01\xff\xff\xff\x01\x01\x01\0\0\0\0";
    let mut tracker = Tracker::new(Expect::Query, EOF_FREE | Capabilities::PROGRESS);
    assert_eq!(tracker.next(report), Event::Progress { len: 14 });
    assert!(!tracker.is_done());
    let mut tracker = Tracker::new(Expect::Query, EOF_FREE);
    assert_eq!(tracker.next(report), Event::Err { len: 14 });
}

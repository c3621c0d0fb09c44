//! Responses of servers that say anything, in one piece and cut: the tracker must not
//! panic, must name no byte that is not there, and must say the same both times.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_protocol::Capabilities;
use millrace_protocol::response::{Event, Expect, Tracker};

const EXPECTS: [Expect; 10] = [
    Expect::Query,
    Expect::Prepare,
    Expect::Execute,
    Expect::Fetch,
    Expect::FieldList,
    Expect::Statistics,
    Expect::Simple,
    Expect::ChangeUser,
    Expect::SetOption,
    Expect::BinlogStream,
];

// The first bytes choose what is expected, the flags, and how to cut.
fuzz_target!(|data: &[u8]| {
    let [expect, flags, cut, data @ ..] = data else {
        return;
    };
    let expect = EXPECTS[usize::from(*expect) % EXPECTS.len()];
    let mut caps = Capabilities::PROTOCOL_41;
    caps.set(Capabilities::DEPRECATE_EOF, flags & 1 != 0);
    caps.set(Capabilities::SESSION_TRACK, flags & 2 != 0);
    caps.set(Capabilities::OPTIONAL_RESULTSET_METADATA, flags & 4 != 0);
    caps.set(Capabilities::CACHE_METADATA, flags & 8 != 0);
    caps.set(Capabilities::PROGRESS, flags & 16 != 0);
    let mut tracker = Tracker::new(expect, caps);
    if flags & 32 != 0 {
        tracker = tracker.showing_counts();
    }
    if flags & 64 != 0 {
        tracker = tracker.opening_cursor();
    }
    let whole = follow(tracker, data, data.len().max(1));
    let pieces = follow(tracker, data, usize::from(*cut).max(1));
    assert_eq!(whole, pieces);
});

/// Events with the passed bytes joined, and the bytes used.
fn follow(mut tracker: Tracker, data: &[u8], size: usize) -> (Vec<Event>, usize) {
    let mut events = Vec::new();
    let (mut at, mut seen, mut passed) = (0, 0, 0);
    loop {
        let event = tracker.next(&data[at..seen]);
        let len = match event {
            Event::Pass(len) => {
                assert!(len > 0);
                passed += len;
                len
            }
            Event::ColumnCount { len }
            | Event::Ok { len, .. }
            | Event::Eof { len, .. }
            | Event::MarkedDefinitionsEnd { len }
            | Event::Err { len }
            | Event::PrepareOk { len, .. }
            | Event::LocalInfile { len }
            | Event::Progress { len } => len,
            Event::NeedMore if seen < data.len() => {
                seen = data.len().min(seen + size);
                continue;
            }
            Event::NeedMore | Event::Done | Event::Malformed => 0,
        };
        at += len;
        assert!(at <= seen);
        if matches!(event, Event::Pass(_)) {
            continue;
        }
        if passed > 0 {
            events.push(Event::Pass(std::mem::take(&mut passed)));
        }
        events.push(event);
        if len == 0 {
            assert_eq!(tracker.is_done(), event == Event::Done);
            return (events, at);
        }
    }
}

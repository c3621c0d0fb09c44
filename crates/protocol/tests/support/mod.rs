//! Reads the captured vectors and follows responses.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use millrace_protocol::Capabilities;
use millrace_protocol::response::{Event, Expect, Tracker};

/// One captured command.
#[derive(Clone, Debug)]
pub struct Vector {
    pub family: &'static str,
    pub name: String,
    pub expect: Expect,
    pub caps: Capabilities,
    pub request: Vec<u8>,
    pub response: Vec<u8>,
}

/// All responses of both families.
pub fn vectors() -> Vec<Vector> {
    let mysql = parse("mysql", include_str!("../vectors/mysql.txt"));
    let mariadb = parse("mariadb", include_str!("../vectors/mariadb.txt"));
    mysql.chain(mariadb).collect()
}

fn parse(family: &'static str, text: &'static str) -> impl Iterator<Item = Vector> {
    text.lines().filter_map(move |line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, expect, caps, request, response] = fields[..] else {
            panic!("bad line: {line}");
        };
        Some(Vector {
            family,
            name: name.to_owned(),
            expect: expect_named(expect)?,
            caps: Capabilities::from_bits_retain(u64::from_str_radix(caps, 16).unwrap()),
            request: unhex(request),
            response: unhex(response),
        })
    })
}

fn expect_named(name: &str) -> Option<Expect> {
    Some(match name {
        "query" => Expect::Query,
        "prepare" => Expect::Prepare,
        "execute" => Expect::Execute,
        "fetch" => Expect::Fetch,
        "field_list" => Expect::FieldList,
        "statistics" => Expect::Statistics,
        "set_option" => Expect::SetOption,
        "simple" => Expect::Simple,
        "greeting" => return None,
        other => panic!("no such expectation: {other}"),
    })
}

pub fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .map(|c| c.to_digit(16).unwrap() as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// All events of the response that starts `pieces`, passed bytes joined, and how many
/// bytes are left behind it. Pieces come one after the other, as from a socket; where
/// the response has not ended with the last one, the last event is `NeedMore`.
pub fn follow(expect: Expect, caps: Capabilities, pieces: &[&[u8]]) -> (Vec<Event>, usize) {
    follow_with(Tracker::new(expect, caps), pieces)
}

/// A tracker for a recorded response: it is told where a cursor was asked for.
pub fn tracker_of(vector: &Vector) -> Tracker {
    let tracker = Tracker::new(vector.expect, vector.caps);
    match vector.name.contains("cursor") {
        true => tracker.opening_cursor(),
        false => tracker,
    }
}

/// The same with a tracker that was made already.
pub fn follow_with(mut tracker: Tracker, pieces: &[&[u8]]) -> (Vec<Event>, usize) {
    let mut events = Vec::new();
    let mut buf = Vec::new();
    let mut pieces = pieces.iter();
    let mut passed = 0;
    loop {
        let event = tracker.next(&buf);
        let used = match event {
            Event::Pass(len)
            | Event::ColumnCount { len }
            | Event::Ok { len, .. }
            | Event::Eof { len, .. }
            | Event::MarkedDefinitionsEnd { len }
            | Event::Err { len }
            | Event::PrepareOk { len, .. }
            | Event::LocalInfile { len }
            | Event::Progress { len } => len,
            Event::NeedMore => {
                if let Some(piece) = pieces.next() {
                    buf.extend_from_slice(piece);
                    continue;
                }
                0
            }
            Event::Done | Event::Malformed => 0,
        };
        assert!(used <= buf.len(), "{event:?} of {} bytes", buf.len());
        assert_eq!(tracker.is_done() && used == 0, event == Event::Done);
        buf.drain(..used);
        if let Event::Pass(len) = event {
            passed += len;
            continue;
        }
        if passed > 0 {
            events.push(Event::Pass(std::mem::take(&mut passed)));
        }
        events.push(event);
        if used == 0 {
            let left = buf.len() + pieces.map(|piece| piece.len()).sum::<usize>();
            return (events, left);
        }
    }
}

//! Replays what real servers answered: MySQL 9.7 and MariaDB 10.11, captured by
//! `vectors/capture.py`.

use millrace_protocol::Capabilities;
use millrace_protocol::response::{Event, Tracker};

mod support;
use support::{Vector, vectors};

/// All events, passed bytes joined.
fn follow(vector: &Vector, cut: usize) -> Vec<Event> {
    let mut tracker = Tracker::new(vector.expect, vector.caps);
    let mut events = Vec::new();
    let mut at = 0;
    let mut seen = cut.min(vector.response.len());
    loop {
        let event = tracker.next(&vector.response[at..seen]);
        at += match event {
            Event::Pass(len)
            | Event::Ok { len, .. }
            | Event::Eof { len, .. }
            | Event::Err { len }
            | Event::PrepareOk { len, .. }
            | Event::LocalInfile { len }
            | Event::Progress { len } => len,
            Event::NeedMore if seen < vector.response.len() => {
                seen = (seen + cut).min(vector.response.len());
                continue;
            }
            Event::NeedMore | Event::Done | Event::Malformed => {
                events.push(event);
                assert_eq!(tracker.is_done(), event == Event::Done);
                assert_eq!(at, vector.response.len(), "{} {events:?}", vector.name);
                return events;
            }
        };
        match (events.last_mut(), event) {
            (Some(Event::Pass(before)), Event::Pass(more)) => *before += more,
            _ => events.push(event),
        }
    }
}

#[test]
fn every_response_ends_where_the_server_ended_it() {
    for vector in vectors() {
        let events = follow(&vector, usize::MAX >> 1);
        if std::env::var_os("SHOW").is_some() {
            println!(
                "{} {:?} {:?} {events:?}",
                vector.family,
                vector.name,
                vector.caps.contains(Capabilities::DEPRECATE_EOF)
            );
        }
        assert_eq!(
            events.last(),
            Some(&Event::Done),
            "{} {} {events:?}",
            vector.family,
            vector.name
        );
    }
}

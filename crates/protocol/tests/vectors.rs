//! Replays what real servers answered: MySQL 9.7 and MariaDB 10.11, captured by
//! `vectors/capture.py`.
#![allow(clippy::unwrap_used, reason = "tests")]

use millrace_protocol::response::Event;

mod support;
use support::{follow_with, tracker_of, vectors};

#[test]
fn every_response_ends_where_the_server_ended_it() {
    let mut seen = 0;
    for vector in vectors() {
        let (events, left) = follow_with(tracker_of(&vector), &[&vector.response]);
        assert_eq!(
            (events.last(), left),
            (Some(&Event::Done), 0),
            "{} {} {:?}: {events:?}",
            vector.family,
            vector.name,
            vector.caps,
        );
        seen += 1;
    }
    assert!(seen > 600, "only {seen} vectors");
}

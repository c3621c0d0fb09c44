//! Commands as real clients' bytes, split and put together again.
#![allow(clippy::unwrap_used, reason = "tests")]

use millrace_protocol::command::{Command, Query, StmtExecute, encode_query, execute_with_types};
use millrace_protocol::packet::payload;
use millrace_protocol::response::Expect;
use millrace_protocol::{Capabilities, Malformed};

mod support;
use support::{Vector, vectors};

#[test]
fn commands_say_how_to_read_their_answers() {
    for vector in vectors() {
        if vector.request.is_empty() || vector.name == "unknown command" {
            continue;
        }
        let command = Command::parse(&vector.request, vector.caps).unwrap();
        assert_eq!(
            command.expect(),
            Some(vector.expect),
            "{} {command:?}",
            vector.name
        );
        if let Command::Query(query) = command {
            let prefixed = vector.caps.contains(Capabilities::QUERY_ATTRIBUTES);
            assert_eq!(query.attributes, if prefixed { &[0, 1][..] } else { &[] });
            let mut again = Vec::new();
            encode_query(&mut again, query.text, vector.caps);
            assert_eq!(payload(&again), vector.request);
        }
    }
    for silent in [&b"\x01"[..], b"\x19\x01\0\0\0", b"\x18\x01\0\0\0\0\0data"] {
        let command = Command::parse(silent, Capabilities::PROTOCOL_41).unwrap();
        assert!(!command.has_response(), "{command:?}");
    }
}

fn execute(vector: &Vector) -> StmtExecute<'_> {
    match Command::parse(&vector.request, vector.caps) {
        Ok(Command::StmtExecute(execute)) => execute,
        other => panic!("{other:?}"),
    }
}

/// An execution that leaves its types out, sent again with them, is the first one.
#[test]
fn left_out_types_are_put_back() {
    let all = vectors();
    let firsts = all.iter().filter(|vector| vector.name == "execute");
    let repeats = all
        .iter()
        .filter(|vector| vector.name == "execute without types");
    let mut seen = 0;
    for (first, repeat) in firsts.zip(repeats) {
        let caps = first.caps;
        let (with, without) = (execute(first), execute(repeat));
        let typed = with.params(1, caps).unwrap();
        let bare = without.params(1, caps).unwrap();
        assert!(typed.new_params_bound && !bare.new_params_bound);
        assert!(bare.types.is_empty());
        assert_eq!(typed.values, 2u64.to_le_bytes());

        let mut out = Vec::new();
        execute_with_types(&mut out, with.id, &without, &bare, typed.types, caps);
        assert_eq!(payload(&out), first.request);

        let mut moved = Vec::new();
        execute_with_types(&mut moved, 77, &with, &typed, b"", caps);
        let moved = payload(&moved);
        let again = Command::parse(&moved, caps);
        assert!(
            matches!(again, Ok(Command::StmtExecute(again)) if again.id == 77 && again.rest == with.rest)
        );
        seen += 1;
    }
    assert!(seen >= 8, "only {seen}");
}

#[test]
fn attributes_stay_apart_from_the_text() {
    let caps = Capabilities::PROTOCOL_41 | Capabilities::QUERY_ATTRIBUTES;
    // Three attributes: a NULL, a string, a datetime.
    let attributes = b"\x03\x01\x01\x01\
        \x06\0\x01n\xfe\0\x01s\x0c\0\x01d\
        \x02hi\x04\xe8\x07\x01\x02";
    let mut request = vec![3];
    request.extend_from_slice(attributes);
    request.extend_from_slice(b"select 1");
    assert_eq!(
        Command::parse(&request, caps),
        Ok(Command::Query(Query {
            attributes,
            text: b"select 1"
        })),
    );
    for cut in 1..=attributes.len() {
        assert_eq!(Command::parse(&request[..cut], caps), Err(Malformed));
    }
    let absurd = [
        &b"\x03\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"[..],
        &[0; 64],
    ]
    .concat();
    assert_eq!(Command::parse(&absurd, caps), Err(Malformed));
}

#[test]
fn parameters_cut_short_are_refused() {
    for attributes in [Capabilities::empty(), Capabilities::QUERY_ATTRIBUTES] {
        let caps = Capabilities::PROTOCOL_41 | attributes;
        for rest in [&b""[..], b"\x02", b"\x02\0", b"\x02\0\x01"] {
            let execute = StmtExecute {
                id: 1,
                flags: 0,
                iterations: 1,
                rest,
            };
            assert_eq!(execute.params(20, caps), Err(Malformed), "{rest:?}");
        }
    }
}

#[test]
fn a_statement_without_parameters_has_none() {
    let execute = StmtExecute {
        id: 1,
        flags: 1,
        iterations: 1,
        rest: b"",
    };
    let params = execute.params(0, Capabilities::QUERY_ATTRIBUTES).unwrap();
    assert_eq!((params.count, params.values), (0, &b""[..]));
    assert!(execute.wants_cursor());
}

#[test]
fn unknown_and_empty_commands() {
    let caps = Capabilities::PROTOCOL_41;
    assert_eq!(Command::parse(b"", caps), Err(Malformed));
    assert_eq!(Command::parse(b"\x77abc", caps), Ok(Command::Other(0x77)));
    assert_eq!(Command::Other(0x77).expect(), Some(Expect::Simple));
    assert_eq!(Command::parse(b"\x0c\x01\0", caps), Err(Malformed));
}

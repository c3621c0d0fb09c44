//! OK packets and small results against what real servers sent.
#![allow(clippy::unwrap_used, reason = "tests")]

use millrace_protocol::ok::{
    Change, ErrPacket, OkFields, OkPacket, encode_end, encode_ok, parse_eof, rewrite_ok,
    status_offset,
};
use millrace_protocol::packet::{HEADER, payload, whole};
use millrace_protocol::response::{Event, Expect};
use millrace_protocol::resultset::{
    Cell, ColumnDef, Reply, TextResult, first_value, parse_text_rows,
};
use millrace_protocol::types::column_type;
use millrace_protocol::{Capabilities, Malformed, Status};

mod support;
use support::{Vector, follow, vectors};

const TRACKED: Capabilities = Capabilities::PROTOCOL_41
    .union(Capabilities::DEPRECATE_EOF)
    .union(Capabilities::SESSION_TRACK);

fn named(family: &str, name: &str) -> Vec<Vector> {
    let found: Vec<Vector> = vectors()
        .into_iter()
        .filter(|vector| vector.family == family && vector.name == name)
        .collect();
    assert!(!found.is_empty(), "no vector {family} {name}");
    found
}

fn changes(vector: &Vector) -> Vec<String> {
    let payload = payload(&vector.response);
    let ok = OkPacket::parse(&payload, vector.caps).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ok.changes()
        .map(|change| match change.unwrap() {
            Change::SystemVariable { name, value } => format!("{}={}", text(name), text(value)),
            Change::Schema(name) => format!("schema {}", text(name)),
            Change::StateChanged(yes) => format!("changed {yes}"),
            Change::Gtids(gtids) => format!("gtid {}", text(gtids).rsplit_once(':').unwrap().1),
            Change::TransactionCharacteristics(sql) => format!("like {}", text(sql)),
            Change::TransactionState(state) => format!("state {}", text(state)),
            Change::Other(kind, _) => format!("other {kind}"),
        })
        .filter(|change| !change.starts_with("statement_id="))
        .collect()
}

#[test]
fn session_changes_are_those_that_the_server_told() {
    for (family, name, expected) in [
        (
            "mysql",
            "track use",
            &["schema vectors", "changed true"][..],
        ),
        ("mariadb", "track use", &["schema vectors", "changed true"]),
        (
            "mysql",
            "track set",
            &["sql_mode=", "time_zone=+02:00", "changed true"],
        ),
        (
            "mariadb",
            "track set",
            &["time_zone=+02:00", "sql_mode=", "changed true"],
        ),
        ("mysql", "track user variable", &["changed true"]),
        ("mariadb", "track user variable", &["changed true"]),
        (
            "mysql",
            "track begin write",
            &["state T_______", "like START TRANSACTION;"],
        ),
        (
            "mariadb",
            "track begin write",
            &["state T_______", "like START TRANSACTION;"],
        ),
        ("mysql", "track write", &["state T___W___"]),
        ("mariadb", "track write", &["state T___W___"]),
        ("mysql", "track temporary table", &["changed true"]),
    ] {
        for vector in named(family, name) {
            assert_eq!(changes(&vector), expected, "{family} {name}");
        }
    }
    for vector in named("mysql", "track autocommit write") {
        let told = changes(&vector);
        assert!(
            matches!(&told[..], [gtid] if gtid.starts_with("gtid ")),
            "{told:?}"
        );
    }
    for vector in named("mariadb", "track autocommit write") {
        let told = changes(&vector);
        assert!(
            matches!(&told[..], [gtid] if gtid.starts_with("last_gtid=0-1-")),
            "{told:?}"
        );
    }
}

#[test]
fn several_variables_in_one_entry_are_each_told() {
    let payload = b"\0\0\0\x02\x40\0\0\0\x0a\0\x08\x01a\x011\x01b\x012";
    let ok = OkPacket::parse(payload, TRACKED).unwrap();
    let pairs: Vec<_> = ok.changes().map(Result::unwrap).collect();
    let pair = |name, value| Change::SystemVariable { name, value };
    assert_eq!(pairs, [pair(b"a", b"1"), pair(b"b", b"2")]);

    let broken = b"\0\0\0\x02\x40\0\0\0\x06\0\x04\x01a\x091";
    let ok = OkPacket::parse(broken, TRACKED).unwrap();
    assert_eq!(ok.changes().collect::<Vec<_>>(), [Err(Malformed)]);
}

#[test]
fn info_is_read_with_and_without_its_length() {
    for vector in vectors().iter().filter(|vector| vector.name == "insert") {
        let payload = payload(&vector.response);
        let ok = OkPacket::parse(&payload, vector.caps).unwrap();
        assert_eq!(ok.affected_rows, 2);
        assert_eq!(ok.info, b"Records: 2  Duplicates: 0  Warnings: 0");
    }
    let bare = OkPacket::parse(b"\0\x01\0\x02\0\0\0plain", Capabilities::PROTOCOL_41).unwrap();
    assert_eq!(bare.info, b"plain");
}

/// What a server sends comes out unchanged where the client has the same flags and all
/// is kept.
#[test]
fn ok_packets_survive_a_rewrite() {
    let mut seen = 0;
    for vector in vectors() {
        let (events, _) = follow(vector.expect, vector.caps, &[&vector.response]);
        let [Event::Ok { len, .. }, Event::Done] = events[..] else {
            continue;
        };
        let packet = &vector.response[..len];
        let mut out = Vec::new();
        rewrite_ok(
            &mut out,
            packet,
            vector.caps,
            vector.caps,
            |_| true,
            |status| status,
        )
        .unwrap();
        // A server may raise the flag for tracking with nothing to track.
        let mut packet = packet.to_vec();
        let ok = OkPacket::parse(&vector.response[HEADER..len], vector.caps).unwrap();
        if ok.session.is_empty() {
            let at = status_offset(&packet, vector.caps).unwrap();
            packet[at + 1] &= !0x40;
        }
        assert_eq!(out, packet, "{} {}", vector.family, vector.name);
        seen += 1;
    }
    assert!(seen > 200, "only {seen}");
}

#[test]
fn a_client_gets_only_what_it_may_see() {
    let vector = named("mysql", "track commit write").remove(0);
    let mut out = Vec::new();
    let keep = |change: &Change<'_>| matches!(change, Change::TransactionState(_));
    rewrite_ok(
        &mut out,
        &vector.response,
        vector.caps,
        TRACKED,
        keep,
        |status| status,
    )
    .unwrap();
    let rewritten = Vector {
        response: out,
        caps: TRACKED,
        ..vector.clone()
    };
    assert_eq!(changes(&rewritten), ["state ________"]);

    let plain = Capabilities::PROTOCOL_41;
    let mut out = Vec::new();
    let in_trans = |status| status | Status::IN_TRANS;
    rewrite_ok(
        &mut out,
        &vector.response,
        vector.caps,
        plain,
        |_| true,
        in_trans,
    )
    .unwrap();
    assert_eq!(out, [7, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0]);

    let mut out = Vec::new();
    let broken = &vector.response[..12];
    let result = rewrite_ok(
        &mut out,
        broken,
        vector.caps,
        plain,
        |_| true,
        |status| status,
    );
    assert_eq!((result, out.len()), (Err(Malformed), 0));
}

#[test]
fn the_end_of_rows_fits_the_client() {
    let end = OkFields {
        status: Status::AUTOCOMMIT,
        warnings: 3,
        ..OkFields::default()
    };
    let mut out = Vec::new();
    encode_end(&mut out, 5, TRACKED, &end);
    assert_eq!(out, [7, 0, 0, 5, 0xFE, 0, 0, 2, 0, 3, 0]);
    let mut eof = Vec::new();
    rewrite_ok(
        &mut eof,
        &out,
        TRACKED,
        Capabilities::PROTOCOL_41,
        |_| true,
        |status| status,
    )
    .unwrap();
    assert_eq!(eof, [5, 0, 0, 5, 0xFE, 3, 0, 2, 0]);
    assert_eq!(parse_eof(&eof[4..]), Ok((Status::AUTOCOMMIT, 3)));
    assert_eq!(status_offset(&out, TRACKED), Ok(7));
    assert_eq!(status_offset(&eof, Capabilities::PROTOCOL_41), Ok(7));
}

#[test]
fn errors_come_back_byte_for_byte() {
    for vector in vectors()
        .iter()
        .filter(|vector| vector.name == "unknown column")
    {
        let payload = payload(&vector.response);
        let err = ErrPacket::parse(&payload).unwrap();
        assert_eq!((err.code, &err.state), (1054, b"42S22"));
        let mut out = Vec::new();
        err.encode(&mut out, 1);
        assert_eq!(out, vector.response);
    }
}

/// The columns and payloads of the rows in a captured response.
fn columns_and_rows(vector: &Vector) -> (Vec<ColumnDef>, Vec<Vec<u8>>) {
    let mut rest = &vector.response[..];
    let mut packets = Vec::new();
    while let Some(len) = whole(rest) {
        packets.push(payload(&rest[..len]).into_owned());
        rest = &rest[len..];
    }
    let columns = usize::from(packets[0][0]);
    let definitions = &packets[1..=columns];
    let columns = definitions
        .iter()
        .map(|packet| ColumnDef::parse(packet, vector.caps).unwrap())
        .collect();
    let rows = packets[1 + definitions.len()..]
        .iter()
        .filter(|packet| packet[0] != 0xFE)
        .cloned()
        .collect();
    (columns, rows)
}

/// Our own encoding of a result is the server's, byte for byte, text and binary.
#[test]
fn results_are_written_as_servers_write_them() {
    let text = vectors()
        .into_iter()
        .filter(|vector| vector.name == "select rows");
    for vector in text {
        let (columns, _) = columns_and_rows(&vector);
        let mut result = TextResult::new(columns);
        result
            .row(&[
                Cell::Int(1),
                Cell::Bytes(b"one"),
                Cell::Bytes(b"1.50"),
                Cell::Bytes(b"2024-01-02 03:04:05"),
            ])
            .row(&[Cell::UInt(2)])
            .row(&[
                Cell::Int(3),
                Cell::Bytes(b""),
                Cell::Bytes(b"0.00"),
                Cell::Bytes(b"2024-12-31 00:00:00"),
            ]);
        let end = OkFields {
            status: status_of(&vector),
            ..OkFields::default()
        };
        let mut out = Vec::new();
        result.encode(&mut out, 1, vector.caps, &end);
        assert_eq!(
            without_tracking(&out),
            without_tracking(&vector.response),
            "{}",
            vector.family
        );
    }
    let mut seen = 0;
    for vector in vectors()
        .into_iter()
        .filter(|vector| vector.name == "execute constant")
    {
        if vector.response[5] == 0 {
            continue; // without definitions
        }
        let (columns, _) = columns_and_rows(&vector);
        if columns.len() != 3 {
            continue;
        }
        let mut result = TextResult::new(columns);
        result.row(&[Cell::Int(1), Cell::Bytes(b"x"), Cell::Null]);
        let end = OkFields {
            status: Status::AUTOCOMMIT,
            ..OkFields::default()
        };
        let mut out = Vec::new();
        result.encode_binary(&mut out, 1, vector.caps, &end);
        assert_eq!(out, vector.response, "{}", vector.family);
        seen += 1;
    }
    assert!(seen >= 4, "only {seen}");
}

/// Of the EOF that ends the response.
fn status_of(vector: &Vector) -> Status {
    let at = if vector.caps.contains(Capabilities::DEPRECATE_EOF) {
        4
    } else {
        2
    };
    let tail = &vector.response[vector.response.len() - at..];
    Status::from_bits_retain(u16::from_le_bytes([tail[0], tail[1]]))
}

/// MariaDB raises the tracking flag in EOF packets, where nothing can be tracked.
fn without_tracking(response: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = response;
    while let Some(len) = whole(rest) {
        let mut packet = rest[..len].to_vec();
        if packet[HEADER] == 0xFE && len == HEADER + 5 {
            packet[HEADER + 4] &= !0x40;
        }
        out.extend(packet);
        rest = &rest[len..];
    }
    out
}

#[test]
fn control_queries_are_read() {
    for vector in vectors() {
        if vector.expect != Expect::Query || vector.name == "load data local" {
            continue;
        }
        let reply = parse_text_rows(&vector.response, vector.caps);
        match (&vector.name[..], reply.unwrap()) {
            ("select rows", (Reply::Rows(rows), used)) => {
                assert_eq!(used, vector.response.len());
                assert_eq!(rows.rows.len(), 3);
                assert_eq!(rows.columns[1].name, b"name");
                assert_eq!(rows.columns[1].kind, column_type::VAR_STRING);
                assert_eq!(rows.rows[1], [Some(b"2".to_vec()), None, None, None]);
            }
            ("unknown column", (Reply::Err { code, .. }, _)) => assert_eq!(code, 1054),
            ("do", (Reply::Ok { status, .. }, _)) => assert!(status.contains(Status::AUTOCOMMIT)),
            ("select rows" | "unknown column" | "do", other) => panic!("{other:?}"),
            _ => {}
        }
        for cut in 0..vector.response.len().min(60) {
            let cut = &vector.response[..cut];
            if let Ok((_, used)) = parse_text_rows(cut, vector.caps) {
                assert!(used <= cut.len());
            }
        }
    }
}

#[test]
fn our_own_answers_are_followed_to_their_end() {
    let mut result = TextResult::new(vec![ColumnDef::text("name", 45), ColumnDef::integer("n")]);
    result
        .row(&[Cell::Bytes(b"a"), Cell::Int(-1)])
        .row(&[Cell::Null, Cell::Double(1.5)]);
    for caps in [
        Capabilities::PROTOCOL_41,
        TRACKED,
        TRACKED | Capabilities::OPTIONAL_RESULTSET_METADATA,
        TRACKED | Capabilities::CACHE_METADATA | Capabilities::EXTENDED_METADATA,
    ] {
        let end = OkFields::default();
        let mut text = Vec::new();
        result.encode(&mut text, 1, caps, &end);
        let mut binary = Vec::new();
        result.encode_binary(&mut binary, 1, caps, &end);
        let mut prepared = Vec::new();
        result.encode_prepare(&mut prepared, 1, caps, 9, Status::AUTOCOMMIT);
        for (expect, bytes) in [
            (Expect::Query, &text),
            (Expect::Execute, &binary),
            (Expect::Prepare, &prepared),
        ] {
            let (events, left) = follow(expect, caps, &[bytes]);
            assert_eq!(
                (events.last(), left),
                (Some(&Event::Done), 0),
                "{expect:?} {caps:?}"
            );
        }
        let (Reply::Rows(rows), _) = parse_text_rows(&text, caps).unwrap() else {
            panic!("no rows");
        };
        assert_eq!(rows.rows[0], [Some(b"a".to_vec()), Some(b"-1".to_vec())]);
        assert_eq!(first_value(&text, caps), Some(b"a".as_slice()));
        for cut in 0..text.len() {
            // Whatever is missing, it is that or nothing.
            assert!(first_value(&text[..cut], caps).is_none_or(|value| value == b"a"));
        }
        assert_eq!(rows.rows[1], [None, Some(b"1.5".to_vec())]);
    }
}

#[test]
fn an_ok_of_our_own_is_the_servers() {
    let mut out = Vec::new();
    let fields = OkFields {
        status: Status::AUTOCOMMIT,
        ..OkFields::default()
    };
    assert_eq!(encode_ok(&mut out, 255, TRACKED, &fields), 0);
    assert_eq!(out, [7, 0, 0, 255, 0, 0, 0, 2, 0, 0, 0]);
}

#[test]
fn a_routines_own_cursor_is_no_end() {
    use millrace_protocol::response::Tracker;
    // One column, its definition (content does not matter), EOF with CURSOR_EXISTS, a row, EOF.
    let mut bytes = vec![1, 0, 0, 1, 1, 1, 0, 0, 2, 3];
    bytes.extend([5, 0, 0, 3, 0xFE, 0, 0, 0x42, 0]);
    bytes.extend([2, 0, 0, 4, 1, b'5']);
    bytes.extend([5, 0, 0, 5, 0xFE, 0, 0, 0x42, 0]);
    let caps = Capabilities::PROTOCOL_41;
    for (expect, cursor, ends_at) in [
        (Expect::Query, false, bytes.len()),
        (Expect::Execute, false, bytes.len()),
        (Expect::Execute, true, 19),
    ] {
        let mut tracker = Tracker::new(expect, caps);
        if cursor {
            tracker = tracker.opening_cursor();
        }
        let mut at = 0;
        while let Event::Pass(len) | Event::Eof { len, .. } = tracker.next(&bytes[at..]) {
            at += len;
        }
        assert!(tracker.is_done(), "{expect:?} {cursor}");
        assert_eq!(at, ends_at, "{expect:?} {cursor}");
    }
}

#[test]
fn a_marked_end_of_definitions_is_told() {
    use millrace_protocol::response::Tracker;
    // One column, its definition, EOF with SERVER_SESSION_STATE_CHANGED, a row, EOF.
    let mut bytes = vec![1, 0, 0, 1, 1, 1, 0, 0, 2, 3];
    bytes.extend([5, 0, 0, 3, 0xFE, 0, 0, 0x0A, 0x40]);
    bytes.extend([2, 0, 0, 4, 1, b'5']);
    bytes.extend([5, 0, 0, 5, 0xFE, 0, 0, 2, 0]);
    let mut tracker = Tracker::new(Expect::Query, Capabilities::PROTOCOL_41);
    let mut at = 0;
    for expected in [
        Event::Pass(10),
        Event::MarkedDefinitionsEnd { len: 9 },
        Event::Pass(6),
        Event::Eof { len: 9, last: true },
    ] {
        let event = tracker.next(&bytes[at..]);
        assert_eq!(event, expected);
        at += match event {
            Event::Pass(len) | Event::MarkedDefinitionsEnd { len } | Event::Eof { len, .. } => len,
            _ => 0,
        };
    }
    assert!(tracker.is_done());
}

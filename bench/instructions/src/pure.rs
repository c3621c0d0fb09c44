//! The parts that are functions of values: frames, response tracking, classification, routing
//! and the difference of two session states.

use std::hint::black_box;
use std::rc::Rc;

use anyhow::ensure;
use millrace_engine::state::{SessionState, Step, Value, difference};
use millrace_protocol::command::{COM_STMT_CLOSE, Command, encode_command, encode_query};
use millrace_protocol::response::{Event, Expect, Tracker};
use millrace_protocol::{Capabilities, packet};
use millrace_routing::{Access, Decision, Load, Options, Reason, SessionView, decide};
use millrace_sql::{Family, Kind, LexMode, Shapes, Statement, classify};
use millrace_topology::GtidSet;

use crate::client::DATABASE;
use crate::counted::repeat;
use crate::server::{CLIENT, execute, point_select, rows};
use crate::world;

const VERSION: u32 = 90_700;

/// As an application sends them: mostly queries and executions, one packet behind another.
pub(crate) fn frame_command(count: u32) -> anyhow::Result<()> {
    let mut stream = Vec::new();
    for at in 0..4 {
        encode_query(&mut stream, &point_select(at), CLIENT);
        encode_query(&mut stream, INSERT, CLIENT);
        execute(&mut stream, 7, at);
        encode_query(&mut stream, JOIN, CLIENT);
        encode_command(&mut stream, COM_STMT_CLOSE, &at.to_le_bytes());
    }
    let mut at = 0;
    repeat(count, |_| {
        let rest = black_box(&stream[at..]);
        let length = packet::whole(rest).unwrap_or(rest.len());
        let payload = packet::payload(&rest[..length]);
        let _ = black_box(Command::parse(&payload, CLIENT));
        at += length;
        if at == stream.len() {
            at = 0;
        }
    });
    Ok(())
}

/// Follows the whole answer as the relay does; true if it ended as it should.
fn follow(answer: &[u8], expect: Expect, capabilities: Capabilities) -> bool {
    let mut tracker = Tracker::new(expect, capabilities);
    let mut at = 0;
    loop {
        match tracker.next(&answer[at..]) {
            Event::Pass(len) | Event::Ok { len, .. } | Event::Eof { len, .. } => at += len,
            Event::Done => return at == answer.len(),
            _ => return false,
        }
    }
}

fn track(count: u32, expect: Expect, answer: &[u8]) -> anyhow::Result<()> {
    ensure!(follow(answer, expect, CLIENT), "not a whole answer");
    repeat(count, |_| {
        black_box(follow(black_box(answer), black_box(expect), CLIENT));
    });
    Ok(())
}

pub(crate) fn track_1_row(count: u32) -> anyhow::Result<()> {
    let mut answer = Vec::new();
    rows(1, false, &mut answer, CLIENT);
    track(count, Expect::Query, &answer)
}

pub(crate) fn track_100_rows(count: u32) -> anyhow::Result<()> {
    let mut answer = Vec::new();
    rows(100, false, &mut answer, CLIENT);
    track(count, Expect::Query, &answer)
}

pub(crate) fn track_1_row_binary(count: u32) -> anyhow::Result<()> {
    let mut answer = Vec::new();
    rows(1, true, &mut answer, CLIENT);
    track(count, Expect::Execute, &answer)
}

const INSERT: &[u8] = b"INSERT INTO sbtest1 (id, k, c, pad) VALUES (502317, 499284, \
    '68487932199-96439406143-93774651418-41631865787-96406072701-20604855487-25459966574-\
28203206787-41238978918-19503783441', '22195207048-70116052123-74140395089-76317954521-98694025897')";

const JOIN: &[u8] = b"SELECT c.id, c.name, o.number, SUM(i.quantity * i.price) AS total, COUNT(*) \
    FROM customers AS c \
    JOIN orders AS o ON o.customer_id = c.id AND o.placed_at >= '2026-01-01' \
    JOIN items i ON i.order_id = o.id \
    LEFT JOIN `returns` r ON r.item_id = i.id AND r.accepted = 1 \
    WHERE c.region IN ('north', 'east') AND r.id IS NULL \
    AND o.id NOT IN (SELECT order_id FROM disputes WHERE closed_at IS NULL) \
    GROUP BY c.id, c.name, o.number HAVING total > 100.50 \
    ORDER BY total DESC, c.name LIMIT 50 -- the monthly report";

fn classify_text(count: u32, text: &[u8], kind: Kind) -> anyhow::Result<()> {
    let mut mode = LexMode::new(Family::MySql, VERSION);
    mode.set_sql_mode(world::SQL_MODE.as_bytes());
    let mut statement = Statement::default();
    classify(text, &mode, &mut statement);
    ensure!(statement.kind == kind, "classified as {:?}", statement.kind);
    repeat(count, |_| {
        classify(black_box(text), &mode, black_box(&mut statement));
    });
    Ok(())
}

pub(crate) fn classify_point_select(count: u32) -> anyhow::Result<()> {
    classify_text(count, &point_select(0), Kind::Select)
}

pub(crate) fn classify_known_shape(count: u32) -> anyhow::Result<()> {
    let mut mode = LexMode::new(Family::MySql, VERSION);
    mode.set_sql_mode(world::SQL_MODE.as_bytes());
    let mut shapes = Shapes::default();
    let first = shapes.classify(&point_select(0), &mode);
    let texts: Vec<Vec<u8>> = (1..64).map(point_select).collect();
    let known = |class: &Rc<Statement>| Rc::ptr_eq(class, &first);
    for text in &texts {
        ensure!(known(&shapes.classify(text, &mode)), "read as if new");
    }
    repeat(count, |at| {
        black_box(shapes.classify(black_box(&texts[at as usize % texts.len()]), &mode));
    });
    Ok(())
}

pub(crate) fn classify_insert(count: u32) -> anyhow::Result<()> {
    classify_text(count, INSERT, Kind::Insert)
}

pub(crate) fn classify_join(count: u32) -> anyhow::Result<()> {
    classify_text(count, JOIN, Kind::Select)
}

fn decide_for(count: u32, required: &GtidSet, reason: Reason) -> anyhow::Result<()> {
    let snapshot = world::snapshot()?;
    let options = Options::default();
    let view = SessionView::new(required);
    // What sessions have seen of the servers since the last probe.
    let known = [
        GtidSet::new(millrace_topology::Family::MySql),
        world::up_to(world::EXECUTED + 17)?,
        world::up_to(world::EXECUTED + 12)?,
    ];
    let decided = |rotation| {
        let load = Load {
            outstanding: &[4, 2, 2],
            response_us: &[],
            known: &known,
            behind: 0,
            rotation,
        };
        decide(&snapshot, &options, &view, Access::Read, &load)
    };
    ensure!(
        matches!(decided(0), Decision::Send { reason: given, .. } if given == reason),
        "decided {:?}",
        decided(0)
    );
    repeat(count, |at| {
        black_box(decided(black_box(at)));
    });
    Ok(())
}

pub(crate) fn decide_read(count: u32) -> anyhow::Result<()> {
    decide_for(count, &world::up_to(world::EXECUTED)?, Reason::Read)
}

pub(crate) fn decide_read_waiting(count: u32) -> anyhow::Result<()> {
    let required = world::up_to(world::EXECUTED + 20)?;
    decide_for(count, &required, Reason::ReadAfterWait)
}

fn state(variables: &[(&str, &str)]) -> SessionState {
    let mut state = SessionState {
        database: DATABASE.into(),
        ..SessionState::default()
    };
    let charset = [
        ("character_set_client", "utf8mb4"),
        ("character_set_results", "utf8mb4"),
        ("collation_connection", "utf8mb4_0900_ai_ci"),
    ];
    for (name, value) in charset.iter().chain(variables) {
        state.set(name, Value::Reported(value.as_bytes().into()));
    }
    state
}

/// Two sessions of different applications.
pub(crate) fn state_difference(count: u32) -> anyhow::Result<()> {
    let from = state(&[
        ("sql_mode", world::SQL_MODE),
        ("time_zone", "+00:00"),
        ("net_write_timeout", "600"),
    ]);
    let to = state(&[
        ("sql_mode", "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION"),
        ("time_zone", "Europe/Berlin"),
        ("wait_timeout", "28800"),
        ("transaction_isolation", "READ-COMMITTED"),
        ("foreign_key_checks", "OFF"),
    ]);
    let (mut out, mut steps) = (Vec::new(), Vec::new());
    difference(&from, &to, true, &mut out, &mut steps);
    ensure!(steps == [Step::Set], "the difference is {steps:?}");
    repeat(count, |_| {
        // As a statement's setup does, with buffers of its own.
        let (mut out, mut steps) = (Vec::new(), Vec::new());
        difference(black_box(&from), black_box(&to), true, &mut out, &mut steps);
        black_box((out, steps));
    });
    Ok(())
}

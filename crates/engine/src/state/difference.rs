//! The commands that turn one connection's state into another session's, as bytes.

use millrace_protocol::packet;

use super::{CHARSET, NAMES, SETS_ANOTHER, SessionState, Value, is_same};

/// Appends a text command; `attributes` says whether the connection speaks query attributes, in
/// which case the empty list stands before the text.
pub fn frame_query(out: &mut Vec<u8>, attributes: bool, text: &[u8]) {
    let mut payload = Vec::with_capacity(text.len() + 3);
    payload.push(0x03);
    if attributes {
        payload.extend_from_slice(&[0, 1]);
    }
    payload.extend_from_slice(text);
    packet::frame(out, 0, &payload);
}

/// A command of a replay, as far as its answer is read differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// COM_QUERY with SET.
    Set,
    /// COM_INIT_DB.
    Database,
    /// COM_SET_OPTION.
    Option,
}

/// Appends the commands that turn `from` into `to` and names them in order. `to` has a database
/// where `from` has one: there is no command that takes it away.
pub fn difference(
    from: &SessionState,
    to: &SessionState,
    attributes: bool,
    out: &mut Vec<u8>,
    steps: &mut Vec<Step>,
) {
    let moves = from.database != to.database && !to.database.is_empty();
    // A name beyond ASCII is read in the connection's character set, so that is set first.
    for set in [assignments(from, to), late_assignment(from, to)] {
        if !set.is_empty() {
            frame_query(out, attributes, &set);
            steps.push(Step::Set);
        }
    }
    if moves {
        let mut payload = Vec::with_capacity(to.database.len() + 1);
        payload.push(0x02);
        payload.extend_from_slice(&to.database);
        packet::frame(out, 0, &payload);
        steps.push(Step::Database);
    }
    if from.multi_statements != to.multi_statements {
        let option = if to.multi_statements { 0u8 } else { 1 };
        packet::frame(out, 0, &[0x1b, option, 0]);
        steps.push(Step::Option);
    }
}

/// MySQL's `SET foreign_key_checks = DEFAULT` and its like set OFF, whatever the default is
/// (observed on 9.7).
const DEFAULT_IS_OFF: [&str; 2] = ["foreign_key_checks", "unique_checks"];

/// MariaDB: a time, read in the `time_zone` that was in force before the whole SET (observed).
const LATE: &str = "system_versioning_asof";

/// `SET a=…, b=DEFAULT`, or nothing where the variables are alike.
pub(super) fn assignments(from: &SessionState, to: &SessionState) -> Vec<u8> {
    let mut set = Vec::new();
    if CHARSET
        .iter()
        .any(|name| from.variable(name) != to.variable(name))
    {
        assign_charset(&mut set, to);
    }
    let [setting, also_set] = SETS_ANOTHER;
    let mut is_also_set = false;
    let mut add = |name: &str, value: Option<&Value>| {
        is_also_set |= name == setting || name == also_set;
        if name != also_set {
            assign(&mut set, to, name, value);
        }
    };
    let others = |name: &str| !CHARSET.contains(&name) && name != LATE;
    for (name, _) in from.variables.iter().filter(|(name, _)| others(name)) {
        if to.variable(name).is_none() {
            add(name, None);
        }
    }
    for (name, value) in to.variables.iter().filter(|(name, _)| others(name)) {
        let is_there = match from.variable(name) {
            Some(held) => held == value,
            None => matches!((value, from.basis.get(name)),
                (Value::Reported(value) | Value::Literal(value), Some(held)) if is_same(value, held)),
        };
        if !is_there {
            add(name, Some(value));
        }
    }
    if from.basis != to.basis {
        for (name, value) in &to.basis.values {
            let is_set = from.variable(name).is_some() || to.variable(name).is_some();
            if !is_set && from.basis.get(name).is_some_and(|held| held != &**value) {
                add(name, None);
            }
        }
    }
    if is_also_set {
        assign(&mut set, to, also_set, to.variable(also_set));
    }
    set
}

/// Sets a variable to `value`; without one to what a login has.
fn assign(set: &mut Vec<u8>, to: &SessionState, name: &str, value: Option<&Value>) {
    begin_assignment(set, name);
    match value {
        None if to.basis.get(name).is_some() => {
            write_reported(set, to.basis.get(name).unwrap_or_default());
        }
        None if DEFAULT_IS_OFF.contains(&name) => {
            set.extend_from_slice(b"@@global.");
            set.extend_from_slice(name.as_bytes());
        }
        None => set.extend_from_slice(b"DEFAULT"),
        Some(value) => write_value(set, value),
    }
}

pub(super) fn late_assignment(from: &SessionState, to: &SessionState) -> Vec<u8> {
    let mut set = Vec::new();
    let zones = from.effective("time_zone") != to.effective("time_zone");
    let value = to.variable(LATE);
    if from.variable(LATE) != value || (zones && value.is_some()) {
        begin_assignment(&mut set, LATE);
        match value {
            None => set.extend_from_slice(b"DEFAULT"),
            Some(value) => write_value(&mut set, value),
        }
    }
    set
}

fn begin_assignment(set: &mut Vec<u8>, name: &str) {
    set.extend_from_slice(if set.is_empty() { b"SET " } else { b"," });
    set.extend_from_slice(b"@@session.");
    set.extend_from_slice(name.as_bytes());
    set.push(b'=');
}

/// SET NAMES, where that is known, and what is otherwise than it makes it.
fn assign_charset(set: &mut Vec<u8>, to: &SessionState) {
    let mut made: [Option<&[u8]>; 5] = [None; 5];
    if let Some(Value::Literal(names)) = to.variable(NAMES) {
        set.extend_from_slice(b"SET NAMES ");
        set.extend_from_slice(names);
        let blank = names.iter().position(|byte| *byte == b' ');
        let charset = &names[..blank.unwrap_or(names.len())];
        let collation =
            blank.map(|_| &names[names.iter().rposition(|b| *b == b' ').unwrap_or(0) + 1..]);
        made = [None, Some(charset), Some(charset), Some(charset), collation];
    }
    for (name, made) in CHARSET.iter().zip(made).skip(1) {
        if let Some(value) = to.variable(name)
            && !matches!((value, made), (Value::Reported(value), Some(made)) if **value == *made)
        {
            begin_assignment(set, name);
            write_value(set, value);
        }
    }
}

/// Before a string that is read on a connection whose collation is another session's: under utf16
/// a bare literal would be no time zone and no mode (observed).
const INTRODUCER: &[u8] = b"_utf8mb4";

fn is_plain_string(text: &[u8]) -> bool {
    text.is_ascii() && text.first() == Some(&b'\'')
}

/// A value as SQL text that means the same under every `sql_mode` and character set.
fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"NULL"),
        Value::Literal(text) => {
            if is_plain_string(text) {
                out.extend_from_slice(INTRODUCER);
            }
            out.extend_from_slice(text);
        }
        Value::Reported(text) => write_reported(out, text),
    }
}

fn write_reported(out: &mut Vec<u8>, text: &[u8]) {
    if is_number(text) {
        out.extend_from_slice(text);
    } else if text.iter().all(|b| is_plain(*b)) {
        out.extend_from_slice(INTRODUCER);
        out.push(b'\'');
        out.extend_from_slice(text);
        out.push(b'\'');
    } else {
        write_hex(out, "_utf8mb4", text);
    }
}

/// `introducer x'…'`: bytes that no quoting rule can touch.
pub fn write_hex(out: &mut Vec<u8>, introducer: &str, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(introducer.as_bytes());
    out.extend_from_slice(b" x'");
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
    out.push(b'\'');
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b" _-+.,:/=%@()[]#~".contains(&byte)
}

fn is_number(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let mut dots = 0;
    !digits.is_empty()
        && digits[0].is_ascii_digit()
        && digits.iter().all(|b| {
            dots += usize::from(*b == b'.');
            b.is_ascii_digit() || *b == b'.'
        })
        && dots <= 1
}

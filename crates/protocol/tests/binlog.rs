//! Reads binary logs that MySQL 9.7 and MariaDB 10.11 wrote, recorded by `vectors/capture_binlog.py`, and compares
//! with what the servers' own tools say of them.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashMap;

use millrace_protocol::binlog::gtid::mariadb_flags;
use millrace_protocol::binlog::rows::{Change, Images, Value};
use millrace_protocol::binlog::table::Layout;
use millrace_protocol::binlog::{Event, Format, Header, Unreadable, events};
use proptest::prelude::*;

/// Most bytes that a payload of these logs inflates to.
const LIMIT: usize = 1 << 20;

macro_rules! logs {
    ($($name:literal)*) => {
        [$((
            $name,
            include_bytes!(concat!("vectors/binlog/", $name, ".log")),
            include_bytes!(concat!("vectors/binlog/", $name, ".txt")),
        )),*]
    };
}

const LOGS: [(&str, &[u8], &[u8]); 11] = logs!(
    "mysql-rows" "mysql-statements" "mysql-compressed" "mysql-json" "mysql-tagged"
    "mysql-unchecked" "mariadb-rows" "mariadb-statements" "mariadb-compressed" "mariadb-more"
    "mariadb-unchecked"
);

fn log(name: &str) -> &'static [u8] {
    let named = LOGS.iter().find(|(known, ..)| *known == name);
    named.unwrap().1
}

/// What a log says, in words that can be compared with the tools'.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    gtids: Vec<String>,
    /// Change, table and side of each image, then each column that it has.
    images: Vec<String>,
    commits: Vec<String>,
    prepared: Vec<String>,
    /// Database and text of each statement, and its error.
    texts: Vec<(String, String)>,
    /// The last layout of each table.
    layouts: HashMap<String, Layout>,
    unknown: Vec<u8>,
}

/// A reader of a log, as a follower is one.
struct Reading {
    format: Format,
    tables: HashMap<u64, (String, Layout)>,
    seen: Seen,
    /// The log is as its server wrote it.
    is_recorded: bool,
}

fn follow(log: &[u8]) -> Result<Seen, Unreadable> {
    let mut reading = Reading {
        format: Format::new(false),
        tables: HashMap::new(),
        seen: Seen::default(),
        is_recorded: true,
    };
    for event in events(&log[4..]) {
        let (header, event) = reading.format.read(event?)?;
        reading.event(&header, event)?;
    }
    Ok(reading.seen)
}

impl Reading {
    fn event(&mut self, header: &Header, event: Event<'_>) -> Result<(), Unreadable> {
        let mut buf = Vec::new();
        let seen = &mut self.seen;
        match event {
            Event::Gtid(gtid) => seen
                .gtids
                .push(gtid_text(gtid.source, gtid.tag, gtid.number)),
            Event::MariaDbGtid(gtid) => {
                let text = format!("{}-{}-{}", gtid.domain, header.server_id, gtid.sequence);
                seen.gtids.push(text);
                let of_xa = mariadb_flags::PREPARED_XA | mariadb_flags::COMPLETED_XA;
                if self.is_recorded && gtid.has(of_xa) {
                    let xid = gtid.xid.unwrap();
                    assert_eq!(
                        (xid.gtrid, xid.bqual, xid.format_id),
                        (&b"trx"[..], &b"branch"[..], 7)
                    );
                }
            }
            Event::Xid(xid) => seen.commits.push(xid.to_string()),
            Event::XaPrepare(prepared) => seen.prepared.push(format!(
                "X'{}',X'{}',{}",
                hex(prepared.xid.gtrid),
                hex(prepared.xid.bqual),
                prepared.xid.format_id
            )),
            Event::Query(query) => {
                let text = query.text.plain(&mut buf, LIMIT)?;
                assert!(
                    query.settings.are_complete || !self.is_recorded,
                    "{header:?} {query:?}"
                );
                let words = |bytes| String::from_utf8_lossy(bytes).into_owned();
                seen.texts.push((words(query.database), words(text)));
            }
            Event::TableMap(map) => {
                let mut layout = Layout::default();
                layout.read(&map)?;
                let words = |bytes| String::from_utf8_lossy(bytes).into_owned();
                let name = format!("`{}`.`{}`", words(map.database), words(map.table));
                seen.layouts.insert(name.clone(), layout.clone());
                self.tables.insert(map.id, (name, layout));
            }
            Event::Rows(rows) => {
                let data = rows.data.plain(&mut buf, LIMIT)?;
                let (name, layout) = self
                    .tables
                    .get(&rows.table_id)
                    .ok_or(Unreadable::Malformed)?;
                let images = rows.images(layout, data)?;
                let change = match rows.change {
                    Change::Write => "INSERT INTO",
                    Change::Delete => "DELETE FROM",
                    Change::Update | Change::PartialUpdate => "UPDATE",
                };
                tell(
                    images,
                    change,
                    name,
                    layout.columns().len(),
                    &mut seen.images,
                )?;
                if rows.ends_statement() {
                    self.tables.clear();
                }
            }
            Event::Payload(payload) => {
                for event in events(payload.plain(&mut buf, LIMIT)?) {
                    let (header, event) = self.format.read_inner(event?)?;
                    self.event(&header, event)?;
                }
            }
            Event::Unknown(kind) | Event::Ignorable(kind) => seen.unknown.push(kind),
            _ => {}
        }
        Ok(())
    }
}

fn gtid_text(source: [u8; 16], tag: &[u8], number: u64) -> String {
    let digits = hex(&source);
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &digits[range]);
    let tag = String::from_utf8_lossy(tag);
    let colon = if tag.is_empty() { "" } else { ":" };
    format!("{}{colon}{tag}:{number}", parts.join("-"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn tell(
    mut images: Images<'_, '_>,
    change: &str,
    table: &str,
    columns: usize,
    out: &mut Vec<String>,
) -> Result<(), Unreadable> {
    let wanted: Vec<u16> = (0..columns as u16).collect();
    let mut values = vec![Value::Absent; columns];
    while let Some(side) = images.next(&wanted, &mut values)? {
        out.push(format!("{change} {table} {side:?}"));
        for (at, value) in values.iter().enumerate() {
            let text = match value {
                Value::Absent => continue,
                Value::Null => "NULL".to_owned(),
                Value::Int(int) => int.signed().to_string(),
                Value::Bytes(bytes) => format!("'{}'", String::from_utf8_lossy(bytes)),
                Value::Other(_) => "?".to_owned(),
            };
            out.push(format!("@{}={text}", at + 1));
        }
    }
    Ok(())
}

/// The tool's words for rows, in the form of [`Seen::images`].
fn told(text: &str) -> Vec<String> {
    let (mut out, mut head) = (Vec::new(), String::new());
    for line in text.lines().filter_map(|line| line.strip_prefix("### ")) {
        match line {
            "WHERE" => out.push(format!("{head} Before")),
            "SET" => out.push(format!("{head} After")),
            _ if line.starts_with("  @") => {
                out.push(line[2..].to_owned());
            }
            // An image without columns.
            _ if line.ends_with(" VALUES ()") => {
                out.push(line.replace(" VALUES ()", " After"));
            }
            _ => head = line.to_owned(),
        }
    }
    out
}

fn is_same(ours: &str, theirs: &str) -> bool {
    let Some((column, value)) = ours.split_once('=') else {
        return ours == theirs;
    };
    let Some((their_column, their_value)) = theirs.split_once('=') else {
        return false;
    };
    // Numbers without a sign come as `-1 (255)`; bytes that are no text come escaped, JSON comes as text.
    column == their_column
        && (value == their_value
            || value == "?" && their_value != "NULL"
            || their_value.starts_with(&format!("{value} ("))
            || value.starts_with('\'')
                && (their_value.contains('\\')
                    || !their_value.starts_with('\'')
                    || value.contains(|c: char| c.is_control())))
}

/// What follows `before` in each line that has it, up to `end`.
fn after<'t>(text: &'t str, before: &str, end: char) -> Vec<&'t str> {
    text.lines()
        .filter_map(|line| Some(line.split_once(before)?.1))
        .map(|rest| rest.split(end).next().unwrap())
        .collect()
}

#[test]
fn rows_and_identifiers_are_what_the_servers_tools_say() {
    for (name, log, text) in LOGS {
        let seen = follow(log).unwrap_or_else(|error| panic!("{name}: {error}"));
        let text: String = text.iter().map(|&byte| char::from(byte)).collect();
        assert_eq!(seen.unknown, [0; 0], "{name}");
        let theirs = told(&text);
        let ours = &seen.images;
        assert!(ours.len() > 3, "{name}");
        for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            assert!(
                is_same(ours, theirs),
                "{name}: line {at}: {ours:?}, {theirs:?}"
            );
        }
        assert_eq!(ours.len(), theirs.len(), "{name}");
        let gtids = match name.starts_with("mysql") {
            true => after(&text, "GTID_NEXT= '", '\''),
            false => after(&text, "GTID ", ' '),
        };
        let gtids: Vec<_> = gtids
            .into_iter()
            .filter(|gtid| *gtid != "AUTOMATIC")
            .collect();
        assert_eq!(seen.gtids, gtids, "{name}");
        // DDL has a number, too, as part of its statement.
        let commits = text.lines().filter(|line| !line.contains("Query"));
        let commits: String = commits.flat_map(|line| [line, "\n"]).collect();
        assert_eq!(seen.commits, after(&commits, "Xid = ", ' '), "{name}");
        let prepared = after(&text, "XA PREPARE ", ' ');
        assert_eq!(seen.prepared, prepared, "{name}");
    }
}

/// Which MySQL's tool cannot show.
#[test]
fn geometries_are_passed_over() {
    for log in [
        &include_bytes!("vectors/binlog/mysql-geometry.log")[..],
        &include_bytes!("vectors/binlog/mariadb-geometry.log")[..],
    ] {
        let seen = follow(log).unwrap();
        let last: Vec<_> = seen
            .images
            .iter()
            .filter(|line| line.starts_with("@3="))
            .collect();
        assert_eq!(last, ["@3=77", "@3=77", "@3=78"]);
    }
}

#[test]
fn a_wrong_byte_is_found_by_the_checksum() {
    let log = log("mysql-tagged");
    for at in 4..log.len() {
        let mut wrong = log.to_vec();
        wrong[at] ^= 0x20;
        assert!(follow(&wrong).is_err(), "byte {at}");
    }
}

#[test]
fn a_log_in_use_has_the_same_checksum() {
    let mut log = log("mysql-tagged").to_vec();
    log[4 + 17] |= 1;
    assert!(follow(&log).is_ok());
}

#[test]
fn numbers_have_signs_where_the_log_says_so() {
    let f = Some(false);
    let t = Some(true);
    // YEAR counts as a number.
    let wanted = [f, t, f, t, t, f, t, f, t, f, t, f];
    for name in ["mysql-rows", "mysql-compressed", "mariadb-more"] {
        let seen = follow(log(name)).unwrap();
        let ints = &seen.layouts["`d`.`ints`"];
        let signs: Vec<_> = ints
            .columns()
            .iter()
            .map(|column| column.is_unsigned)
            .collect();
        assert_eq!(signs, wanted, "{name}");
    }
    let seen = follow(log("mariadb-rows")).unwrap();
    let ints = &seen.layouts["`d`.`ints`"];
    assert!(
        ints.columns()
            .iter()
            .all(|column| column.is_unsigned.is_none())
    );
}

#[test]
fn primary_keys_where_the_log_says_so() {
    let seen = follow(log("mysql-json")).unwrap();
    let key = |table: &str| seen.layouts[&format!("`d`.`{table}`")].primary_key();
    assert_eq!(key("j"), [4]);
    assert_eq!(key("parts"), [0]);
    assert_eq!(key("gipk"), [0]);
    assert_eq!(key("prefix"), [0; 0], "a part of a column");
    let seen = follow(log("mariadb-more")).unwrap();
    let key = |table: &str| seen.layouts[&format!("`d`.`{table}`")].primary_key();
    assert_eq!(key("ints"), [7, 6]);
    assert_eq!(key("own"), [0]);
    assert_eq!(key("keyed"), [0; 0], "a part of a column");
    let seen = follow(log("mysql-rows")).unwrap();
    assert_eq!(seen.layouts["`d`.`t`"].primary_key(), [0; 0]);
}

#[test]
fn statements_with_database_and_settings() {
    for name in [
        "mysql-statements",
        "mariadb-statements",
        "mariadb-compressed",
    ] {
        let seen = follow(log(name)).unwrap();
        let texts: Vec<_> = seen
            .texts
            .iter()
            .map(|(database, text)| (&**database, &**text))
            .collect();
        for wanted in [
            ("d", "INSERT INTO t (id, v) VALUES (1, 'é')"),
            ("d", "UPDATE t SET v = @x WHERE \"id\" = 1"),
            ("d", "UPDATE t SET u = 1"),
        ] {
            assert!(
                texts.contains(&wanted),
                "{name}: {wanted:?} is not in {texts:#?}"
            );
        }
        assert!(
            texts.iter().any(|(_, text)| text.starts_with("LOAD DATA")),
            "{name}"
        );
        assert!(
            texts.iter().any(|(_, text)| text.starts_with("XA COMMIT")),
            "{name}"
        );
    }
    let seen = follow(log("mariadb-statements")).unwrap();
    let set_statement = "SET STATEMENT binlog_format='STATEMENT' FOR INSERT INTO t (id) VALUES (9)";
    assert!(seen.texts.iter().any(|(_, text)| text == set_statement));
}

/// The events of a log, each alone, under the format that its log begins with.
fn single_events(log: &'static [u8]) -> (Format, Vec<&'static [u8]>) {
    let mut format = Format::new(false);
    let events: Vec<_> = events(&log[4..]).map(Result::unwrap).collect();
    format.read(events[0]).unwrap();
    (format, events)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// With a checksum that is right again, so that what is behind it is reached.
    #[test]
    fn wrong_bytes_do_no_harm(
        which in 0..LOGS.len(),
        at: prop::sample::Index,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let (format, events) = single_events(LOGS[which].1);
        let at = at.index(events.len());
        let mut reading = Reading { format, tables: HashMap::new(), seen: Seen::default(), is_recorded: false };
        // The TABLE_MAPs before it.
        for event in &events[at.saturating_sub(3)..at] {
            if let Ok((header, event)) = reading.format.read(event) {
                let _ = reading.event(&header, event);
            }
        }
        let mut event = events[at].to_vec();
        for (place, value) in changes {
            let place = place.index(event.len());
            event[place] = value;
        }
        let len = event.len();
        event[9..13].copy_from_slice(&(len as u32).to_le_bytes());
        if reading.format.has_checksum() {
            let sum = crc32fast::hash(&event[..len - 4]);
            event[len - 4..].copy_from_slice(&sum.to_le_bytes());
        }
        let mut format = reading.format.clone();
        if let Ok((header, event)) = format.read(&event) {
            let _ = reading.event(&header, event);
        }
    }

    #[test]
    fn a_log_that_is_cut_does_no_harm(which in 0..LOGS.len(), len: prop::sample::Index) {
        let log = LOGS[which].1;
        let _ = follow(&log[..4 + len.index(log.len() - 4)]);
    }
}

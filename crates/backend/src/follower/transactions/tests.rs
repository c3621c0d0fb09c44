//! Logs that servers have written, single events, and what their transactions touch.

use millrace_cache::{IndexKeys, Key, PRIMARY};
use millrace_protocol::binlog::event_type as t;

use super::super::catalogue::SchemaRows;
use super::*;

macro_rules! logs {
    ($($name:literal)*) => {
        [$((
            $name,
            include_bytes!(concat!("../../../../protocol/tests/vectors/binlog/", $name, ".log")),
        )),*]
    };
}

/// Of MySQL 9.7 and MariaDB 10.11; they have one GTID a transaction.
const LOGS: [(&str, &[u8]); 10] = logs!(
    "mysql-unchecked" "mysql-rows" "mysql-statements" "mysql-compressed" "mysql-json" "mysql-tagged"
    "mariadb-rows" "mariadb-statements" "mariadb-compressed" "mariadb-unchecked"
);

#[test]
fn each_transaction_of_a_log_comes_to_its_end() {
    for (name, log) in LOGS {
        let mut transactions = Transactions::new();
        transactions.begin_stream(false);
        transactions.know_tables(Arc::default());
        let (mut begun, mut ended, mut unknown) = (0, 0, 0);
        for raw in events(&log[4..]) {
            let raw = raw.expect("the log is whole");
            let kind = Header::parse(raw).expect("a header").kind;
            begun += usize::from(matches!(kind, t::GTID | t::GTID_TAGGED | t::MARIADB_GTID));
            let taken = transactions.take(raw);
            let taken = taken.unwrap_or_else(|broken| panic!("{name}: {broken:?}"));
            if let Some(over) = taken {
                ended += 1;
                unknown += usize::from(over.deed == Deed::Unknown && !over.redefines());
                assert!(!over.transaction.is_empty(), "{name}");
            }
        }
        assert_eq!(begun, ended, "{name}");
        assert!(begun > 1 && unknown < begun, "{name}: {unknown} of {begun}");
    }
}

/// A stream that begins as the unchecked log does.
struct Stream(Transactions);

fn event(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut raw = vec![0; 4];
    raw.push(kind);
    raw.extend_from_slice(&1u32.to_le_bytes());
    raw.extend_from_slice(&((HEADER + body.len()) as u32).to_le_bytes());
    raw.extend_from_slice(&[0; 6]);
    raw.extend_from_slice(body);
    raw
}

fn name(out: &mut Vec<u8>, name: &str) {
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
    out.push(0);
}

/// Tables p, c, g of (INT, INT) with a key, c a child of p, g of c; and s, of which nothing is known.
fn catalogue() -> Arc<Catalogue> {
    let row = |cells: &str| {
        let cell = |text: &str| Some(text.as_bytes().to_vec());
        cells.split(' ').map(cell).collect::<Vec<_>>()
    };
    let tables = ["p", "c", "g"];
    let each = |rest: &str| {
        tables
            .map(|table| row(&format!("d {table}{rest}")))
            .to_vec()
    };
    Arc::new(Catalogue::new(&SchemaRows {
        tables: each(""),
        columns: each(" 2 2"),
        key_columns: each(" id 1 int int  "),
        primary_keys: each(" id "),
        foreign_keys: vec![
            row("d c d p RESTRICT CASCADE"),
            row("d g d c RESTRICT CASCADE"),
        ],
        triggers: Some(Vec::new()),
        ..SchemaRows::default()
    }))
}

fn of(table: &str) -> Subject {
    Subject::table(b"d", table.as_bytes())
}

fn whole(tables: &[&str]) -> Vec<Touch> {
    tables.iter().map(|table| Touch::whole(of(table))).collect()
}

fn keys(table: &str, keys: &[i64]) -> Touch {
    Touch {
        subject: of(table),
        keys: Some(vec![IndexKeys {
            index: PRIMARY,
            keys: keys.iter().map(|key| Key::new().signed(*key)).collect(),
        }]),
    }
}

impl Stream {
    fn new() -> Self {
        let mut stream = Self(Transactions::new());
        stream.begin_stream();
        stream.know_tables();
        // Numbers hold for what is read after they have come.
        stream.begin(100);
        stream.map(1, "p");
        stream.map(2, "p");
        stream.commit();
        stream.know_tables();
        stream
    }

    fn begin_stream(&mut self) {
        self.0.begin_stream(false);
        let description = events(&LOGS[0].1[4..]).next();
        let description = description.expect("an event").expect("a whole one");
        self.0.take(description).expect("it is read");
    }

    fn know_tables(&mut self) {
        self.0.begin_reading();
        self.0.know_tables(catalogue());
    }

    fn take(&mut self, kind: u8, body: &[u8]) -> Result<Option<Ended>, Broken> {
        self.0.take(&event(kind, body))
    }

    fn gtid(&mut self, number: u64) -> Option<Ended> {
        let body = [&[0; 17][..], &number.to_le_bytes()].concat();
        self.take(t::GTID, &body).expect("it is read")
    }

    fn query(&mut self, text: &str) -> Option<Ended> {
        let mut settings = vec![1];
        settings.extend_from_slice(&0u64.to_le_bytes());
        settings.extend_from_slice(&[4, 255, 0, 255, 0, 255, 0]);
        let mut body = vec![0; 8];
        body.extend_from_slice(&[1, 0, 0, settings.len() as u8, 0]);
        body.extend_from_slice(&settings);
        body.extend_from_slice(b"d\0");
        body.extend_from_slice(text.as_bytes());
        self.take(t::QUERY, &body).expect("it is read")
    }

    fn map(&mut self, id: u8, table: &str) {
        let mut body = vec![id, 0, 0, 0, 0, 0, 1, 0];
        name(&mut body, "d");
        name(&mut body, table);
        // Two columns of type LONG, no metadata, none NULL.
        body.extend_from_slice(&[2, 3, 3, 0, 0]);
        assert!(
            self.take(t::TABLE_MAP, &body)
                .expect("it is read")
                .is_none()
        );
    }

    fn rows(&mut self, kind: u8, id: u8, images: &[i32]) {
        let mut body = vec![id, 0, 0, 0, 0, 0, 1, 0, 2, 0, 2, 3];
        if kind == t::UPDATE_ROWS {
            body.push(3);
        }
        for key in images {
            body.push(0);
            body.extend_from_slice(&key.to_le_bytes());
            body.extend_from_slice(&7i32.to_le_bytes());
        }
        assert!(self.take(kind, &body).expect("it is read").is_none());
    }

    fn commit(&mut self) -> Deed {
        let ended = self.take(t::XID, &[0; 8]).expect("it is read");
        ended.expect("it is over").deed
    }

    fn begin(&mut self, number: u64) {
        assert!(self.gtid(number).is_none() && self.query("BEGIN").is_none());
    }
}

#[test]
fn rows_name_their_keys_before_and_after() {
    let mut stream = Stream::new();
    stream.begin(1);
    stream.map(1, "g");
    stream.rows(t::UPDATE_ROWS, 1, &[1, 1, -2, 3]);
    stream.rows(t::WRITE_ROWS, 1, &[9]);
    assert_eq!(
        stream.commit(),
        Deed::Apply(vec![keys("g", &[1, -2, 3, 9])])
    );
    // A DELETE changes children, an INSERT none.
    stream.begin(2);
    stream.map(1, "g");
    stream.map(2, "p");
    stream.rows(t::WRITE_ROWS, 2, &[5]);
    stream.rows(t::DELETE_ROWS, 1, &[1]);
    assert_eq!(
        stream.commit(),
        Deed::Apply(vec![keys("g", &[1]), keys("p", &[5])])
    );
    stream.begin(3);
    stream.map(2, "p");
    stream.rows(t::DELETE_ROWS, 2, &[5]);
    let all = [vec![keys("p", &[5])], whole(&["c", "g"])].concat();
    assert_eq!(stream.commit(), Deed::Apply(all));
}

#[test]
fn rows_without_a_known_key_count_for_the_table() {
    let mut stream = Stream::new();
    stream.begin(1);
    stream.map(1, "s");
    stream.rows(t::WRITE_ROWS, 1, &[1]);
    stream.map(2, "g");
    assert_eq!(stream.commit(), Deed::Apply(whole(&["s", "g"])));
    // A number that nothing was mapped to in this transaction.
    stream.begin(2);
    stream.rows(t::WRITE_ROWS, 1, &[1]);
    assert_eq!(stream.commit(), Deed::Unknown);
    let many: Vec<i32> = (0..2000).collect();
    stream.begin(3);
    stream.map(2, "g");
    stream.rows(t::WRITE_ROWS, 2, &many);
    assert_eq!(stream.commit(), Deed::Apply(whole(&["g"])));
}

#[test]
fn a_changed_definition_is_suspected_of_new_foreign_keys() {
    let mut stream = Stream::new();
    stream.gtid(1);
    let ended = stream.query("ALTER TABLE c ADD FOREIGN KEY (id) REFERENCES s (id)");
    let ended = ended.expect("it is over");
    assert_eq!(ended.redefined, Redefined::Tables(vec![of("c")]));
    assert_eq!(ended.deed, Deed::Apply(whole(&["c", "g"])));
    // The rows of others still have their keys, and what may have changed with them has changed.
    stream.begin(2);
    stream.map(1, "p");
    stream.rows(t::WRITE_ROWS, 1, &[1]);
    let all = [vec![keys("p", &[1])], whole(&["c", "g"])].concat();
    assert_eq!(stream.commit(), Deed::Apply(all));
    stream.begin(3);
    stream.map(2, "g");
    stream.rows(t::WRITE_ROWS, 2, &[1]);
    assert_eq!(stream.commit(), Deed::Apply(whole(&["c", "g"])));
    stream.know_tables();
    stream.begin(4);
    stream.map(2, "g");
    stream.rows(t::WRITE_ROWS, 2, &[1]);
    assert_eq!(stream.commit(), Deed::Apply(vec![keys("g", &[1])]));
}

#[test]
fn a_new_number_holds_for_what_is_read_after_it_has_come() {
    let mut stream = Stream::new();
    let write = |stream: &mut Stream, number, id| {
        stream.begin(number);
        stream.map(id, "g");
        stream.rows(t::WRITE_ROWS, id, &[1]);
        let ended = stream.take(t::XID, &[0; 8]).expect("it is read");
        let ended = ended.expect("it is over");
        (ended.raises_doubts(), ended.deed)
    };
    let by_table = || Deed::Apply(whole(&["g"]));
    let by_key = || Deed::Apply(vec![keys("g", &[1])]);
    assert_eq!(write(&mut stream, 1, 1), (false, by_key()));
    assert_eq!(write(&mut stream, 2, 3), (true, by_table()));
    assert_eq!(write(&mut stream, 3, 3), (false, by_table()));
    // It comes after the reading has begun.
    stream.0.begin_reading();
    assert_eq!(write(&mut stream, 4, 4), (true, by_table()));
    assert_eq!(stream.0.unread().collect::<Vec<_>>(), [&of("g")]);
    stream.0.know_tables(catalogue());
    assert_eq!(write(&mut stream, 5, 3), (false, by_key()));
    assert_eq!(write(&mut stream, 6, 4), (true, by_table()));
    stream.know_tables();
    assert_eq!(stream.0.unread().count(), 0);
    assert_eq!(write(&mut stream, 7, 4), (false, by_key()));
    // Another process of the server, or another server, gives numbers of its own.
    stream.begin_stream();
    stream.know_tables();
    assert_eq!(write(&mut stream, 8, 4), (true, by_table()));
}

#[test]
fn what_may_have_redefined_anything_makes_rows_unknown() {
    let mut stream = Stream::new();
    stream.gtid(1);
    let ended = stream.query("DROP DATABASE e").expect("it is over");
    assert_eq!(
        (ended.deed, ended.redefined),
        (Deed::Unknown, Redefined::All)
    );
    stream.begin(2);
    stream.map(1, "g");
    stream.rows(t::WRITE_ROWS, 1, &[1]);
    assert_eq!(stream.commit(), Deed::Unknown);
    stream.gtid(3);
    let ended = stream
        .query("GRANT SELECT ON d.* TO x")
        .expect("it is over");
    assert_eq!(
        ended.deed,
        Deed::Apply(vec![Touch::whole(Subject::rights())])
    );
}

#[test]
fn prepared_transactions_are_told_with_their_names() {
    let mut stream = Stream::new();
    let xa = || XaId::new(1, b"x", b"");
    stream.gtid(1);
    assert!(stream.query("XA START X'78',X'',1").is_none());
    stream.map(1, "g");
    stream.rows(t::WRITE_ROWS, 1, &[1]);
    assert!(stream.query("XA END X'78',X'',1").is_none());
    let prepare = |one_phase| [&[one_phase, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0][..], b"x"].concat();
    let ended = stream.take(t::XA_PREPARE, &prepare(0)).expect("it is read");
    let touches = vec![keys("g", &[1])];
    assert_eq!(
        ended.expect("it is over").deed,
        Deed::Prepare(xa(), touches)
    );
    stream.gtid(2);
    let ended = stream.query("XA COMMIT X'78',X'',1").expect("it is over");
    assert_eq!(ended.deed, Deed::Complete(xa(), true));
    stream.gtid(3);
    stream.query("XA START X'78',X'',1");
    let ended = stream.take(t::XA_PREPARE, &prepare(1)).expect("it is read");
    assert_eq!(ended.expect("it is over").deed, Deed::Apply(Vec::new()));
}

#[test]
fn what_is_not_understood_may_have_changed_anything() {
    let mut stream = Stream::new();
    stream.begin(1);
    stream.map(1, "g");
    // It has not ended where the next begins.
    assert_eq!(stream.gtid(2).expect("it is over").deed, Deed::Unknown);
    assert!(stream.take(200, &[]).expect("it is read").is_none());
    assert_eq!(stream.commit(), Deed::Unknown);
    stream.begin(3);
    assert!(stream.query("frobnicate g").is_none());
    assert_eq!(stream.commit(), Deed::Unknown);
    stream.begin(4);
    assert_eq!(stream.commit(), Deed::Apply(Vec::new()));
}

#[test]
fn what_belongs_to_no_transaction_breaks_the_log() {
    for (kind, body) in [
        (t::ANONYMOUS_GTID, &[0; 26][..]),
        (t::INCIDENT, &[1, 0, 0]),
        (t::XID, &[0; 8]),
        (200, &[]),
        (t::XID, &[0; 3]),
    ] {
        let taken = Stream::new().take(kind, body);
        assert!(taken.is_err(), "{kind}: {taken:?}");
    }
}

#[test]
fn gtids_of_both_families() {
    let gtid = Gtid {
        source: [0x1f; 16],
        tag: b"tagged",
        number: 7,
        may_have_statements: false,
    };
    let uuid = "1f1f1f1f-1f1f-1f1f-1f1f-1f1f1f1f1f1f";
    assert_eq!(mysql(&gtid).to_string(), format!("{uuid}:tagged:7"));
    let gtid = Gtid { tag: b"", ..gtid };
    assert_eq!(mysql(&gtid).to_string(), format!("{uuid}:7"));
    let gtid = MariaDbGtid {
        sequence: 9,
        domain: 3,
        flags: 0,
        xid: None,
    };
    assert_eq!(mariadb(&gtid, 2).to_string(), "3-2-9");
}

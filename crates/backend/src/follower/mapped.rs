//! Tables as the log maps them, and the keys of their rows. Decides nothing about transactions.

use std::collections::{HashMap, HashSet};

use millrace_cache::{Definitions, Key, KeyKind, Subject};
use millrace_protocol::binlog::Unreadable;
use millrace_protocol::binlog::rows::{Change, Rows, Side, Value};
use millrace_protocol::binlog::table::{Layout, TableMap};
use millrace_protocol::types::column_type as t;

use super::touched::{Done, Touched};

/// Most tables that are remembered between transactions.
const REMEMBERED_MAX: usize = 1000;

/// Most numbers of which is remembered when they came. Beyond, all are new again.
const NUMBERS_MAX: usize = 10_000;

/// Keys of more columns count as none.
const KEY_COLUMNS_MAX: usize = 8;

/// Rows that inflate to more are not looked at: their table counts as a whole. Bytes.
const INFLATED_MAX: usize = 64 << 20;

/// The tables of the log, by the numbers that it gives them.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    tables: HashMap<u64, Table>,
    /// How many readings of definitions had begun when a number came first. A server gives a table another number
    /// whenever its definition changes, so what was read holds for the numbers that came before the reading began.
    numbers: HashMap<u64, u64>,
    /// How many readings of definitions have begun.
    readings: u64,
    /// Tables of numbers that came later, since the last transaction was over.
    doubtful: Vec<Subject>,
    /// The same, since the last reading began: what it reads says nothing of them.
    unread: HashSet<Subject>,
    /// Counts transactions: a number holds within one.
    transaction: u64,
    inflated: Vec<u8>,
}

/// What a table is to the cache.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Table(Subject),
    /// It says who may do what.
    Rights,
    /// Nothing is cached that depends on it.
    Nothing,
}

#[derive(Debug)]
struct Table {
    /// The event's body. The same body means the same table: a server keeps the numbers of open tables, and
    /// maps them anew in each statement.
    body: Box<[u8]>,
    place: Place,
    layout: Layout,
    /// How the key is read; none where rows of the table have no key that is known.
    plan: Option<Plan>,
    /// The transaction that it was mapped in last.
    transaction: u64,
    /// Its place among what that has touched.
    at: Option<usize>,
}

/// Which columns of a row make its key.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    /// Their places in ascending order.
    wanted: Box<[u16]>,
    /// For each column of the key in its order: its place in `wanted`, and what it holds.
    key: Box<[(u8, KeyKind)]>,
}

impl Mapped {
    /// Another transaction begins.
    pub(super) fn begin(&mut self) {
        self.transaction += 1;
    }

    /// What tables are has changed, or has become known.
    pub(super) fn forget(&mut self) {
        self.tables.clear();
    }

    /// Another stream begins: its server has numbers of its own.
    pub(super) fn begin_stream(&mut self) {
        self.forget();
        self.numbers.clear();
        self.unread.clear();
    }

    /// A reading of definitions begins. The next ones that become known are those that it reads.
    pub(super) fn begin_reading(&mut self) {
        self.readings += 1;
        self.unread.clear();
    }

    /// Tables of numbers that have come since the last reading began.
    pub(super) fn unread(&self) -> impl Iterator<Item = &Subject> {
        self.unread.iter()
    }

    /// Tables that may be others than is known: the log has named them by new numbers.
    pub(super) fn take_doubtful(&mut self) -> Vec<Subject> {
        std::mem::take(&mut self.doubtful)
    }

    /// Whether what is known of tables was read while the number was in use, if the log tells it again.
    fn is_confirmed(&mut self, id: u64) -> bool {
        if self.numbers.len() >= NUMBERS_MAX {
            self.numbers.clear();
        }
        *self.numbers.entry(id).or_insert(self.readings) < self.readings
    }

    /// A table is mapped. `body`: of its event. `by_key`: whether its definition is known as it is now.
    pub(super) fn map(
        &mut self,
        body: &[u8],
        map: &TableMap<'_>,
        definitions: &Definitions,
        by_key: impl Fn(&Subject) -> bool,
        touched: &mut Touched,
    ) {
        let known = self.tables.get(&map.id);
        if known.is_none_or(|table| *table.body != *body) {
            if self.tables.len() >= REMEMBERED_MAX {
                let now = self.transaction;
                self.tables.retain(|_, table| table.transaction == now);
            }
            let is_confirmed = self.is_confirmed(map.id);
            let by_key = |subject: &Subject| is_confirmed && by_key(subject);
            let table = Table::new(body, map, definitions, by_key);
            if let (Place::Table(subject), false) = (&table.place, is_confirmed)
                && definitions.table(subject).is_some()
            {
                self.doubtful.push(subject.clone());
                self.unread.insert(subject.clone());
            }
            self.tables.insert(map.id, table);
        }
        let Some(table) = self.tables.get_mut(&map.id) else {
            return;
        };
        table.transaction = self.transaction;
        table.at = match &table.place {
            Place::Table(subject) => touched.map(subject),
            Place::Rights => {
                touched.rights();
                None
            }
            Place::Nothing => None,
        };
    }

    /// Rows follow.
    pub(super) fn rows(&mut self, rows: &Rows<'_>, touched: &mut Touched) {
        let now = self.transaction;
        let table = self.tables.get(&rows.table_id);
        let Some(table) = table.filter(|table| table.transaction == now) else {
            return touched.anything();
        };
        let Some(at) = table.at else {
            return;
        };
        let done = match rows.change {
            Change::Write => Done::Inserted,
            Change::Update | Change::PartialUpdate => Done::Updated,
            Change::Delete => Done::Deleted,
        };
        let Some(keys) = touched.rows(at, done) else {
            return;
        };
        let read = table.plan.as_ref().map(|plan| {
            let data = rows.data.plain(&mut self.inflated, INFLATED_MAX)?;
            plan.read(rows, &table.layout, data, keys)
        });
        if read != Some(Ok(true)) {
            touched.give_up(at);
        }
        if self.inflated.capacity() > INFLATED_MAX / 64 {
            self.inflated = Vec::new();
        }
    }
}

impl Table {
    fn new(
        body: &[u8],
        map: &TableMap<'_>,
        definitions: &Definitions,
        by_key: impl Fn(&Subject) -> bool,
    ) -> Self {
        let place = place(map.database, map.table, definitions);
        let mut layout = Layout::default();
        let plan = match (&place, layout.read(map)) {
            (Place::Table(subject), Ok(())) if by_key(subject) => {
                Plan::new(&layout, definitions, subject)
            }
            _ => None,
        };
        Self {
            body: body.into(),
            place,
            layout,
            plan,
            transaction: 0,
            at: None,
        }
    }
}

/// Tables of names beyond ASCII are not cached: see [`Definitions::subject`]. Neither are those of `mysql`, but
/// servers read from them what accounts may do, and time zones. The tables that a provider's or a server's own
/// clockwork writes all the time are neither.
fn place(database: &[u8], table: &[u8], definitions: &Definitions) -> Place {
    if database.eq_ignore_ascii_case(b"mysql") {
        const CLOCKWORK: [&[u8]; 3] = [b"rds_", b"gtid_", b"innodb_"];
        let head = |head: &&[u8]| {
            let own = table.get(..head.len());
            own.is_some_and(|own| own.eq_ignore_ascii_case(head))
        };
        return match CLOCKWORK.iter().any(head) {
            true => Place::Nothing,
            false => Place::Rights,
        };
    }
    let subject = definitions.subject(database, table);
    subject.map_or(Place::Nothing, Place::Table)
}

impl Plan {
    /// None where the log's columns are not those of the definition.
    fn new(layout: &Layout, definitions: &Definitions, subject: &Subject) -> Option<Self> {
        let table = definitions.table(subject)?;
        let columns = layout.columns();
        let key = table.primary_key.as_deref()?;
        if columns.len() != usize::from(table.columns)
            || key.is_empty()
            || key.len() > KEY_COLUMNS_MAX
        {
            return None;
        }
        let mut wanted: Vec<u16> = key.iter().map(|column| column.position).collect();
        wanted.sort_unstable();
        let place = |position: u16| wanted.binary_search(&position).ok();
        let key: Option<Box<[(u8, KeyKind)]>> = key
            .iter()
            .map(|column| {
                let logged = columns.get(usize::from(column.position))?;
                let fits = is_kind(column.kind, logged.kind)
                    && logged.is_unsigned.is_none_or(|is_unsigned| {
                        is_unsigned == matches!(column.kind, KeyKind::Unsigned(_))
                    });
                let place = place(column.position).filter(|_| fits)?;
                Some((place as u8, column.kind))
            })
            .collect();
        Some(Self {
            key: key?,
            wanted: wanted.into(),
        })
    }

    /// Adds the keys of all images, before and after. False where one lacks a column of its key, or there is no
    /// room.
    fn read(
        &self,
        rows: &Rows<'_>,
        layout: &Layout,
        data: &[u8],
        keys: &mut Vec<Key>,
    ) -> Result<bool, Unreadable> {
        let mut images = rows.images(layout, data)?;
        let mut values = [Value::Absent; KEY_COLUMNS_MAX];
        let mut before = values;
        while let Some(side) = images.next(&self.wanted, &mut values[..self.wanted.len()])? {
            if side == Side::After && rows.change != Change::Write {
                keep_unchanged(&before, &mut values);
            }
            let key = self.key(&values).filter(|_| Touched::has_room(keys));
            let Some(key) = key else {
                return Ok(false);
            };
            if keys.last() != Some(&key) {
                keys.push(key);
            }
            before = values;
        }
        Ok(true)
    }

    fn key(&self, values: &[Value<'_>; KEY_COLUMNS_MAX]) -> Option<Key> {
        let mut key = Key::new();
        for (at, kind) in &self.key {
            key = match (kind, values[usize::from(*at)]) {
                (KeyKind::Signed(width), Value::Int(int)) if int.width() == *width => {
                    key.signed(int.signed())
                }
                (KeyKind::Unsigned(width), Value::Int(int)) if int.width() == *width => {
                    key.unsigned(int.unsigned())
                }
                (KeyKind::Binary(_), Value::Bytes(bytes)) => kind.push_bytes(key, bytes)?,
                _ => return None,
            };
        }
        Some(key)
    }
}

/// What the image after an UPDATE has not (binlog_row_image=MINIMAL) is as it was before: a replica leaves it so.
fn keep_unchanged<'d>(
    before: &[Value<'d>; KEY_COLUMNS_MAX],
    after: &mut [Value<'d>; KEY_COLUMNS_MAX],
) {
    for (before, after) in before.iter().zip(after) {
        if *after == Value::Absent {
            *after = *before;
        }
    }
}

/// Whether the log's type may be that of a column of this kind. Its width is looked at with each value.
fn is_kind(kind: KeyKind, logged: u8) -> bool {
    match kind {
        KeyKind::Signed(width) | KeyKind::Unsigned(width) => {
            let of = match width {
                1 => t::TINY,
                2 => t::SHORT,
                3 => t::INT24,
                4 => t::LONG,
                _ => t::LONGLONG,
            };
            of == logged
        }
        KeyKind::Binary(_) => logged == t::STRING,
    }
}

//! What a write that commits by itself touches, as its text tells: said to the follower's store with the write's position,
//! before the log tells it (`Store::announce`).

use millrace_cache::{
    Definitions, IndexKeys, Key, KeyColumn, KeyKind, PRIMARY, Scope, Table, Touch,
};
use millrace_engine::request::{Request, Task};
use millrace_routing::Freshness;
use millrace_sql::{Access, Flags, Kind, Writes, writes};
use millrace_topology::{GtidSet, Waits};

use crate::session::Session;
use crate::session::answers::dependence::Looked;
use crate::session::statement::running::Foreseen;

/// What a statement may have beside its tables and still write nothing else.
const HARMLESS: Flags = Flags::PARAMETERS
    .union(Flags::COMMENT)
    .union(Flags::NONDETERMINISTIC)
    .union(Flags::READS_USER_VARS)
    .union(Flags::READS_SYSVARS)
    .union(Flags::USES_LAST_INSERT_ID);

/// A write of more rows counts for the whole table.
const KEYS_MAX: usize = 64;

impl Session {
    /// Before any statement is sent: what it will have touched, if it is a write of which that is known.
    #[inline]
    pub(super) fn foresee(&mut self, request: &Request<'_>) {
        if self.running.foreseen.is_some() {
            self.running.foreseen = None;
        }
        if request.access == Access::Write && self.worker.cached.log().is_some() {
            self.running.foreseen = self.foreseen(request);
        }
    }

    #[cold]
    fn foreseen(&self, request: &Request<'_>) -> Option<Box<Foreseen>> {
        let log = self.worker.cached.log()?;
        let is_plain = self.settings.options.routing.freshness == Freshness::Table
            && matches!(request.task, Task::Query | Task::Execute)
            && request.inner.is_none()
            && matches!(
                request.class.kind,
                Kind::Insert | Kind::Replace | Kind::Update | Kind::Delete
            )
            && self.commits_by_itself()
            && self.is_primary_plain();
        if !is_plain {
            return None;
        }
        let told = log
            .store()
            .definitions()
            .map(|(all, version)| (all.clone(), version));
        let (definitions, version) = told?;
        let text = self.text_of(request)?;
        let looked = self.looked(request, &text).ok()?;
        let (touch, is_numbered) = looked.touches(&definitions)?;
        Some(Box::new(Foreseen {
            touch,
            version,
            is_numbered,
        }))
    }

    fn commits_by_itself(&self) -> bool {
        let tx = &self.image.tx;
        self.lease.is_none()
            && !tx.is_deferred()
            && tx.replay.is_none()
            && !self.image.autocommit_off()
            && !self.image.vars.owns_gtid
            && self.handle.pins().is_empty()
    }

    /// Whether all that the primary commits comes through its own numbers, one after the other: not where it takes
    /// transactions from other servers, or numbers are dealt out among the members of a group.
    fn is_primary_plain(&self) -> bool {
        self.worker.cluster.with_world(|world| {
            let primary = world.snapshot.primary_view();
            primary.is_some_and(|view| {
                let report = view.report.as_ref();
                view.waits == Waits::Gtids
                    && report.is_some_and(|report| {
                        report.group.is_none()
                            && report.galera.is_none()
                            && report.replication.is_none()
                    })
            })
        })
    }

    /// The write has been answered with its position. Said before the client is told of it.
    pub(super) fn announce(&mut self, written: &GtidSet) {
        let Some(mut foreseen) = self.running.foreseen.take() else {
            return;
        };
        let worker = self.worker.clone();
        let Some(log) = worker.cached.log() else {
            return;
        };
        if let Some(kind) = foreseen.is_numbered {
            let number = self.running.outcome.insert_id;
            let key = (number > 0)
                .then(|| kind.push_integer(Key::new(), number.into()))
                .flatten();
            foreseen.touch.keys = key.map(of_primary);
        }
        log.announce(written, &foreseen.touch, foreseen.version);
    }
}

fn of_primary(key: Key) -> Vec<IndexKeys> {
    vec![IndexKeys {
        index: PRIMARY,
        keys: vec![key],
    }]
}

/// Whether a column stores an integer as it is.
fn stores(kind: KeyKind, value: i128) -> bool {
    match kind {
        KeyKind::Signed(width) => {
            let bits = 8 * u32::from(width) - 1;
            (-(1_i128 << bits)..1_i128 << bits).contains(&value)
        }
        KeyKind::Unsigned(width) => (0..1_i128 << (8 * u32::from(width))).contains(&value),
        KeyKind::Binary(_) => false,
    }
}

impl Looked<'_> {
    /// The one table that a write touches, and the keys of its rows, as far as the text tells. With them, whether the key
    /// is the number that the server gives the row. None where it may touch more.
    fn touches(&self, definitions: &Definitions) -> Option<(Touch, Option<KeyKind>)> {
        if !HARMLESS.contains(self.class.flags) || !self.class.functions.is_empty() {
            return None;
        }
        let mut told = Writes::default();
        writes(self.text, &self.lex, self.class, &mut told);
        let written = usize::from(told.table?);
        // What is read beside must be tables as well: views may call functions, which may write.
        for table in &self.class.tables {
            definitions.table(&self.subject(table, definitions)?)?;
        }
        let subject = self.subject(self.class.tables.get(written)?, definitions)?;
        let table = definitions.table(&subject)?;
        if !table.is_plain || !table.cascades.is_empty() {
            return None;
        }
        let mut touch = Touch::whole(subject);
        let mut numbered = None;
        match self.class.kind {
            Kind::Insert if !told.replaces => match self.inserted(table, &told) {
                Some(Inserted::Keys(keys)) => {
                    touch.keys = Some(vec![IndexKeys {
                        index: PRIMARY,
                        keys,
                    }]);
                }
                Some(Inserted::Numbered(kind)) => numbered = Some(kind),
                None => {}
            },
            Kind::Update | Kind::Delete => touch.keys = self.changed(table, &told, written),
            _ => {}
        }
        Some((touch, numbered))
    }

    /// The key of the one row that an UPDATE or DELETE can change, where it leaves the key.
    fn changed(&self, table: &Table, told: &Writes, written: usize) -> Option<Vec<IndexKeys>> {
        let columns = table.primary_key.as_deref()?;
        let is_assigned =
            |column: &KeyColumn| told.assigned.iter().any(|name| name[..] == column.name[..]);
        if columns.iter().any(is_assigned) {
            return None;
        }
        match self.scope(table, &told.conditions, written)? {
            Scope::Within { interval, .. } if interval.is_point() => Some(of_primary(interval.lo)),
            _ => None,
        }
    }

    /// The keys of the rows of an INSERT; none where the text does not tell them.
    fn inserted(&self, table: &Table, told: &Writes) -> Option<Inserted> {
        let columns = table.primary_key.as_deref()?;
        if let ([column], 1) = (columns, told.rows())
            && column.is_auto
            && !told.row(0).is_empty()
            && !told.columns.is_empty()
            && place(column, told).is_none()
        {
            return Some(Inserted::Numbered(column.kind));
        }
        let keys = (0..told.rows()).map(|at| {
            let row = told.row(at);
            let mut key = Key::new();
            for column in columns {
                // By name alone: the order of columns may change without a word in the log.
                let constant = row.get(place(column, told)?)?.as_ref()?;
                key = match column.kind {
                    KeyKind::Binary(_) => column.kind.push_bytes(key, &self.bytes(constant)?)?,
                    kind => {
                        let value = self.integer(constant)?;
                        // A zero may stand for the next number.
                        let is_stored = stores(kind, value) && !(column.is_auto && value == 0);
                        is_stored.then(|| kind.push_integer(key, value)).flatten()?
                    }
                };
            }
            Some(key)
        });
        if told.rows() > KEYS_MAX {
            return None;
        }
        let keys: Vec<Key> = keys.collect::<Option<_>>()?;
        (!keys.is_empty()).then_some(Inserted::Keys(keys))
    }
}

/// Where the values of a column stand in the rows of an INSERT that names its columns.
fn place(column: &KeyColumn, told: &Writes) -> Option<usize> {
    told.columns
        .iter()
        .position(|name| name[..] == column.name[..])
}

/// Which rows an INSERT makes.
enum Inserted {
    /// Those of these keys.
    Keys(Vec<Key>),
    /// One, whose key is the number that the server gives it.
    Numbered(KeyKind),
}

#[cfg(test)]
mod tests {
    use millrace_cache::Subject;
    use millrace_sql::Statement;

    use super::*;

    const INT: KeyKind = KeyKind::Signed(4);

    /// Tables of the database d: `a` has a numbered key and three columns, `b` a key of two columns, `t` a trigger, `p` a
    /// child that follows it, `n` no key.
    fn definitions() -> Definitions {
        let column = |name: &str, position, kind, is_auto| KeyColumn {
            name: name.as_bytes().into(),
            position,
            kind,
            is_auto,
        };
        let table = |name: &str, key: Vec<KeyColumn>| {
            let table = Table {
                columns: 3,
                primary_key: (!key.is_empty()).then(|| key.into()),
                is_plain: name != "t",
                cascades: match name {
                    "p" => [Subject::table(b"d", b"c")].into(),
                    _ => [].into(),
                },
                ..Table::default()
            };
            (Subject::table(b"d", name.as_bytes()), table)
        };
        let id = || vec![column("id", 0, INT, true)];
        let both = vec![
            column("x", 0, KeyKind::Unsigned(1), false),
            column("y", 1, KeyKind::Binary(2), false),
        ];
        Definitions::new(
            false,
            [
                table("a", id()),
                table("b", both),
                table("t", id()),
                table("p", id()),
                table("n", vec![]),
            ],
        )
    }

    /// What a text touches in words: the keys, `number`, `all` of its table, or nothing that is known.
    fn touched(text: &str, parameters: &[i128]) -> String {
        let mut class = Statement::default();
        let looked = Looked::of(text, &mut class, parameters);
        match looked.touches(&definitions()) {
            None => "unknown".to_owned(),
            Some((_, Some(_))) => "number".to_owned(),
            Some((touch, None)) => match touch.keys {
                None => "all".to_owned(),
                Some(keys) => format!("{:?}", keys[0].keys),
            },
        }
    }

    #[test]
    fn keys_that_a_write_touches() {
        let ints = |all: &[i64]| {
            let keys: Vec<Key> = all.iter().map(|key| Key::new().signed(*key)).collect();
            format!("{keys:?}")
        };
        let pair = format!("{:?}", [Key::new().unsigned(7).bytes(b"q", 2)]);
        let cases: [(&str, String); 34] = [
            ("UPDATE a SET v = v + 1 WHERE id = 5", ints(&[5])),
            ("UPDATE d.a SET v = ? WHERE id = ?", ints(&[6])),
            ("UPDATE a SET v = 1 WHERE id = 5 AND v = 3", ints(&[5])),
            ("UPDATE a SET v = 1 WHERE id = 5 OR v = 3", "all".into()),
            ("UPDATE a SET v = NOW() WHERE id = 5", ints(&[5])),
            ("DELETE FROM a WHERE id = 5 AND v < @a", ints(&[5])),
            ("DELETE FROM a WHERE id = @a", "all".into()),
            (
                "INSERT INTO a (v) VALUES (LAST_INSERT_ID(9))",
                "unknown".into(),
            ),
            ("UPDATE a SET v = 1 WHERE id > 5", "all".into()),
            ("UPDATE a SET v = 1", "all".into()),
            ("UPDATE a SET id = 6 WHERE id = 5", "all".into()),
            ("UPDATE a SET v = 1, `ID` = 6 WHERE id = 5", "all".into()),
            ("DELETE FROM a WHERE id = -5", ints(&[-5])),
            ("DELETE FROM a WHERE id = '5'", "all".into()),
            ("DELETE FROM b WHERE x = 7 AND y = 'q'", pair.clone()),
            ("DELETE FROM b WHERE x = 7", "all".into()),
            ("INSERT INTO a (id, v) VALUES (5, 1)", ints(&[5])),
            ("INSERT INTO a (v, id) VALUES (1, 5), (2, 6)", ints(&[5, 6])),
            ("INSERT INTO a VALUES (5, 1, 2)", "all".into()),
            ("INSERT INTO a (v) VALUES (1)", "number".into()),
            ("INSERT INTO a (v) VALUES (1), (2)", "all".into()),
            ("INSERT INTO a (id, v) VALUES (0, 1)", "all".into()),
            ("INSERT INTO a (id, v) VALUES (NULL, 1)", "all".into()),
            ("INSERT INTO a (id, v) VALUES (3000000000, 1)", "all".into()),
            ("INSERT INTO a (id, v) VALUES (2 + 3, 1)", "all".into()),
            ("INSERT INTO b VALUES (7, 'q', 1)", "all".into()),
            ("INSERT INTO b (y, x) VALUES ('q', 7)", pair),
            ("INSERT INTO b (x, y) VALUES (300, 'q')", "all".into()),
            (
                "INSERT INTO a (id, v) VALUES (5, 1) ON DUPLICATE KEY UPDATE v = 2",
                "all".into(),
            ),
            ("REPLACE INTO a (id, v) VALUES (5, 1)", "all".into()),
            ("INSERT INTO n VALUES (5, 1, 2)", "all".into()),
            ("UPDATE t SET v = 1 WHERE id = 5", "unknown".into()),
            ("DELETE FROM p WHERE id = 5", "unknown".into()),
            ("INSERT INTO a SELECT * FROM view", "unknown".into()),
        ];
        for (text, wanted) in cases {
            assert_eq!(touched(text, &[1, 6]), wanted, "{text}");
        }
    }
}

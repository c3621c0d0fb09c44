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

/// What the write under way is about to touch.
pub(in crate::session) struct Foreseen {
    touch: Touch,
    /// Of the definitions by which that was told.
    version: u64,
    /// Its only row's key is the number that the server gives it.
    is_numbered: Option<KeyKind>,
}

/// What a statement may have beside its tables and still write nothing else.
const HARMLESS: Flags = Flags::PARAMETERS.union(Flags::COMMENT);

impl Session {
    /// Before a write is sent: what it will have touched.
    #[inline]
    pub(super) fn foresee(&mut self, request: &Request<'_>, text: &[u8]) {
        self.running.foreseen = None;
        if request.access == Access::Write && self.worker.cached.log().is_some() {
            self.look_ahead(request, text);
        }
    }

    #[cold]
    fn look_ahead(&mut self, request: &Request<'_>, text: &[u8]) {
        let worker = self.worker.clone();
        let Some(log) = worker.cached.log() else {
            return;
        };
        let is_plain = self.settings.options.routing.freshness == Freshness::Table
            && matches!(request.task, Task::Query | Task::Execute)
            && request.inner.is_none()
            && matches!(
                request.class.kind,
                Kind::Insert | Kind::Replace | Kind::Update | Kind::Delete
            )
            && request.class.functions.is_empty()
            && HARMLESS.contains(request.class.flags)
            && self.commits_by_itself()
            && self.is_primary_plain();
        if !is_plain {
            return;
        }
        let told = log
            .store()
            .definitions()
            .map(|(all, version)| (all.clone(), version));
        if let Some((definitions, version)) = told
            && let Ok(looked) = self.looked(request, text)
            && let Some((touch, is_numbered)) = looked.touches(&definitions)
        {
            self.running.foreseen = Some(Box::new(Foreseen {
                touch,
                version,
                is_numbered,
            }));
        }
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
        log.store()
            .announce(written, &foreseen.touch, foreseen.version);
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
                let place = match told.columns.is_empty() {
                    true if row.len() == usize::from(table.columns) => column.position.into(),
                    true => return None,
                    false => place(column, told)?,
                };
                let constant = row.get(place)?.as_ref()?;
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

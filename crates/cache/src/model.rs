//! Random histories on a model of servers, a log and sessions, with the store between them. Every hit must be the state of
//! its rows at F, and no session may ever go back. Rules that are broken on purpose must be found.

mod ops;
mod random;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_topology::{Family, GtidSet, MariaDbSet, MySqlSet};
use proptest::prelude::*;

use crate::Rule;
use crate::{
    Access, Begun, Finished, IndexKeys, Interval, Key, KeyBuilder, Options, Resumed, Scope,
    Situation, Store, Subject, Token, Touch, XaId,
};
use ops::{Op, ops};
use random::Random;

const TABLES: u8 = 2;
const KEYS: u8 = 3;
const SERVERS: usize = 3;
const SESSIONS: usize = 6;
/// Those from here on do not write, in histories that look random.
const READERS: usize = 3;

/// What the model itself does wrong.
#[derive(Clone, Copy, Debug, Default)]
struct Wrong {
    store: Option<Rule>,
    /// Rule 1: in a transaction, too.
    rule_1: bool,
}

/// What is read: keys of a table from one to another; the table as a whole, with `by_table`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Query {
    table: u8,
    lo: u8,
    hi: u8,
    by_table: bool,
}

impl Query {
    fn rows(self) -> impl Iterator<Item = (u8, u8)> {
        (self.lo..=self.hi).map(move |key| (self.table, key))
    }

    fn accesses(self) -> Vec<Access> {
        let scope = match self.by_table {
            true => Scope::Whole,
            false => Scope::Within {
                index: 0,
                interval: Interval {
                    lo: key_of(self.lo),
                    hi: key_of(self.hi),
                },
            },
        };
        vec![
            Access {
                subject: subject(self.table),
                scope,
            },
            Access::whole(Subject::rights()),
        ]
    }

    fn digest(self) -> u64 {
        u64::from(self.table) << 8 | u64::from(self.lo)
    }

    fn key(self) -> Vec<u8> {
        let mut key = KeyBuilder::default();
        key.part(&[self.table, self.lo, self.hi]);
        key.number(self.by_table.into());
        key.key().to_vec()
    }
}

fn subject(table: u8) -> Subject {
    Subject::table(b"d", &[b'a' + table])
}

fn key_of(key: u8) -> Key {
    Key::new().signed(i64::from(key) - 2)
}

#[derive(Debug)]
struct Transaction {
    id: GtidSet,
    /// Source or domain, and number there.
    number: (u32, u64),
    session: usize,
    writes: Vec<(u8, u8)>,
    by_table: bool,
    /// The transaction that prepared it, which has no rows to be seen.
    prepared_by: Option<usize>,
    prepares: bool,
    /// Those that changed the same rows before.
    after: Vec<usize>,
}

#[derive(Clone, Debug, Default)]
struct Server {
    visible: BTreeSet<usize>,
    executed: BTreeSet<usize>,
    in_use: bool,
}

#[derive(Debug)]
struct Reading {
    query: Query,
    server: usize,
    token: Option<Token>,
    lower: GtidSet,
    value: Option<Vec<Option<usize>>>,
}

#[derive(Debug)]
struct Session {
    must: GtidSet,
    /// The last transaction that it knows of each row.
    knows: BTreeMap<(u8, u8), usize>,
    reading: Option<Reading>,
    /// The server and what was visible when it began.
    transaction: Option<(usize, BTreeSet<usize>)>,
}

/// A fault of the store.
type Fault = String;

struct World {
    family: Family,
    store: Store,
    wrong: Wrong,
    now: Instant,
    log: Vec<Transaction>,
    /// How many of the log are in F.
    followed: usize,
    servers: Vec<Server>,
    sessions: Vec<Session>,
    hits: u64,
    kept: u64,
}

/// A time to begin with: it only moves by what a history says.
#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "there is no other way to an Instant"
)]
pub(crate) fn epoch() -> Instant {
    Instant::now()
}

/// Values as bytes.
fn pack(value: &[Option<usize>]) -> Vec<u8> {
    value
        .iter()
        .flat_map(|row| row.map_or(0, |n| n as u32 + 1).to_le_bytes())
        .collect()
}

impl World {
    fn new(family: Family, options: Options, wrong: Wrong) -> Self {
        let now = epoch();
        let mut store = Store::new(options);
        store.broken = wrong.store;
        store.follow(GtidSet::new(family), b"first", now);
        store.define(Arc::default());
        let server = Server {
            in_use: true,
            ..Server::default()
        };
        let session = || Session {
            must: GtidSet::new(family),
            knows: BTreeMap::new(),
            reading: None,
            transaction: None,
        };
        Self {
            family,
            store,
            wrong,
            now,
            log: Vec::new(),
            followed: 0,
            servers: vec![server; SERVERS],
            sessions: (0..SESSIONS).map(|_| session()).collect(),
            hits: 0,
            kept: 0,
        }
    }

    fn run(&mut self, ops: &[Op]) -> Result<(), Fault> {
        for op in ops {
            self.now += Duration::from_millis(1);
            self.op(op)?;
        }
        Ok(())
    }

    fn op(&mut self, op: &Op) -> Result<(), Fault> {
        match op {
            Op::Commit {
                session,
                writes,
                by_table,
                xa,
            } => self.commit(*session, writes, *by_table, *xa),
            Op::Show {
                server,
                skip,
                count,
            } => {
                (0..*count).for_each(|_| self.show(*server, *skip));
            }
            Op::Execute {
                server,
                skip,
                count,
            } => {
                (0..*count).for_each(|_| self.execute(*server, *skip));
            }
            Op::Follow { count } => (0..*count).for_each(|_| self.follow()),
            Op::Settle => self.forget_known(),
            Op::Leave { server } => self.servers[*server].in_use = *server == 0,
            Op::Join { server } => {
                let has_base = self.lower(*server).contains(self.store.base());
                self.servers[*server].in_use |= has_base;
            }
            Op::Read {
                session,
                query,
                server,
            } => return self.read(*session, *query, *server),
            Op::Snapshot { session } => self.snapshot(*session),
            Op::End { session } => return self.end(*session),
            Op::BeginTransaction { session, server } => {
                let is_current = self.lower(*server).contains(&self.sessions[*session].must);
                let waits = self.waits_for_ok(*session);
                let session = &mut self.sessions[*session];
                if session.reading.is_none() && is_current && !waits {
                    let snapshot = self.servers[*server].visible.clone();
                    session.transaction = Some((*server, snapshot));
                }
            }
            Op::EndTransaction { session } => {
                let session = &mut self.sessions[*session];
                if session.reading.is_none() {
                    session.transaction = None;
                }
            }
            Op::Gap { anew } => self.gap(*anew),
            Op::Wait { millis } => self.now += Duration::from_millis(*millis),
            Op::Flush => {
                self.store.flush(Some(&subject(0)), self.now);
            }
        }
        Ok(())
    }

    fn gap(&mut self, anew: bool) {
        self.store.gap();
        let mut executed = GtidSet::new(self.family);
        for transaction in &self.log {
            executed.union(&transaction.id);
        }
        if anew {
            let mut from = GtidSet::new(self.family);
            for transaction in &self.log[..self.followed] {
                from.union(&transaction.id);
            }
            assert_eq!(
                self.store.resume(&executed, b"another", self.now),
                Resumed::Dropped
            );
            self.store.follow(from, b"first", self.now);
        } else {
            let resumed = self.store.resume(&executed, b"first", self.now);
            assert_eq!(resumed, Resumed::Kept);
        }
    }

    fn id(&self) -> (GtidSet, (u32, u64)) {
        let next = self.log.len();
        let source = (next % 3 / 2) as u32;
        let number = self.log.iter().filter(|t| t.number.0 == source).count() as u64 + 1;
        let id = match self.family {
            Family::MySql => {
                let mut set = MySqlSet::default();
                set.insert([source as u8 + 1; 16], number, number);
                GtidSet::MySql(set)
            }
            Family::MariaDb => {
                let mut set = MariaDbSet::default();
                set.insert(source, 1, number);
                GtidSet::MariaDb(set)
            }
        };
        (id, (source, number))
    }

    fn append(
        &mut self,
        session: usize,
        writes: &[(u8, u8)],
        by_table: bool,
        prepared_by: Option<usize>,
        prepares: bool,
    ) {
        let (id, number) = self.id();
        let visible_rows = if prepares { &[] } else { writes };
        let mut after: Vec<usize> = (0..self.log.len())
            .filter(|n| {
                let before = &self.log[*n];
                !before.prepares && before.writes.iter().any(|row| visible_rows.contains(row))
            })
            .collect();
        after.extend(prepared_by);
        self.log.push(Transaction {
            id,
            number,
            session,
            writes: writes.to_vec(),
            by_table,
            prepared_by,
            prepares,
            after,
        });
    }

    fn commit(&mut self, session: usize, writes: &[(u8, u8)], by_table: bool, xa: bool) {
        if self.sessions[session].transaction.is_some() || self.sessions[session].reading.is_some()
        {
            return;
        }
        // Rows are locked until whoever changed them is visible.
        let primary = &self.servers[0].visible;
        let is_locked = self.log.iter().enumerate().any(|(n, before)| {
            !primary.contains(&n) && before.writes.iter().any(|row| writes.contains(row))
        });
        if is_locked {
            return;
        }
        if xa {
            self.append(session, writes, by_table, None, true);
            self.append(session, writes, by_table, Some(self.log.len() - 1), false);
        } else {
            self.append(session, writes, by_table, None, false);
        }
    }

    fn show(&mut self, server: usize, skip: usize) {
        let state = &self.servers[server];
        let ready = |n: &usize| {
            !state.visible.contains(n)
                && self.log[*n].after.iter().all(|b| state.visible.contains(b))
        };
        let Some(n) = (0..self.log.len()).filter(ready).nth(skip) else {
            return;
        };
        self.servers[server].visible.insert(n);
        if server == 0 {
            self.announce(n);
            // The client has its OK, and the GTID with it.
            let transaction = &self.log[n];
            let session = &mut self.sessions[transaction.session];
            session.must.union(&transaction.id);
            if !transaction.prepares {
                for row in &transaction.writes {
                    let known = session.knows.entry(*row).or_default();
                    *known = (*known).max(n + 1);
                }
            }
        }
    }

    /// The text of a transaction of one statement tells what it has touched.
    fn announce(&mut self, n: usize) {
        let transaction = &self.log[n];
        let table = transaction.writes[0].0;
        let is_told = !transaction.prepares
            && transaction.prepared_by.is_none()
            && transaction.writes.iter().all(|(of, _)| *of == table);
        if !is_told {
            return;
        }
        let keys = transaction.writes.iter().map(|(_, key)| key_of(*key));
        let keys = vec![IndexKeys {
            index: 0,
            keys: keys.collect(),
        }];
        let touch = Touch {
            subject: subject(table),
            keys: (!transaction.by_table).then_some(keys),
        };
        let version = self.store.definitions().map_or(0, |(_, version)| version);
        self.store
            .announce(&transaction.id.clone(), &touch, version);
    }

    fn execute(&mut self, server: usize, skip: usize) {
        let state = &mut self.servers[server];
        let next = state.visible.difference(&state.executed).nth(skip).copied();
        state.executed.extend(next);
    }

    fn follow(&mut self) {
        let Some(next) = self.log.get(self.followed) else {
            self.store.heard(self.now);
            return;
        };
        self.followed += 1;
        let touches = || {
            let mut touches: Vec<Touch> = Vec::new();
            for table in 0..TABLES {
                let keys: Vec<Key> = next
                    .writes
                    .iter()
                    .filter(|(of, _)| *of == table)
                    .map(|(_, key)| key_of(*key))
                    .collect();
                if !keys.is_empty() {
                    touches.push(Touch {
                        subject: subject(table),
                        keys: (!next.by_table).then(|| vec![IndexKeys { index: 0, keys }]),
                    });
                }
            }
            touches
        };
        let (store, now) = (&mut self.store, self.now);
        if next.prepares {
            store.prepare(
                &next.id,
                XaId::new(1, &[self.followed as u8], b""),
                touches(),
                now,
            );
        } else if let Some(prepared) = next.prepared_by {
            let xa = XaId::new(1, &[prepared as u8 + 1], b"");
            store.complete(&next.id, &xa, true, now);
        } else {
            store.apply(&next.id, &touches(), now);
        }
    }

    /// What is known to have been visible: MariaDB's is told by the end of each domain.
    fn lower(&self, server: usize) -> GtidSet {
        let executed = &self.servers[server].executed;
        let mut set = GtidSet::new(self.family);
        let mut ended = BTreeSet::new();
        for (n, transaction) in self.log.iter().enumerate() {
            let domain = transaction.number.0;
            if executed.contains(&n) && !(self.family == Family::MariaDb && ended.contains(&domain))
            {
                set.union(&transaction.id);
            } else {
                ended.insert(domain);
            }
        }
        set
    }

    /// What may be visible.
    fn upper(&self, server: usize) -> GtidSet {
        let mut set = GtidSet::new(self.family);
        for n in &self.servers[server].visible {
            set.union(&self.log[*n].id);
        }
        set
    }

    fn forget_known(&mut self) {
        let mut known: Option<GtidSet> = None;
        for server in (0..SERVERS).filter(|server| self.servers[*server].in_use) {
            let has = self.lower(server);
            match &mut known {
                Some(known) => known.intersect(&has),
                None => known = Some(has),
            }
        }
        if let Some(known) = known {
            self.store.forget_known(&known);
        }
    }

    /// The last transaction of `among` on each row.
    fn value(&self, query: Query, among: impl Fn(usize) -> bool) -> Vec<Option<usize>> {
        let last = |row: (u8, u8)| {
            (0..self.log.len())
                .rev()
                .find(|n| among(*n) && !self.log[*n].prepares && self.log[*n].writes.contains(&row))
        };
        query.rows().map(last).collect()
    }

    fn saw(
        &mut self,
        session: usize,
        query: Query,
        value: &[Option<usize>],
        what: &str,
    ) -> Result<(), Fault> {
        let state = &mut self.sessions[session];
        for (row, shown) in query.rows().zip(value) {
            let shown = shown.map_or(0, |n| n + 1);
            let known = state.knows.entry(row).or_default();
            if shown < *known {
                return Err(format!(
                    "{what} of {row:?} went back from {known} to {shown}"
                ));
            }
            *known = shown;
        }
        Ok(())
    }

    fn read(&mut self, session: usize, query: Query, server: usize) -> Result<(), Fault> {
        let state = &self.sessions[session];
        if state.reading.is_some() || self.waits_for_ok(session) {
            return Ok(());
        }
        let situation = Situation {
            in_transaction: state.transaction.is_some(),
            ..Situation::plain()
        };
        let may = self.wrong.rule_1 || situation.check().is_ok();
        let must = state.must.clone();
        let server = state
            .transaction
            .as_ref()
            .map_or(server, |(server, _)| *server);
        if may
            && state.transaction.is_none()
            && let Ok(hit) = self.store.look(&query.key(), &[&must], self.now)
        {
            return self.hit(session, query, &hit.bytes, &hit.seen);
        }
        let in_transaction = self.sessions[session].transaction.is_some();
        // Only a server that has what the session must see.
        let is_fit =
            in_transaction || self.servers[server].in_use && self.lower(server).contains(&must);
        if !is_fit {
            return Ok(());
        }
        let lower = self.lower(server);
        let begun = may.then(|| {
            self.store
                .begin_fill(query.digest(), &query.key(), &query.accesses(), 1, self.now)
        });
        let token = match begun {
            Some(Ok(Begun::Lead(token))) => Some(token),
            _ => None,
        };
        self.sessions[session].reading = Some(Reading {
            query,
            server,
            token,
            lower,
            value: None,
        });
        Ok(())
    }

    /// Whether the session has not been told yet of all that it has written.
    fn waits_for_ok(&self, session: usize) -> bool {
        let primary = &self.servers[0].visible;
        self.log
            .iter()
            .enumerate()
            .any(|(n, written)| written.session == session && !primary.contains(&n))
    }

    fn hit(
        &mut self,
        session: usize,
        query: Query,
        bytes: &[u8],
        seen: &GtidSet,
    ) -> Result<(), Fault> {
        self.hits += 1;
        let followed = self.followed;
        let value = self.value(query, |n| n < followed);
        if *bytes != pack(&value)[..] {
            return Err(format!(
                "{query:?}: not the state at F, which has {value:?}: {bytes:?}"
            ));
        }
        self.saw(session, query, &value, "a hit")?;
        self.sessions[session].must.union(seen);
        Ok(())
    }

    fn snapshot(&mut self, session: usize) {
        let Some(reading) = &self.sessions[session].reading else {
            return;
        };
        if reading.value.is_some() {
            return;
        }
        let value = match &self.sessions[session].transaction {
            Some((_, snapshot)) => self.value(reading.query, |n| snapshot.contains(&n)),
            None => {
                let visible = &self.servers[reading.server].visible;
                self.value(reading.query, |n| visible.contains(&n))
            }
        };
        if let Some(reading) = &mut self.sessions[session].reading {
            reading.value = Some(value);
        }
    }

    fn end(&mut self, session: usize) -> Result<(), Fault> {
        self.snapshot(session);
        let Some(reading) = self.sessions[session].reading.take() else {
            return Ok(());
        };
        let value = reading.value.unwrap_or_default();
        let upper = self.upper(reading.server);
        if let Some(token) = reading.token {
            let result = Finished {
                rows: 1,
                lower: &reading.lower,
                upper: &upper,
                bytes: pack(&value).into(),
                cost: Duration::from_millis(1),
            };
            let ended = self.store.finish(token, result, self.now);
            self.kept += u64::from(ended.kept.is_ok());
        }
        if self.sessions[session].transaction.is_none() {
            self.saw(session, reading.query, &value, "a read")?;
            self.sessions[session].must.union(&upper);
        }
        Ok(())
    }
}

fn options() -> impl Strategy<Value = Options> {
    (
        any::<bool>(),
        prop_oneof![Just(1usize << 20), Just(60_000)],
        1..4usize,
    )
        .prop_map(|(second_use, memory, changes_by_key_max)| Options {
            memory,
            second_use,
            changes_by_key_max,
            statements_max: 8,
            ..Options::default()
        })
}

fn family() -> impl Strategy<Value = Family> {
    prop_oneof![Just(Family::MySql), Just(Family::MariaDb)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_hit_is_the_state_at_f(family in family(), options in options(), ops in ops()) {
        let mut world = World::new(family, options, Wrong::default());
        let found = world.run(&ops);
        prop_assert!(found.is_ok(), "{}", found.unwrap_err());
    }
}

/// Runs histories until one shows a fault. Returns that, and how many hits and kept fills there were.
fn first_fault(histories: u64, wrong: Wrong) -> (Option<Fault>, u64, u64) {
    let (mut hits, mut kept) = (0, 0);
    for seed in 1..=histories {
        let mut random = Random {
            state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15),
            is_slow: seed % 2 == 0,
        };
        let options = Options {
            memory: if random.one_in(3) { 60_000 } else { 1 << 20 },
            second_use: random.one_in(3),
            changes_by_key_max: 1 + random.below(3),
            statements_max: 8,
            ..Options::default()
        };
        let family = match random.one_in(2) {
            true => Family::MySql,
            false => Family::MariaDb,
        };
        let ops: Vec<Op> = (0..400).map(|_| random.op()).collect();
        let mut world = World::new(family, options, wrong);
        let found = world.run(&ops);
        hits += world.hits;
        kept += world.kept;
        if let Err(fault) = found {
            return (Some(format!("history {seed}: {fault}")), hits, kept);
        }
    }
    (None, hits, kept)
}

#[test]
fn the_histories_have_hits() {
    let (found, hits, kept) = first_fault(300, Wrong::default());
    assert_eq!(found, None);
    assert!(hits > 200 && kept > 200, "{hits} hits, {kept} kept");
}

/// The model must be able to fail: each rule that is broken is found.
#[test]
fn a_broken_rule_is_found() {
    let rules = [
        Rule::Keep,
        Rule::Serve,
        Rule::Remove,
        Rule::Hit,
        Rule::Announced,
        Rule::Seen,
    ];
    let of_store = rules.map(|rule| Wrong {
        store: Some(rule),
        ..Wrong::default()
    });
    let of_model = Wrong {
        rule_1: true,
        ..Wrong::default()
    };
    for wrong in of_store.into_iter().chain([of_model]) {
        let (found, ..) = first_fault(1000, wrong);
        assert!(found.is_some(), "{wrong:?} is not found");
    }
}

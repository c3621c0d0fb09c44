//! Events of the log, put together to transactions: what each has touched, and what it asks of the store when it is
//! over. No I/O. Keeps no event: of a large transaction only what it touches.

use std::sync::Arc;
use std::time::Instant;

use millrace_cache::{Store, Subject, Touch, XaId};
use millrace_protocol::binlog::gtid::{Gtid, MariaDbGtid, mariadb_flags};
use millrace_protocol::binlog::payload::Payload;
use millrace_protocol::binlog::query::Query;
use millrace_protocol::binlog::{CHECKSUM, Event, Format, HEADER, Header, XaPrepare, events};
use millrace_topology::{GtidSet, MariaDbSet, MySqlSet};

use super::catalogue::Catalogue;
use super::mapped::Mapped;
use super::meaning::{Meaning, Reader};
use super::touched::{Done, Touched};

/// A transaction that decompresses to more, or a statement that does, is not understood. Bytes.
const PLAIN_MAX: usize = 64 << 20;

/// Buffers that have grown beyond are given back. Bytes.
const KEPT_MAX: usize = 1 << 20;

/// More tables of unknown definition are any.
const SUSPECTS_MAX: usize = 256;

/// The log cannot be followed beyond an event: what was kept must be dropped. The text says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) String);

/// A transaction that is over.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) transaction: GtidSet,
    deed: Deed,
    redefined: Redefined,
    doubtful: Vec<Subject>,
}

#[derive(Debug, PartialEq, Eq)]
enum Deed {
    Apply(Vec<Touch>),
    /// It may have changed anything.
    Unknown,
    Prepare(XaId, Vec<Touch>),
    Complete(XaId, bool),
}

/// Which tables are no longer what they were.
#[derive(Debug, Default, PartialEq, Eq)]
enum Redefined {
    #[default]
    None,
    Tables(Vec<Subject>),
    All,
}

impl Ended {
    /// Whether tables are no longer what they were.
    pub(super) fn redefines(&self) -> bool {
        self.redefined != Redefined::None
    }

    /// Whether tables may be others than is known, without a word in the log.
    pub(super) fn raises_doubts(&self) -> bool {
        !self.doubtful.is_empty()
    }

    /// Tells the store all of it: to be called in one hold of its lock.
    pub(super) fn tell(self, store: &mut Store, now: Instant) {
        match &self.redefined {
            Redefined::None => {}
            Redefined::Tables(subjects) => {
                for subject in subjects {
                    store.redefine(Some(subject), now);
                }
            }
            Redefined::All => {
                store.redefine(None, now);
            }
        }
        if self.redefines() {
            store.gap();
        }
        for subject in &self.doubtful {
            store.doubt(subject);
        }
        let transaction = &self.transaction;
        match self.deed {
            Deed::Apply(touches) => drop(store.apply(transaction, &touches, now)),
            Deed::Unknown => drop(store.apply_unknown(transaction, now)),
            Deed::Prepare(xa, touches) => store.prepare(transaction, xa, touches, now),
            Deed::Complete(xa, is_committed) => {
                store.complete(transaction, &xa, is_committed, now);
            }
        }
    }
}

/// Tables of which it is not known what they are now, nor which foreign keys they have.
#[derive(Debug, Default)]
struct Suspects {
    tables: Vec<Subject>,
    all: bool,
}

/// The transaction that is being read.
#[derive(Debug)]
struct Open {
    transaction: GtidSet,
    /// It goes on to a COMMIT; else its first statement is all of it.
    has_begun: bool,
    redefined: Redefined,
}

/// Where the log is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// The server's file.
    pub(super) file: Vec<u8>,
    /// Where in it the last event ended, modulo 2^32.
    pub(super) offset: u32,
}

/// What is read of the log, and what was.
#[derive(Debug)]
pub(super) struct Transactions {
    format: Format,
    reader: Reader,
    catalogue: Arc<Catalogue>,
    suspects: Suspects,
    mapped: Mapped,
    touched: Touched,
    open: Option<Open>,
    place: Place,
    timestamp: u32,
    /// The last event was a heartbeat: all that there is was sent.
    is_idle: bool,
    text: Vec<u8>,
    payload: Vec<u8>,
}

impl Transactions {
    /// Nothing is known of tables yet.
    pub(super) fn new() -> Self {
        Self {
            format: Format::new(false),
            reader: Reader::default(),
            catalogue: Arc::default(),
            suspects: Suspects {
                all: true,
                ..Suspects::default()
            },
            mapped: Mapped::default(),
            touched: Touched::default(),
            open: None,
            place: Place::default(),
            timestamp: 0,
            is_idle: false,
            text: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// Another stream begins, at the beginning of a transaction.
    pub(super) fn begin_stream(&mut self, checksum: bool) {
        self.format = Format::new(checksum);
        self.open = None;
        self.touched.clear();
        self.mapped.begin_stream();
    }

    /// Nothing that is known of tables counts any more.
    pub(super) fn forget_tables(&mut self) {
        self.suspects.all = true;
        self.mapped.forget();
    }

    /// A reading of definitions begins, after all that was taken so far.
    pub(super) fn begin_reading(&mut self) {
        self.mapped.begin_reading();
    }

    /// What is known of tables.
    pub(super) fn catalogue(&self) -> &Arc<Catalogue> {
        &self.catalogue
    }

    /// Tables that may be others than the last reading has found.
    pub(super) fn unread(&self) -> impl Iterator<Item = &Subject> {
        self.mapped.unread()
    }

    /// What tables are now, by the last reading.
    pub(super) fn know_tables(&mut self, catalogue: Arc<Catalogue>) {
        self.catalogue = catalogue;
        self.suspects = Suspects::default();
        self.mapped.forget();
    }

    /// Where the log is.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// When the last event was made, in seconds since 1970.
    pub(super) fn timestamp(&self) -> u32 {
        self.timestamp
    }

    /// The server has sent all that there is.
    pub(super) fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// The next event, as the server sent it. Gives the transaction that is over with it.
    pub(super) fn take(&mut self, raw: &[u8]) -> Result<Option<Ended>, Broken> {
        let had_checksum = self.format.has_checksum();
        let (header, event) = self
            .format
            .read(raw)
            .map_err(|error| Broken(format!("{error}")))?;
        if header.timestamp != 0 {
            self.timestamp = header.timestamp;
        }
        if header.next_position != 0 {
            self.place.offset = header.next_position;
        }
        self.is_idle = matches!(event, Event::Heartbeat { .. });
        let end = raw.len() - if had_checksum { CHECKSUM } else { 0 };
        let body = raw.get(HEADER..end).unwrap_or_default();
        self.event(&header, body, event)
    }

    fn event(
        &mut self,
        header: &Header,
        body: &[u8],
        event: Event<'_>,
    ) -> Result<Option<Ended>, Broken> {
        match event {
            Event::FormatDescription(description) => {
                self.reader
                    .of_server(description.server_version, description.mariadb);
            }
            Event::Rotate { position, file } => {
                self.place.file.clear();
                self.place.file.extend_from_slice(file);
                self.place.offset = position as u32;
            }
            Event::Gtid(gtid) => return Ok(self.begin(mysql(&gtid), false)),
            Event::MariaDbGtid(gtid) => {
                let has_begun = !gtid.has(mariadb_flags::STANDALONE);
                return Ok(self.begin(mariadb(&gtid, header.server_id), has_begun));
            }
            Event::Query(query) => return self.query(&query),
            Event::Xid(_) => return self.end().map(Some),
            Event::XaPrepare(prepare) => return self.prepare(&prepare).map(Some),
            Event::Payload(payload) => return self.compressed(&payload).map(Some),
            Event::TableMap(map) => {
                self.in_transaction("a table")?.has_begun = true;
                let suspects = &self.suspects;
                let by_key = |subject: &Subject| !suspects.has(subject);
                let definitions = &self.catalogue.definitions;
                self.mapped
                    .map(body, &map, definitions, by_key, &mut self.touched);
            }
            Event::Rows(rows) => {
                self.in_transaction("rows")?;
                self.mapped.rows(&rows, &mut self.touched);
            }
            Event::Unknown(kind) => {
                self.in_transaction(&format!("an event of the unknown type {kind}"))?;
                self.touched.anything();
            }
            Event::AnonymousGtid => return Err(Broken("a transaction without a GTID".into())),
            Event::Incident { message, .. } => {
                let message = String::from_utf8_lossy(message);
                return Err(Broken(format!("events are missing: {message}")));
            }
            Event::Heartbeat { .. }
            | Event::PreviousGtids(_)
            | Event::GtidList(_)
            | Event::StartEncryption
            | Event::Note(_)
            | Event::Ignorable(_) => {}
        }
        Ok(None)
    }

    /// A transaction begins. One that has not ended by then has ended in some way that is not known.
    fn begin(&mut self, transaction: GtidSet, has_begun: bool) -> Option<Ended> {
        let unfinished = self.open.take().map(|open| {
            self.touched.anything();
            self.close(open)
        });
        self.mapped.begin();
        self.open = Some(Open {
            transaction,
            has_begun,
            redefined: Redefined::None,
        });
        unfinished
    }

    fn in_transaction(&mut self, what: &str) -> Result<&mut Open, Broken> {
        let outside = || Broken(format!("{what} outside of a transaction"));
        self.open.as_mut().ok_or_else(outside)
    }

    fn end(&mut self) -> Result<Ended, Broken> {
        self.in_transaction("the end")?;
        let open = self.open.take();
        open.map(|open| self.close(open))
            .ok_or_else(|| Broken(String::new()))
    }

    fn close(&mut self, open: Open) -> Ended {
        match &open.redefined {
            Redefined::None => {}
            Redefined::Tables(tables) => self.suspects.add(tables, &self.catalogue),
            Redefined::All => self.suspects.all = true,
        }
        let deed = match self.finish() {
            Some(touches) if open.redefined != Redefined::All => Deed::Apply(touches),
            _ => Deed::Unknown,
        };
        Ended {
            transaction: open.transaction,
            deed,
            redefined: open.redefined,
            doubtful: self.mapped.take_doubtful(),
        }
    }

    /// What was touched; none where it may be anything.
    fn finish(&mut self) -> Option<Vec<Touch>> {
        let suspects = &self.suspects;
        let touches = self.touched.finish(&self.catalogue, &suspects.tables)?;
        // Any table may have a foreign key to any.
        let is_unknown = suspects.all && touches.iter().any(|touch| touch.subject.is_table());
        (!is_unknown).then_some(touches)
    }

    fn prepare(&mut self, prepare: &XaPrepare<'_>) -> Result<Ended, Broken> {
        let mut ended = self.end()?;
        if prepare.one_phase {
            return Ok(ended);
        }
        let xid = &prepare.xid;
        // Where it may have changed anything, its commit is that of an unknown one.
        if let Deed::Apply(touches) = ended.deed {
            let xa = XaId::new(xid.format_id, xid.gtrid, xid.bqual);
            ended.deed = Deed::Prepare(xa, touches);
        }
        Ok(ended)
    }

    fn query(&mut self, query: &Query<'_>) -> Result<Option<Ended>, Broken> {
        let has_begun = self.in_transaction("a statement")?.has_begun;
        let mut plain = std::mem::take(&mut self.text);
        let meaning = match query.text.plain(&mut plain, PLAIN_MAX) {
            Ok(text) => self.reader.read(query, text, &self.catalogue),
            Err(_) => Meaning::Unknown,
        };
        if plain.capacity() <= KEPT_MAX {
            self.text = plain;
        }
        match meaning {
            Meaning::Begin => {
                self.in_transaction("BEGIN")?.has_begun = true;
                return Ok(None);
            }
            Meaning::End => return self.end().map(Some),
            Meaning::Complete(xa, is_committed) => {
                let mut ended = self.end()?;
                ended.deed = Deed::Complete(xa, is_committed);
                return Ok(Some(ended));
            }
            Meaning::Nothing => {}
            Meaning::Rows(tables) => {
                for subject in &tables {
                    self.touched.whole(subject, Done::Something);
                }
            }
            Meaning::Rights => self.touched.rights(),
            Meaning::Redefines(tables) => self.redefine(tables)?,
            Meaning::Unknown => self.touched.anything(),
        }
        match has_begun {
            true => Ok(None),
            false => self.end().map(Some),
        }
    }

    fn redefine(&mut self, tables: Option<Vec<Subject>>) -> Result<(), Broken> {
        let tables = match tables {
            Some(tables) => tables,
            None => {
                self.suspects.all = true;
                self.mapped.forget();
                self.in_transaction("a definition")?.redefined = Redefined::All;
                return Ok(());
            }
        };
        for subject in &tables {
            self.touched.whole(subject, Done::Something);
        }
        // From here on rows may be of the new definition.
        self.suspects.add(&tables, &self.catalogue);
        self.mapped.forget();
        match &mut self.in_transaction("a definition")?.redefined {
            Redefined::All => {}
            Redefined::Tables(known) => known.extend(tables),
            none @ Redefined::None => *none = Redefined::Tables(tables),
        }
        Ok(())
    }

    /// A compressed transaction: all of it but its GTID (MySQL manual, "Binary Log Transaction Compression").
    fn compressed(&mut self, payload: &Payload<'_>) -> Result<Ended, Broken> {
        self.in_transaction("a payload")?;
        let mut plain = std::mem::take(&mut self.payload);
        let ended = match payload.plain(&mut plain, PLAIN_MAX) {
            Ok(plain) => self.inner_events(plain),
            Err(_) => None,
        };
        if plain.capacity() <= KEPT_MAX {
            self.payload = plain;
        }
        match ended {
            Some(ended) => Ok(ended),
            None => {
                self.touched.anything();
                self.end()
            }
        }
    }

    /// None where they cannot be read to the transaction's end.
    fn inner_events(&mut self, plain: &[u8]) -> Option<Ended> {
        for raw in events(plain) {
            let raw = raw.ok()?;
            let (header, event) = self.format.read_inner(raw).ok()?;
            if let Event::Payload(_) = event {
                return None;
            }
            let ended = self.event(&header, raw.get(HEADER..)?, event).ok()?;
            if ended.is_some() {
                return ended;
            }
        }
        None
    }
}

impl Suspects {
    fn has(&self, subject: &Subject) -> bool {
        self.all || self.tables.contains(subject)
    }

    /// With them, what changes with them by the foreign keys that were known. Whatever foreign keys are new, they are
    /// those of one of these: so what can change in a way that is not known is one of them, or changes with one.
    fn add(&mut self, tables: &[Subject], known: &Catalogue) {
        for subject in tables {
            let with = [
                known.deleted_with(subject),
                known.updated_with(subject),
                std::slice::from_ref(subject),
            ];
            self.tables.extend(with.into_iter().flatten().cloned());
        }
        self.tables.sort_unstable();
        self.tables.dedup();
        self.all |= self.tables.len() > SUSPECTS_MAX;
    }
}

fn mysql(gtid: &Gtid<'_>) -> GtidSet {
    let mut set = MySqlSet::default();
    if gtid.tag.is_empty() {
        set.insert(gtid.source, gtid.number, gtid.number);
        return GtidSet::MySql(set);
    }
    let digits: String = gtid.source.iter().map(|b| format!("{b:02x}")).collect();
    let [a, b, c, d, e] = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    let tag = String::from_utf8_lossy(gtid.tag);
    let text = format!("{a}-{b}-{c}-{d}-{e}:{tag}:{}", gtid.number);
    GtidSet::parse_mysql(text.as_bytes()).unwrap_or(GtidSet::MySql(set))
}

fn mariadb(gtid: &MariaDbGtid<'_>, server_id: u32) -> GtidSet {
    let mut set = MariaDbSet::default();
    set.insert(gtid.domain, server_id, gtid.sequence);
    GtidSet::MariaDb(set)
}

#[cfg(test)]
mod tests;

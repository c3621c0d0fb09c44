//! A transaction that has lost its server, and is run again on another: whether it has to be, whether it can be,
//! what must come out the same, and when it stops. Sends nothing.

use std::time::Instant;

use millrace_protocol::packet;
use millrace_sql::{Flags, Kind, Statement, TableUse};
use millrace_topology::ServerId;

use crate::books::{Books, Unread};
use crate::image::user_variables::variable_name;
use crate::journal::{Answered, Entry, Journal, Unreplayable, commits};
use crate::options::FailoverOptions;
use crate::request::Request;

/// A transaction that waits to be run again.
#[derive(Debug)]
pub struct Replay {
    journal: Box<Journal>,
    lost: Lost,
    /// INSERTs that must be told which number to generate, because they would generate another.
    numbered: Vec<usize>,
    begun_again: Option<Instant>,
}

/// What the lost connection was to the session.
#[derive(Debug, Clone, Copy)]
pub struct Lost {
    /// Its server.
    pub server: ServerId,
    /// The session's last statement on it.
    pub seq: u64,
    /// What the session could still ask there.
    pub unread: Unread,
}

/// LAST_INSERT_ID() where what it was is not known: a number that no table generates.
pub const UNKNOWN_ID: u64 = 9_223_372_036_854_770_001;

/// How a statement came out the second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeated {
    /// As the first time.
    Same,
    /// An INSERT generated another number: it has to be told its number, so the transaction begins once more.
    OtherNumber,
    /// Otherwise: the transaction cannot be run again.
    Differs,
}

/// The LAST_INSERT_ID() that a statement must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdToFind {
    /// This one.
    Known(u64),
    /// Whatever is there.
    Any,
    /// Where it is still [`UNKNOWN_ID`]: what it was before the transaction, by [`Replay::id_from_before`].
    FromBefore,
}

impl Replay {
    /// Of the transaction in `journal`, whose connection is lost.
    pub fn new(journal: Box<Journal>, server: ServerId, books: &Books) -> Replay {
        Replay {
            journal,
            lost: Lost {
                server,
                seq: books.last_seq(),
                unread: books.unread(),
            },
            numbered: Vec::new(),
            begun_again: None,
        }
    }

    /// What is run again.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// What the lost connection was to the session.
    pub fn lost(&self) -> Lost {
        self.lost
    }

    /// It stands where it stood: the journal goes on.
    pub fn into_journal(self) -> Box<Journal> {
        self.journal
    }

    /// Whether this request ends the transaction, so that nothing has to be run again for it.
    pub fn is_ended_by(&self, class: &Statement) -> bool {
        let flags = class.flags;
        let plain = !flags.intersects(Flags::CHAIN | Flags::RELEASE);
        match class.kind {
            Kind::Rollback => plain,
            Kind::Commit => plain && self.journal.has_nothing_to_commit(),
            // It ends the transaction before it does anything.
            Kind::Ddl if flags.contains(Flags::IMPLICIT_COMMIT) => {
                self.journal.has_nothing_to_commit()
            }
            _ => false,
        }
    }

    /// Why it cannot be run again; none where it can. `private_version`: of the session's user variables now.
    pub fn spoilt(
        &self,
        now: Instant,
        options: &FailoverOptions,
        private_version: u64,
    ) -> Option<Unreplayable> {
        let private = self.journal.begun().private_version != private_version;
        let spoilt = self.journal.spoilt(now, options);
        spoilt.or(private.then_some(Unreplayable::Statement))
    }

    /// Another connection is tried: it has not begun there.
    pub fn try_anew(&mut self) {
        self.begun_again = None;
    }

    /// It was begun on the connection at hand.
    pub fn begin_again(&mut self, now: Instant) {
        self.begun_again = Some(now);
    }

    /// When it was begun on the connection at hand.
    pub fn begun_again(&self) -> Option<Instant> {
        self.begun_again
    }

    /// Whether a statement has to be told which number to generate.
    pub fn is_numbered(&self, at: usize) -> bool {
        self.numbered.contains(&at)
    }

    /// A statement has to be told that from now on.
    pub fn number(&mut self, at: usize) {
        self.numbered.push(at);
    }

    /// Compares a statement's answer with what the client was told.
    pub fn compare(&self, at: usize, answer: Answered) -> Repeated {
        let before = self.journal.entries()[at].answer;
        if answer == before {
            Repeated::Same
        } else if !self.is_numbered(at) && before.differs_in_number_only(answer) {
            Repeated::OtherNumber
        } else {
            Repeated::Differs
        }
    }

    /// The LAST_INSERT_ID() that the transaction begins with.
    pub fn id_at_begin(&self) -> u64 {
        let begun = self.journal.begun();
        match begun.last_insert_id {
            Some(id) => id,
            None if self.journal.last_change().is_some() => UNKNOWN_ID,
            None => begun.insert_id_seen,
        }
    }

    /// The LAST_INSERT_ID() that a statement must find.
    pub fn id_to_find(&self, at: usize) -> IdToFind {
        let about = self.journal.entries()[at].about;
        if let Some(id) = about.last_insert_id {
            return IdToFind::Known(id);
        }
        let last = self.journal.last_change() == Some(at);
        match self.journal.begun().last_insert_id {
            None if about.uses_insert_id || last => IdToFind::FromBefore,
            _ => IdToFind::Any,
        }
    }

    /// The LAST_INSERT_ID() from before the transaction, which was not known. A statement that uses it cannot be run
    /// again. For what the client may ask after the transaction's last statement, the number that it was told has to
    /// do, as it does outside of transactions.
    ///
    /// # Errors
    /// The statement uses it.
    pub fn id_from_before(&self, at: usize) -> Result<u64, Unreplayable> {
        match self.journal.entries()[at].about.uses_insert_id {
            true => Err(Unreplayable::Statement),
            false => Ok(self.journal.begun().insert_id_seen),
        }
    }

    /// A statement, and its packets with room to put a number in.
    pub fn packets(&self, at: usize) -> (&Entry, Vec<u8>) {
        (
            &self.journal.entries()[at],
            self.journal.packets(at).to_vec(),
        )
    }
}

/// Whether nobody can tell if the open transaction was committed, where its connection broke under the request. No
/// journal: nothing is known of what it did. `writes`: the request may.
pub fn is_outcome_unknown(journal: Option<&Journal>, request: &Request<'_>, writes: bool) -> bool {
    let uncertain = journal.is_none_or(Journal::is_uncertain);
    let changed = writes || uncertain || journal.is_none_or(Journal::wrote);
    changed && (uncertain || commits(request))
}

/// Adds the tables that a statement names to change them.
pub fn add_written(class: &Statement, text: &[u8], names: &mut Vec<Box<[u8]>>) {
    let written = |usage| matches!(usage, TableUse::Write | TableUse::Define);
    for table in class.tables.iter().filter(|table| written(table.usage)) {
        let name = variable_name(table.name.of(text));
        if !names.contains(&name) {
            names.push(name);
        }
    }
}

/// Writes a statement's number into each of an execution's packets.
pub fn put_number(bytes: &mut [u8], id: u32) {
    let mut at = 0;
    while let Some(header) = bytes.get(at..).and_then(packet::header) {
        let field = at + packet::HEADER + 1;
        if let Some(field) = bytes.get_mut(field..field + 4) {
            field.copy_from_slice(&id.to_le_bytes());
        }
        at += packet::HEADER + header.len as usize;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_into_every_packet() {
        let mut bytes = Vec::new();
        packet::frame(&mut bytes, 0, &[0x18, 0, 0, 0, 0, 1, 0, b'x']);
        packet::frame(&mut bytes, 0, &[0x17, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        put_number(&mut bytes, 0x0403_0201);
        assert_eq!(bytes[4..9], [0x18, 1, 2, 3, 4]);
        assert_eq!(bytes[16..21], [0x17, 1, 2, 3, 4]);
        assert_eq!(bytes[21..], [0, 1, 0, 0, 0]);
    }
}

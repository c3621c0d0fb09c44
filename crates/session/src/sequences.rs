//! MariaDB's sequences: LASTVAL() and PREVIOUS VALUE FOR say what their connection drew last. A column's DEFAULT draws
//! without a word in the statement, so every write may have.

use std::sync::atomic::Ordering;

use millrace_backend::conn::Drew;
use millrace_backend::pool::Lease;
use millrace_sql::{Family, Flags, Kind, Statement};

use crate::failure::Answer;
use crate::lease::Request;
use crate::session::Session;

/// Whether a statement asks for what its connection drew last.
pub(crate) fn asks_drawn(request: &Request<'_>) -> bool {
    let class = request.inner.map_or(request.class, |(inner, _)| inner);
    class.flags.contains(Flags::ASKS_DRAWN)
}

/// Whether a statement may draw from a sequence.
pub(crate) fn may_draw(class: &Statement) -> bool {
    class.flags.contains(Flags::SEQUENCE)
        || matches!(
            class.kind,
            Kind::Insert
                | Kind::Replace
                | Kind::Update
                | Kind::LoadData { .. }
                | Kind::Call
                | Kind::Multi
                | Kind::Unknown
                | Kind::Execute { .. }
        )
}

impl Session {
    /// Others may have drawn on the connection, and the session asks for what it has drawn itself, or is about to
    /// draw or to keep the connection and will ask.
    pub(crate) fn sees_foreign_draws(&self, lease: &Lease, request: &Request<'_>) -> bool {
        if self.family != Family::MariaDb
            || !lease.drew.is_of_others(self.handle.uid)
            || !self.handle.pins.is_empty()
        {
            return false;
        }
        let class = request.class;
        class.flags.contains(Flags::SEQUENCE)
            || (self.asks_for_draws() && (may_draw(class) || self.may_keep(class)))
    }

    /// Sessions of this account ask LASTVAL(): each keeps the connection on which it draws.
    pub(crate) fn asks_for_draws(&self) -> bool {
        self.identity.account.asks_for_draws.load(Ordering::Relaxed)
    }

    pub(crate) fn note_draws(&mut self, lease: &mut Lease, class: &Statement) {
        if self.family == Family::MariaDb && may_draw(class) {
            lease.drew.add(self.handle.uid);
            self.drew_at = Some((lease.server, self.seq));
        }
    }

    /// Before LASTVAL(): the connection on which the session drew last.
    ///
    /// # Errors
    /// Others have used it since, or before.
    pub(crate) fn drawing_connection(&mut self) -> Result<Option<Lease>, Answer> {
        if self.family != Family::MariaDb || self.rerun.is_some() {
            return Ok(None);
        }
        let uid = self.handle.uid;
        self.identity
            .account
            .asks_for_draws
            .store(true, Ordering::Relaxed);
        if let Some(lease) = &self.lease {
            return match lease.drew {
                Drew::Several => Err(lost()),
                drew if drew.is_of_others(uid) && self.drew_at.is_some() => Err(lost()),
                _ => Ok(None),
            };
        }
        let Some((server, seq)) = self.drew_at else {
            return Ok(None);
        };
        let own = self.take_own(server, seq);
        match own {
            Some(own) if !own.drew.is_of_others(uid) => Ok(Some(own)),
            Some(own) => {
                own.give_back();
                Err(lost())
            }
            None => Err(lost()),
        }
    }
}

fn lost() -> Answer {
    let text = "Millrace: other sessions have used the connection that LASTVAL() asks about; from now on sessions of \
                this account keep theirs once they write";
    Answer::client(1105, b"HY000", text)
}

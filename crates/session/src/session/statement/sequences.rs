//! Which connection may be asked LASTVAL(); which statements draw and ask stands in the image.

use millrace_backend::pool::Lease;
use millrace_engine::request::Request;
use millrace_sql::{Family, Flags};

use crate::error::ClientError;
use crate::session::Session;

impl Session {
    /// The session is about to draw or to ask, and will keep the connection; another has drawn there last.
    pub(in crate::session) fn sees_foreign_draws(
        &self,
        lease: &Lease,
        request: &Request<'_>,
    ) -> bool {
        self.image.family == Family::MariaDb
            && request.class.flags.contains(Flags::SEQUENCE)
            && lease.books.drew_for_other(self.handle.uid())
            && self.handle.pins().is_empty()
    }

    /// Before LASTVAL(): the connection on which the session may have drawn last; none where any will do.
    ///
    /// # Errors
    /// Others have used it since.
    pub(in crate::session) fn drawing_connection(&mut self) -> Result<Option<Lease>, ClientError> {
        if self.image.family != Family::MariaDb || self.image.tx.replay.is_some() {
            return Ok(None);
        }
        if let Some(lease) = &self.lease {
            return match lease.books.drew_for_other(self.handle.uid()) {
                false => Ok(None),
                true => Err(lost()),
            };
        }
        let Some((server, seq)) = self.image.last.drew_at() else {
            return Ok(None);
        };
        self.take_own(server, seq).ok_or_else(lost).map(Some)
    }
}

fn lost() -> ClientError {
    let text = "Millrace: other sessions have used the connection that LASTVAL() asks about; ask in the transaction \
                that draws";
    ClientError::client(1105, b"HY000", text)
}

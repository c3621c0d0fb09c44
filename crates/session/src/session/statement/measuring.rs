//! Keeps the session's connection while something is measured there; what is, stands in the image.

use millrace_engine::image::measuring::Measured;
use millrace_metrics::PinReason;
use millrace_sql::{Statement, ValueKind};

use crate::session::Session;

impl Session {
    /// Whether what runs on the connection is measured, so that nothing of Millrace's own may.
    pub(in crate::session) fn is_measured(&self) -> bool {
        self.handle.pins().has(PinReason::Diagnostics)
    }

    /// A session variable was set; `value` as written.
    pub(in crate::session) fn note_measuring(&mut self, name: &str, kind: ValueKind, value: &[u8]) {
        let measured = self.image.held.measuring().note_set(name, kind, value);
        self.keep_measures(measured);
    }

    /// A statement has succeeded.
    pub(in crate::session) fn note_measured(&mut self, class: &Statement, text: &[u8]) {
        let measured = self.image.held.measuring().note_ran(class, text);
        self.keep_measures(measured);
    }

    fn keep_measures(&mut self, measured: Option<Measured>) {
        match measured {
            Some(Measured::Keeps) => self.pin(PinReason::Diagnostics),
            Some(Measured::Ends) => self.unpin(PinReason::Diagnostics),
            None => {}
        }
    }
}

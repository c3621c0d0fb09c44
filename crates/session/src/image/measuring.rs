//! What a connection measures of its statements: profiles, the optimizer's trace, the counters of SHOW STATUS. A
//! session that has asked for any keeps its connection, and nothing else is asked there.

use millrace_metrics::PinReason;
use millrace_sql::{Flags, Kind, Show, Statement, ValueKind};

use crate::session::Session;

/// What is measured for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Measuring {
    profiling: bool,
    trace: bool,
    /// Since FLUSH STATUS; to the session's end.
    counters: bool,
    /// No more, but what was measured can still be asked for until another statement runs.
    fading: bool,
}

impl Measuring {
    fn is_on(self) -> bool {
        self.profiling || self.trace || self.counters
    }
}

impl Session {
    /// Whether what runs on the connection is measured, so that nothing of Millrace's own may.
    pub(crate) fn is_measured(&self) -> bool {
        self.handle.pins.has(PinReason::Diagnostics)
    }

    /// A session variable was set; `value` as written.
    pub(crate) fn note_measuring(&mut self, name: &str, kind: ValueKind, value: &[u8]) {
        let value = String::from_utf8_lossy(value).to_ascii_lowercase();
        let on = kind != ValueKind::Default
            && match name {
                "profiling" => !["0", "off", "false", "'off'", "'0'"].contains(&&*value),
                "optimizer_trace" => !value.contains("enabled=off") && value != "0",
                _ => return,
            };
        let before = self.image.held.measuring;
        match name {
            "profiling" => self.image.held.measuring.profiling = on,
            _ => self.image.held.measuring.trace = on,
        }
        self.image.held.measuring.fading = before.is_on() && !self.image.held.measuring.is_on();
        if on {
            self.pin(PinReason::Diagnostics);
        }
    }

    /// A statement has succeeded.
    pub(crate) fn note_measured(&mut self, class: &Statement, text: &[u8]) {
        if class.flags.contains(Flags::MEASURES) && class.kind != Kind::Set {
            self.image.held.measuring.counters = true;
            self.image.held.measuring.fading = false;
            self.pin(PinReason::Diagnostics);
        }
        if self.image.held.measuring.fading
            && class.kind != Kind::Set
            && !asks_for_measures(class, text)
        {
            self.image.held.measuring = Measuring::default();
            self.unpin(PinReason::Diagnostics);
        }
    }
}

/// SHOW PROFILES and its like, and the tables of information_schema that tell the same.
fn asks_for_measures(class: &Statement, text: &[u8]) -> bool {
    let names = |word: &str| {
        text.windows(word.len())
            .any(|part| part.eq_ignore_ascii_case(word.as_bytes()))
    };
    class.kind == Kind::Show(Show::Profile)
        || (class.flags.contains(Flags::SYSTEM_SCHEMA)
            && (names("profiling") || names("optimizer_trace")))
}

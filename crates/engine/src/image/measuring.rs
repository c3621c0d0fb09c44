//! What a connection measures of its statements: profiles, the optimizer's trace, the counters of SHOW STATUS. A
//! session that has asked for any keeps its connection, and nothing else is asked there.

use millrace_sql::{Flags, Kind, Show, Statement, ValueKind};

/// What is measured for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measuring {
    profiling: bool,
    trace: bool,
    /// Since FLUSH STATUS; to the session's end.
    counters: bool,
    /// No more, but what was measured can still be asked for until another statement runs.
    fading: bool,
}

/// What measuring means for the session's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measured {
    /// It is kept from now on.
    Keeps,
    /// Nothing that was measured can be asked for any more.
    Ends,
}

impl Measuring {
    fn is_on(self) -> bool {
        self.profiling || self.trace || self.counters
    }

    /// A session variable was set; `value` as written.
    pub fn note_set(&mut self, name: &str, kind: ValueKind, value: &[u8]) -> Option<Measured> {
        let value = String::from_utf8_lossy(value).to_ascii_lowercase();
        let on = kind != ValueKind::Default
            && match name {
                "profiling" => !["0", "off", "false", "'off'", "'0'"].contains(&&*value),
                "optimizer_trace" => !value.contains("enabled=off") && value != "0",
                _ => return None,
            };
        let before = *self;
        match name {
            "profiling" => self.profiling = on,
            _ => self.trace = on,
        }
        self.fading = before.is_on() && !self.is_on();
        on.then_some(Measured::Keeps)
    }

    /// A statement has succeeded.
    #[inline]
    pub fn note_ran(&mut self, class: &Statement, text: &[u8]) -> Option<Measured> {
        let mut measured = None;
        if class.flags.contains(Flags::MEASURES) && class.kind != Kind::Set {
            self.counters = true;
            self.fading = false;
            measured = Some(Measured::Keeps);
        }
        if self.fading && class.kind != Kind::Set && !asks_for_measures(class, text) {
            *self = Measuring::default();
            measured = Some(Measured::Ends);
        }
        measured
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

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(measuring: &mut Measuring, kind: Kind, flags: Flags, text: &[u8]) -> Option<Measured> {
        let class = Statement {
            kind,
            flags,
            ..Statement::default()
        };
        measuring.note_ran(&class, text)
    }

    #[test]
    fn what_was_measured_lasts_until_another_statement_runs() {
        let mut measuring = Measuring::default();
        let mut set = |value: &[u8]| measuring.note_set("profiling", ValueKind::Word, value);
        assert_eq!(set(b"1"), Some(Measured::Keeps));
        assert_eq!(set(b"OFF"), None);
        let show = Kind::Show(Show::Profile);
        let profile = ran(&mut measuring, show, Flags::empty(), b"SHOW PROFILES");
        assert_eq!(profile, None);
        let table = b"SELECT * FROM information_schema.PROFILING";
        let selected = ran(&mut measuring, Kind::Select, Flags::SYSTEM_SCHEMA, table);
        assert_eq!(selected, None);
        let other = ran(&mut measuring, Kind::Select, Flags::empty(), b"SELECT 1");
        assert_eq!(other, Some(Measured::Ends));
        assert_eq!(measuring, Measuring::default());
    }

    #[test]
    fn counters_are_for_good() {
        let mut measuring = Measuring::default();
        let flush = Kind::Unknown;
        let flushed = ran(&mut measuring, flush, Flags::MEASURES, b"FLUSH STATUS");
        assert_eq!(flushed, Some(Measured::Keeps));
        measuring.note_set("optimizer_trace", ValueKind::Word, b"'enabled=on'");
        measuring.note_set("optimizer_trace", ValueKind::Word, b"'enabled=off'");
        let other = ran(&mut measuring, Kind::Select, Flags::empty(), b"SELECT 1");
        assert_eq!(other, None);
        assert_eq!(measuring.note_set("sql_mode", ValueKind::Word, b"''"), None);
    }
}

//! Rules that can be broken on purpose, so that a check proves that it can fail. What ships keeps all of them.

/// A rule of this crate's, or what one rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Rule 1: fills and hits in transactions, too.
    Fill,
    /// Rule 2: keeps a result whatever P has.
    Keep,
    /// Rule 2: serves it before F has Q.
    Serve,
    /// Rule 3: keeps what a transaction beyond P has touched.
    Remove,
    /// Rule 4: serves a session that must see more than F.
    Hit,
    /// Rule 4: whatever was announced.
    Announced,
    /// Rule 4: a hit has not seen anything.
    Seen,
    /// A table's triggers change nothing.
    Triggers,
    /// Foreign keys change nothing.
    Cascades,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 9] = [
        Rule::Fill,
        Rule::Keep,
        Rule::Serve,
        Rule::Remove,
        Rule::Hit,
        Rule::Announced,
        Rule::Seen,
        Rule::Triggers,
        Rule::Cascades,
    ];

    /// As `MILLRACE_BREAKS` names it.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Fill => "fill",
            Rule::Keep => "keep",
            Rule::Serve => "serve",
            Rule::Remove => "remove",
            Rule::Hit => "hit",
            Rule::Announced => "announced",
            Rule::Seen => "seen",
            Rule::Triggers => "triggers",
            Rule::Cascades => "cascades",
        }
    }

    /// Whether it is broken: never but in a build with the feature `broken-rules`.
    #[inline]
    pub fn is_broken(self) -> bool {
        #[cfg(feature = "broken-rules")]
        let is_broken = BROKEN.load(std::sync::atomic::Ordering::Relaxed) == self as u8;
        #[cfg(not(feature = "broken-rules"))]
        let is_broken = false;
        is_broken
    }

    /// Breaks it from here on, in the whole process.
    #[cfg(feature = "broken-rules")]
    pub fn break_it(self) {
        BROKEN.store(self as u8, std::sync::atomic::Ordering::Relaxed);
    }
}

/// The rule that is broken; no rule's number at first.
#[cfg(feature = "broken-rules")]
static BROKEN: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(u8::MAX);

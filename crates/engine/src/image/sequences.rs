//! MariaDB's sequences: LASTVAL() and PREVIOUS VALUE FOR say what their connection drew last. A column's DEFAULT draws
//! without a word in the statement, so every write may have.

use millrace_sql::{Flags, Statement, Traits};

/// Whether a statement asks for what its connection drew last.
#[inline]
pub fn asks_drawn(class: &Statement) -> bool {
    class.flags.contains(Flags::ASKS_DRAWN)
}

/// Whether a statement may draw from a sequence.
#[inline]
pub(super) fn may_draw(class: &Statement) -> bool {
    class.flags.contains(Flags::SEQUENCE) || class.is(Traits::MAY_DRAW)
}

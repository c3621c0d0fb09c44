//! The normalised text of a statement and its hash. Says nothing about the statement's meaning.
use crate::mode::LexMode;

/// Writes the statement's normalised text to `out` (cleared first).
pub fn digest(_text: &[u8], _mode: &LexMode, out: &mut Vec<u8>) -> u64 {
    out.clear();
    0
}

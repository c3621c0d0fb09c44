//! Sessions that panic where a statement asks for it: for checks of what a defect costs others. Never in what ships.

/// Where a session can be told to panic.
#[derive(Clone, Copy, Debug)]
pub(super) enum Point {
    /// Before it has borrowed a connection.
    Begun,
    /// With a connection whose server has been sent the statement.
    Sent,
    /// With a connection whose answer has been passed on.
    Answered,
}

/// Panics where `/* panics: begun */`, `sent` or `answered` is in the text.
#[cfg(feature = "broken-rules")]
pub(super) fn panic_at(point: Point, text: &[u8]) {
    let mark = format!("/* panics: {point:?} */").to_lowercase();
    let asked = text.windows(mark.len()).any(|at| at == mark.as_bytes());
    assert!(!asked, "as the statement asks");
}

/// Nothing.
#[cfg(not(feature = "broken-rules"))]
#[inline(always)]
pub(super) fn panic_at(_: Point, _: &[u8]) {}

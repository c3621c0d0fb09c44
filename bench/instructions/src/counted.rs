//! What is counted: callgrind is told the names of these two functions (`--toggle-collect`) and
//! turns its collecting over when one is entered and again when it returns. They are neither
//! generic nor inlined, so that there is one function of each name, and they differ in what they
//! do, so that the compiler does not make one of the two.

use std::hint::black_box;

/// Runs `work` and counts it; starting up is thus left out.
#[inline(never)]
pub(crate) fn counted(work: &mut dyn FnMut()) {
    work();
    black_box("counted");
}

/// Runs `work`, which is not counted, within something that is.
#[inline(never)]
pub(crate) fn uncounted(work: &mut dyn FnMut()) {
    work();
    black_box("uncounted");
}

/// Runs `work` `count` times, counted.
pub(crate) fn repeat(count: u32, mut work: impl FnMut(u32)) {
    counted(&mut || (0..count).for_each(&mut work));
}

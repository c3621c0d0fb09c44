//! Statements without a server: they wait for one ([`waiting`]), and an open transaction that has lost its own is
//! replayed on another ([`recording`], [`replay`]).

pub(super) mod recording;
pub(super) mod replay;
pub(super) mod waiting;

//! Statements without a server: they wait for one ([`waiting`], [`wait_queue`]), and an open transaction that has
//! lost its own is replayed on another ([`recording`], [`replay`]).

pub(crate) mod recording;
pub(crate) mod replay;
pub(crate) mod wait_queue;
pub(crate) mod waiting;

//! What Millrace answers itself, or puts into a statement, because a server's connection would answer for another
//! session.

pub(super) mod cached;
pub(super) mod charsets;
pub(super) mod columns;
mod compared;
pub(super) mod dependence;
pub(super) mod diagnostics;
pub(super) mod internal;
pub(super) mod local;
pub(super) mod messages;
pub(super) mod session_functions;

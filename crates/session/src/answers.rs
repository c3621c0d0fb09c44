//! What Millrace answers itself, or puts into a statement, because a server's connection would answer for another
//! session.

pub(crate) mod charsets;
pub(crate) mod columns;
pub(crate) mod diagnostics;
pub(crate) mod internal;
pub(crate) mod local;
pub(crate) mod messages;
pub(crate) mod session_functions;

//! Lexing and classifying statements: what kind a statement is, where it may run, what it does
//! to the session and what it touches. Never performs I/O, reads a clock or keeps global state.
//!
//! [`classify`] reads a statement's bytes once, as the server with the same [`LexMode`] would,
//! and fills a [`Statement`] that the caller reuses; an ordinary statement allocates nothing.
//! Whatever it is not sure of becomes [`Kind::Unknown`] with [`Access::Write`].
//!
//! [`reads`] says what the result cache asks of a SELECT: whether its answer is a function of rows, session and
//! parameters, and on which rows of its tables it can depend.
//!
//! [`writes`] says of a statement that writes one table which rows those are.
//!
//! # What a text cannot tell
//!
//! Callers must bring these together with what they know of the session and the servers:
//! - Whether a name is a table, a view (which may call routines that write) or a temporary table.
//!   Names of common table expressions that are in scope are left out of [`Statement::tables`];
//!   aliases named in a multi-table DELETE are in it.
//! - What a function in [`Statement::functions`] does, and any routine that CALL, a trigger or a
//!   view runs: such code may set user variables, take locks, use sequences.
//! - Which database is current: after `USE performance_schema` a bare `threads` is server-local.
//! - What EXECUTE runs: classify the prepared text. What an expression evaluates to.
//! - Whether DROP TABLE meets a temporary table, whether COMMIT finds a transaction open, whether
//!   `autocommit` is on: the server's status flags say so.
//! - Whether the server accepts the statement at all; for one that it refuses any answer is right
//!   that brings it to a server.

mod classify;
mod digest;
mod hint;
pub mod ident;
mod lexer;
mod locks;
mod mode;
mod parts;
mod reads;
mod shapes;
mod statement;
mod traits;
mod words;
mod writes;

pub use digest::digest;
pub use hint::{Hint, tags};
pub use ident::ident_eq;
pub use locks::lock_names;
pub use millrace_base::Family;
pub use mode::{Charset, LexMode};
pub use parts::{Parts, parts};
pub use reads::{
    ColumnName, Comparison, Condition, Conditions, Constant, Literal, Reads, Unstable, Why, reads,
};
pub use shapes::Shapes;
pub use statement::{
    Access, Assignment, Explained, ExprFlags, Flags, HandlerOp, Isolation, Kill, KillTarget, Kind,
    NameRef, Scope, Show, Span, Statement, SysVarRef, TableRef, TableUse, Target, TextSource,
    ValueKind, XaOp,
};
pub use traits::Traits;
pub use writes::{Writes, writes};

/// Classifies `text` as a server in `mode` would read it and stores the answer in `out`.
///
/// `out` is cleared first and keeps its capacity. Never panics, whatever the bytes. Spans are
/// 32 bits wide: a text longer than 4 GiB (no server takes more than 1) is not understood.
pub fn classify(text: &[u8], mode: &LexMode, out: &mut Statement) {
    if u32::try_from(text.len()).is_err() {
        return out.clear();
    }
    classify::Parser::new(text, mode, out).run();
}

//! Which server a statement may run on, as a pure decision.

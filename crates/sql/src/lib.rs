//! Lexing and classifying statements, without I/O.

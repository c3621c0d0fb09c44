//! The configuration file, validated, as each crate's options.

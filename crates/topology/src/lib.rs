//! Servers, roles and replication positions, as pure values.

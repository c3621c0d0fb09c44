//! What several crates name. Knows no rule, and no other crate.

mod address;
mod by_id;

use std::fmt;

pub use address::Address;
pub use by_id::{ById, IdHasher};

/// The servers' family: whose SQL, protocol, GTIDs and replication status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// Oracle's MySQL (and Percona Server).
    MySql,
    /// MariaDB.
    MariaDb,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::MySql => "mysql",
            Family::MariaDb => "mariadb",
        })
    }
}

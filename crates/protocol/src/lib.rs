//! The MySQL and MariaDB wire protocol, without I/O.

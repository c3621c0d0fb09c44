//! End-to-end suites on real servers.

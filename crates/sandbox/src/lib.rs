//! Private clusters of real servers, for the demo, tests and benches.

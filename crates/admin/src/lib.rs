//! Metrics and health over HTTP.

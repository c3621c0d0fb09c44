//! Server connections: connect, pool, lease, state replay, probes.

//! The demo's ports, one after the other. Holds none: who loses a race for one says so.

use std::net::TcpListener;

use anyhow::{Context, Result, bail};

/// Where clients connect when nobody names a port and it is free.
const USUAL: u16 = 6033;
/// Otherwise: below the ports that Linux gives to outgoing connections.
const CHOICE: std::ops::Range<u16> = 10_000..30_000;
/// Millrace's own ports; the servers' follow.
const OWN: u16 = 5;

/// Ports on 127.0.0.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ports {
    /// Reads to replicas, writes to the primary.
    pub(super) auto: u16,
    /// Everything to the primary.
    pub(super) primary: u16,
    /// Everything to replicas.
    pub(super) replicas: u16,
    /// Metrics and health.
    pub(super) http: u16,
    /// Operators' statements.
    pub(super) admin: u16,
    /// The first server's; the others follow.
    pub(super) servers: u16,
}

impl Ports {
    /// From `first` on, or wherever enough ports are free.
    ///
    /// # Errors
    /// When one of the named ports is taken.
    pub(super) fn choose(first: Option<u16>, servers: u16) -> Result<Self> {
        let count = OWN + servers;
        match first {
            Some(first) => match taken(first, count) {
                Some(port) => bail!("port {port} of 127.0.0.1 is not free: use another --port"),
                None => Ok(Ports::from(first)),
            },
            None => anywhere(count),
        }
    }

    fn from(first: u16) -> Self {
        Ports {
            auto: first,
            primary: first + 1,
            replicas: first + 2,
            http: first + 3,
            admin: first + 4,
            servers: first + OWN,
        }
    }
}

/// Demos started side by side begin to look in different places.
fn anywhere(count: u16) -> Result<Ports> {
    let step = usize::from(count);
    let blocks = CHOICE.len() / step;
    let begin = std::process::id() as usize % blocks;
    let others = (0..blocks).map(|index| CHOICE.start + ((begin + index) % blocks * step) as u16);
    std::iter::once(USUAL)
        .chain(others)
        .find(|first| taken(*first, count).is_none())
        .map(Ports::from)
        .with_context(|| format!("no {count} ports in a row are free on 127.0.0.1"))
}

/// The first of these ports that cannot be had.
fn taken(first: u16, count: u16) -> Option<u16> {
    (0..count)
        .map(|index| first.saturating_add(index))
        .find(|port| *port == u16::MAX || TcpListener::bind(("127.0.0.1", *port)).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_named() {
        let holder = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = holder.local_addr().unwrap().port();
        let error = Ports::choose(Some(port), 3).unwrap_err().to_string();
        assert!(error.contains(&port.to_string()), "{error}");
    }

    #[test]
    fn free_ports_are_found_in_a_row() {
        let ports = Ports::choose(None, 3).unwrap();
        assert_eq!(ports.servers, ports.auto + 5);
    }
}

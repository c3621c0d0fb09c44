//! Picks TCP ports for servers. It holds none: a server that loses a race for its port says so in
//! its log.

use std::net::TcpListener;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

/// Below the ports that Linux gives to outgoing connections, one of which would otherwise sooner
/// or later sit on a port between our choice and the server's start, or while a server is down.
const CHOICE: Range<u16> = 10_000..32_000;

/// `count` ports from `base` on, or any that are free when `base` is 0.
///
/// # Errors
/// When one of the named ports is taken.
pub(crate) fn choose(base: u16, count: usize) -> Result<Vec<u16>> {
    if base == 0 {
        choose_any(count)
    } else {
        choose_from(base, count)
    }
}

/// A port that is free, and that neither this process nor outgoing connections are given again soon.
///
/// # Errors
/// When none is free.
pub fn free_port() -> Result<u16> {
    choose_any(1)?.first().copied().context("no port")
}

fn choose_from(base: u16, count: usize) -> Result<Vec<u16>> {
    let port = |index: usize| {
        let port = u16::try_from(usize::from(base) + index).context("ports end at 65535")?;
        bind(port).with_context(|| {
            format!("port {port} of 127.0.0.1 is not free: use another --base-port")
        })?;
        Ok(port)
    };
    (0..count).map(port).collect()
}

/// Where this process's next choice starts.
static NEXT: Mutex<Option<usize>> = Mutex::new(None);

/// Each process starts somewhere else and goes on from there, so that clusters started side by
/// side do not meet: a group's last member takes its ports seconds after they were chosen.
fn choose_any(count: usize) -> Result<Vec<u16>> {
    let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    let start = next.unwrap_or_else(somewhere);
    let free = cycle_from(CHOICE, start).filter(|port| bind(*port).is_ok());
    let ports: Vec<u16> = free.take(count).collect();
    if ports.len() < count {
        bail!("fewer than {count} ports are free on 127.0.0.1");
    }
    *next = ports
        .last()
        .map(|last| usize::from(last + 1 - CHOICE.start));
    Ok(ports)
}

fn somewhere() -> usize {
    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    (clock.subsec_nanos() ^ std::process::id().rotate_left(16)) as usize
}

/// Every port of the range once.
fn cycle_from(range: Range<u16>, offset: usize) -> impl Iterator<Item = u16> {
    let (first, count) = (range.start, range.len());
    let offset = offset % count;
    (0..count).map(move |index| first + ((offset + index) % count) as u16)
}

fn bind(port: u16) -> std::io::Result<TcpListener> {
    TcpListener::bind(("127.0.0.1", port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_named() {
        let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = choose(port, 1).unwrap_err().to_string();
        assert!(
            error.contains(&port.to_string()) && error.contains("--base-port"),
            "{error}"
        );
    }

    #[test]
    fn any_free_ports_are_distinct_and_outside_the_range_of_outgoing_connections() {
        let mut ports = choose(0, 50).unwrap();
        assert!(ports.iter().all(|port| CHOICE.contains(port)));
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 50);
    }

    #[test]
    fn what_was_chosen_is_not_chosen_again_though_nothing_has_taken_it_yet() {
        let chosen: Vec<u16> = (0..20).flat_map(|_| choose(0, 15).unwrap()).collect();
        let mut distinct = chosen.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), chosen.len());
    }

    #[test]
    fn every_port_comes_once() {
        let mut ports: Vec<u16> = cycle_from(5..9, usize::MAX - 1).collect();
        ports.sort_unstable();
        assert_eq!(ports, [5, 6, 7, 8]);
    }
}

//! Addresses as they are written. Resolves no name.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;

/// Where to listen or to connect.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host (name, IPv4 or IPv6 address without brackets, or `*` for every interface) and port.
    Tcp {
        /// The host.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket's absolute path.
    Unix(PathBuf),
}

impl Address {
    /// Whether only this machine can connect to it: a Unix socket, or a loopback address.
    pub fn is_local(&self) -> bool {
        match self {
            Address::Unix(_) => true,
            Address::Tcp { host, .. } => {
                host.eq_ignore_ascii_case("localhost")
                    || host
                        .parse::<std::net::IpAddr>()
                        .is_ok_and(|address| address.to_canonical().is_loopback())
            }
        }
    }

    /// Reads `host:port`, `[v6]:port`, or a path that starts with `/`. Without a port,
    /// `default_port` is taken where there is one.
    pub fn parse(text: &str, default_port: Option<u16>) -> Result<Self, String> {
        if text.starts_with('/') {
            return Ok(Address::Unix(text.into()));
        }
        let (host, port) = split(text).ok_or_else(|| not_an_address(text))?;
        let port = match (port, default_port) {
            (Some(port), _) => port
                .parse()
                .map_err(|_| format!("`{port}` in `{text}` is not a port"))?,
            (None, Some(port)) => port,
            (None, None) => return Err(format!("`{text}` has no port; write `{text}:3306`")),
        };
        if host.is_empty() || host.contains(char::is_whitespace) {
            return Err(not_an_address(text));
        }
        Ok(Address::Tcp {
            host: host.into(),
            port,
        })
    }
}

fn not_an_address(text: &str) -> String {
    format!("`{text}` is neither `host:port` nor the absolute path of a Unix socket")
}

/// The host without brackets, and the port's text where there is one.
fn split(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        // A link-local address names its interface: `fe80::1%eth0`.
        let (number, _) = host.split_once('%').unwrap_or((host, ""));
        number.parse::<Ipv6Addr>().ok()?;
        return match rest.strip_prefix(':') {
            Some(port) => Some((host, Some(port))),
            None => rest.is_empty().then_some((host, None)),
        };
    }
    match text.split_once(':') {
        None => Some((text, None)),
        Some((host, port)) if !port.contains(':') => Some((host, Some(port))),
        Some(_) => text.parse::<Ipv6Addr>().ok().map(|_| (text, None)),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_prints() {
        let table = [
            ("127.0.0.1:3306", "127.0.0.1:3306"),
            ("db.example", "db.example:3306"),
            ("db.example:1", "db.example:1"),
            ("[::1]:4", "[::1]:4"),
            ("[::1]", "[::1]:3306"),
            ("[fe80::1%eth0]:4", "[fe80::1%eth0]:4"),
            ("::1", "[::1]:3306"),
            ("*:3306", "*:3306"),
            ("/run/m.sock", "/run/m.sock"),
        ];
        for (text, expected) in table {
            let address = Address::parse(text, Some(3306)).unwrap();
            assert_eq!(address.to_string(), expected, "{text}");
        }
    }

    #[test]
    fn refuses_the_rest() {
        for text in [
            "", ":3306", "a:b", "a:70000", "[x]:1", "[::1]x", "1:2:3", "a b:1",
        ] {
            assert!(Address::parse(text, Some(3306)).is_err(), "{text}");
        }
        assert!(Address::parse("db", None).is_err());
    }
}

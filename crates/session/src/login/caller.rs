//! Who is at the other end of a client's connection, and whether the account's row lets such a one in. A
//! server judges hosts, TLS, certificates and the peer of a Unix socket by the connection that it sees,
//! and that is Millrace's: what it lets in for that reason is judged here again, by the client's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use millrace_backend::connect::Address;
use millrace_backend::names::Resolver;
use millrace_backend::secret::Secret;
use millrace_backend::stream::Plain;
use millrace_backend::user_rows::{Matches, Requires, UserRow, UserRows, like};
use millrace_sql::Family;
use rustls::{ProtocolVersion, ServerConnection};
use tracing::debug;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::error::ClientError;
use crate::login::verifiers::LetIn;
use crate::worker::Worker;
use millrace_worker::Hosts;

/// How long a name in an account's host may take to be resolved.
const RESOLVED_WITHIN: Duration = Duration::from_secs(2);

/// A client's connection, as far as accounts ask of it.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    /// None for a Unix socket.
    pub(crate) address: Option<IpAddr>,
    /// It comes from the machine that Millrace runs on: a server sees both come from the same place.
    is_local: bool,
    /// It is a process of Millrace's own user in the operating system, on a Unix socket.
    is_same_user: bool,
    tls: Option<CallerTls>,
}

#[derive(Debug)]
struct CallerTls {
    /// As OpenSSL names it.
    cipher: Box<str>,
    /// Of a certificate that was verified.
    certificate: Option<Names>,
}

/// A certificate's names, as OpenSSL writes them on one line.
#[derive(Debug, PartialEq, Eq)]
struct Names {
    issuer: Box<str>,
    subject: Box<str>,
}

impl Caller {
    /// `peer`: none for a Unix socket.
    pub(crate) fn new(socket: &Plain, peer: Option<SocketAddr>) -> Caller {
        let own_user = rustix::process::geteuid().as_raw();
        let (is_local, is_same_user) = match socket {
            Plain::Unix(socket) => (
                true,
                socket.peer_cred().is_ok_and(|peer| peer.uid() == own_user),
            ),
            Plain::Tcp(socket) => {
                let here = socket.local_addr().ok();
                let same = here.map(|here| here.ip().to_canonical())
                    == peer.map(|peer| peer.ip().to_canonical());
                let looped = peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback());
                (same || looped, false)
            }
        };
        Caller {
            address: peer.map(|peer| peer.ip()),
            is_local,
            is_same_user,
            tls: None,
        }
    }

    /// The connection is TLS from here on.
    pub(super) fn encrypted(&mut self, tls: &ServerConnection) {
        let certificate = tls
            .peer_certificates()
            .and_then(|chain| chain.first())
            .and_then(|certificate| names(certificate));
        self.tls = Some(CallerTls {
            cipher: cipher(tls),
            certificate,
        });
    }

    /// Whether a login that a server let in is one that it would let in from this client. `password`:
    /// what it was let in with.
    ///
    /// # Errors
    /// What the client is told where it is not.
    pub(super) async fn judge(
        &self,
        user: &[u8],
        password: Option<&Secret>,
        let_in: &LetIn,
        worker: &Worker,
    ) -> Result<(), ClientError> {
        let (hosts, resolver) = (worker.options().hosts, &worker.shared.network.resolver);
        let family = worker.cluster.family();
        let by_socket = self.is_stranger_at(&let_in.server);
        let Some(rows) = &let_in.rows else {
            return match by_socket && let_in.unproven {
                true => Err(self.by_socket(family, user)),
                false => Ok(()),
            };
        };
        if let_in.current.is_empty() {
            // Any of them may be the one; for the client's address there has to be one.
            let met = |row: &UserRow| !(by_socket && row.by_socket) && self.has(&row.requires);
            let checked = hosts == Hosts::Check && (!self.is_local || let_in.server.is_socket());
            let is_for = match self.address.filter(|_| checked) {
                Some(address) => first_for(rows, address, resolver).await.row().is_some(),
                None => true,
            };
            return match is_for && rows.iter().all(met) {
                true => Ok(()),
                false => Err(self.denied(family, user, password, "")),
            };
        }
        let Some(row) = rows.named(&let_in.current) else {
            // It was dropped, or renamed, in between.
            debug!(
                user = ?String::from_utf8_lossy(user),
                current = ?String::from_utf8_lossy(&let_in.current),
                "the account's row was not found"
            );
            return Err(self.denied(family, user, password, ""));
        };
        if by_socket && row.by_socket && !proves(row, password) {
            return Err(self.by_socket(family, user));
        }
        let is_met = match &let_in.required {
            Some(of_proxied) => of_proxied.as_ref().is_some_and(|asked| self.has(asked)),
            None => self.has(&row.requires),
        };
        if !is_met {
            return Err(self.denied(family, user, password, ""));
        }
        let Some(address) = self.address else {
            return Ok(());
        };
        // From the same place a server sees the same address; but not over a socket of its own.
        let is_seen_alike = self.is_local && !let_in.server.is_socket();
        if hosts == Hosts::Ignore || is_seen_alike {
            return Ok(());
        }
        let first = first_for(rows, address, resolver).await.row();
        if !first.is_some_and(|first| std::ptr::eq(first, row)) {
            let text = format!(
                " (Millrace: the servers let in '{}', which is not the account for the client's address; \
                 see [auth] hosts)",
                String::from_utf8_lossy(&let_in.current)
            );
            return Err(self.denied(family, user, password, &text));
        }
        let is_proxy = let_in.required.is_some();
        if !has_same_proxies(rows, row, is_proxy, address, &let_in.server, resolver).await {
            let why = "Millrace: which account's privileges it has as a proxy (GRANT PROXY), the servers decide by \
                       Millrace's address, not by the client's; see [auth] hosts";
            let text = format!(" ({why})");
            return Err(self.denied(family, user, password, &text));
        }
        Ok(())
    }

    /// Whether what a server says of the account is said of the client's own row, which may let it in. Servers look at
    /// hosts, TLS and certificates before they say that an account is locked, that its password has expired, or that
    /// a database is not for it.
    pub(super) async fn may_hear(
        &self,
        rows: &UserRows,
        server: &Address,
        worker: &Worker,
    ) -> bool {
        let (hosts, resolver) = (worker.options().hosts, &worker.shared.network.resolver);
        let Some(address) = self.address.filter(|_| hosts == Hosts::Check) else {
            return rows.iter().any(|row| self.has(&row.requires));
        };
        let first = first_for(rows, address, resolver).await.row();
        let Some(first) = first.filter(|row| self.has(&row.requires)) else {
            return false;
        };
        if self.is_local && !server.is_socket() {
            return true;
        }
        match taken(rows, server, resolver).await {
            First::Row(taken) => std::ptr::eq(taken, first),
            First::Nobody | First::Unknown => rows.iter().nth(1).is_none(),
        }
    }

    /// Whether a server would count a wrong password of this client for an account that is not the client's: the one
    /// for Millrace's address, which so many of them lock.
    pub(super) async fn would_lock_another(
        &self,
        rows: &UserRows,
        server: &Address,
        worker: &Worker,
    ) -> bool {
        if !rows.iter().any(|row| row.counts_failures) {
            return false;
        }
        let (hosts, resolver) = (worker.options().hosts, &worker.shared.network.resolver);
        let is_seen_alike = self.is_local && !server.is_socket();
        let Some(address) = self
            .address
            .filter(|_| hosts == Hosts::Check && !is_seen_alike)
        else {
            return false;
        };
        match taken(rows, server, resolver).await {
            First::Row(taken) => {
                let first = first_for(rows, address, resolver).await.row();
                taken.counts_failures && !first.is_some_and(|first| std::ptr::eq(first, taken))
            }
            First::Nobody => false,
            // It may be any of them.
            First::Unknown => rows.iter().nth(1).is_some(),
        }
    }

    /// Whether the client's account is of mysql_native_password alone.
    pub(super) async fn is_native(&self, rows: &UserRows, worker: &Worker) -> bool {
        match self.row(rows, worker).await {
            Some(row) => row.is_native,
            None => rows.are_native(),
        }
    }

    /// Whether it proves itself by what Millrace cannot learn, as far as that is known.
    pub(super) async fn is_relayed(&self, rows: &UserRows, worker: &Worker) -> bool {
        match self.row(rows, worker).await {
            Some(row) => row.is_relayed,
            None => rows.are_relayed(),
        }
    }

    /// The row that a server would take for the client; none where hosts are not compared, or it takes none.
    async fn row<'a>(&self, rows: &'a UserRows, worker: &Worker) -> Option<&'a UserRow> {
        let (hosts, resolver) = (worker.options().hosts, &worker.shared.network.resolver);
        let address = self.address.filter(|_| hosts == Hosts::Check)?;
        first_for(rows, address, resolver).await.row()
    }

    /// It is not the process that a server at a socket would take it for.
    pub(super) fn is_stranger_at(&self, server: &Address) -> bool {
        server.is_socket() && !self.is_same_user
    }

    fn has(&self, requires: &Requires) -> bool {
        let certificate = self.tls.as_ref().and_then(|tls| tls.certificate.as_ref());
        match requires {
            Requires::Nothing => true,
            Requires::Tls => self.tls.is_some(),
            Requires::Certificate => certificate.is_some(),
            Requires::Exactly {
                certificate: wanted,
                cipher,
                issuer,
                subject,
            } => {
                let is = |wanted: &str, has: &str| wanted.is_empty() || wanted == has;
                let names = match certificate {
                    Some(names) => is(issuer, &names.issuer) && is(subject, &names.subject),
                    None => !wanted,
                };
                self.tls.as_ref().is_some_and(|tls| is(cipher, &tls.cipher)) && names
            }
        }
    }

    /// What a server says to whom it does not let in. It tells whether there was a password.
    pub(super) fn denied(
        &self,
        family: Family,
        user: &[u8],
        password: Option<&Secret>,
        why: &str,
    ) -> ClientError {
        let host = match self.address {
            Some(address) => address.to_canonical().to_string(),
            None => "localhost".to_owned(),
        };
        let user = shown_name(family, user);
        let used = match password.is_some_and(Secret::is_empty) {
            true => "NO",
            false => "YES",
        };
        let text =
            format!("Access denied for user '{user}'@'{host}' (using password: {used}){why}");
        ClientError::client(1045, b"28000", text)
    }

    /// What a server says to who comes over the network to an account of a socket.
    fn by_socket(&self, family: Family, user: &[u8]) -> ClientError {
        let host = match self.address {
            Some(address) => address.to_canonical().to_string(),
            None => "localhost".to_owned(),
        };
        let user = shown_name(family, user);
        let text = format!("Access denied for user '{user}'@'{host}'");
        ClientError::client(1698, b"28000", text)
    }
}

/// A name as far as the server's errors show it: 48 bytes on MySQL, 128 characters on MariaDB (observed).
fn shown_name(family: Family, user: &[u8]) -> String {
    let user = String::from_utf8_lossy(user);
    let end = match family {
        Family::MySql if user.len() > 48 => {
            let mut ends = (0..=48).rev();
            ends.find(|at| user.is_char_boundary(*at)).unwrap_or(0)
        }
        Family::MySql => user.len(),
        Family::MariaDb => user
            .char_indices()
            .nth(128)
            .map_or(user.len(), |(at, _)| at),
    };
    user[..end].to_owned()
}

/// The password by itself opens the account, whoever is at the socket.
fn proves(row: &UserRow, password: Option<&Secret>) -> bool {
    password.is_some_and(|password| row.native_hashes.contains(&password.native_hash()))
}

/// The row that a server takes for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First<'a> {
    Row(&'a UserRow),
    /// None of them is for the client.
    Nobody,
    /// It depends on the client's name, or on an order that cannot be known.
    Unknown,
}

impl<'a> First<'a> {
    fn row(self) -> Option<&'a UserRow> {
        match self {
            First::Row(row) => Some(row),
            First::Nobody | First::Unknown => None,
        }
    }
}

/// The row by which a client of that address would be let in.
async fn first_for<'a>(rows: &'a UserRows, address: IpAddr, resolver: &Resolver) -> First<'a> {
    for tied in rows.tied() {
        let mut first = First::Nobody;
        for row in tied {
            match (is_for(rows, &row.host, address, resolver).await, first) {
                (Some(false), _) => {}
                (Some(true), First::Nobody) => first = First::Row(row),
                _ => return First::Unknown,
            }
        }
        if first != First::Nobody {
            return first;
        }
    }
    First::Nobody
}

/// The row that a server takes Millrace's own connection for.
async fn taken<'a>(rows: &'a UserRows, server: &Address, resolver: &Resolver) -> First<'a> {
    if let Some(own) = own_address(server) {
        return first_for(rows, own, resolver).await;
    }
    let first = rows
        .iter()
        .find(|row| is_for_sockets(row) && server.is_socket());
    first.map_or(First::Nobody, First::Row)
}

/// Whether the rights to be a proxy that count for a client of that address are those by which the server chose for
/// Millrace's. `is_proxy`: it is one there.
async fn has_same_proxies(
    rows: &UserRows,
    row: &UserRow,
    is_proxy: bool,
    address: IpAddr,
    server: &Address,
    resolver: &Resolver,
) -> bool {
    let Some(proxies) = rows.proxies() else {
        return !is_proxy;
    };
    if !is_proxy && !row.is_relayed && !proxies.by_password() {
        return true;
    }
    let own = own_address(server);
    for right in proxies.rights() {
        let (mut here, mut there) = (Some(true), Some(true));
        for pattern in [&right.host, &right.proxied_host] {
            let is_here = match own {
                Some(own) => is_for(rows, pattern, own, resolver).await,
                None => Some(is_sockets(pattern)),
            };
            here = both(here, is_here);
            there = both(there, is_for(rows, pattern, address, resolver).await);
        }
        if here.is_none() || here != there {
            return false;
        }
    }
    true
}

/// Whether both are so; none where that is not known.
fn both(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

/// Whether a host pattern of an account is for an address. None where only the server knows.
async fn is_for(
    rows: &UserRows,
    pattern: &str,
    address: IpAddr,
    resolver: &Resolver,
) -> Option<bool> {
    match rows.matches(pattern, address) {
        Matches::Yes => Some(true),
        Matches::No => Some(false),
        Matches::IfNamed => {
            let found = resolver.look_up(pattern, RESOLVED_WITHIN).await;
            let is_it = |found: &IpAddr| found.to_canonical() == address.to_canonical();
            Some(found.iter().any(is_it))
        }
        Matches::Unknown => None,
    }
}

/// The address from which Millrace reaches a server, where nothing between them changes it.
fn own_address(server: &Address) -> Option<IpAddr> {
    let server = server.at.or_else(|| server.host.parse().ok())?;
    let any: IpAddr = match server {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // It sends nothing: the kernel is asked for the way.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((server, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// To a server, who comes over its socket is at `localhost`.
fn is_for_sockets(row: &UserRow) -> bool {
    is_sockets(&row.host)
}

fn is_sockets(pattern: &str) -> bool {
    pattern.is_empty() || like(pattern.as_bytes(), b"localhost")
}

/// OpenSSL's short names of what certificates' names are made of.
const SHORT_NAMES: [(&str, &str); 14] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.42", "GN"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

fn names(certificate: &[u8]) -> Option<Names> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Some(Names {
        issuer: one_line(certificate.issuer()),
        subject: one_line(certificate.subject()),
    })
}

/// `/C=SE/O=Example/CN=client`, as OpenSSL's X509_NAME_oneline writes it.
fn one_line(name: &x509_parser::x509::X509Name<'_>) -> Box<str> {
    let mut line = String::new();
    for attribute in name.iter_attributes() {
        let kind = attribute.attr_type().to_id_string();
        let short = SHORT_NAMES.iter().find(|(id, _)| *id == kind);
        let short = short.map_or(&*kind, |(_, short)| short);
        let value = attribute.as_slice();
        line.push('/');
        line.push_str(short);
        line.push('=');
        for byte in value {
            match byte {
                b' '..=b'~' => line.push(char::from(*byte)),
                other => line.push_str(&format!("\\x{other:02X}")),
            }
        }
    }
    line.into()
}

/// `TLS_AES_256_GCM_SHA384`, `ECDHE-RSA-AES256-GCM-SHA384`.
fn cipher(tls: &ServerConnection) -> Box<str> {
    let suite = tls.negotiated_cipher_suite();
    let name = suite.map(|suite| format!("{:?}", suite.suite()));
    let name = name.unwrap_or_default();
    if tls.protocol_version() == Some(ProtocolVersion::TLSv1_3) {
        return name.replacen("TLS13_", "TLS_", 1).into();
    }
    let plain = name.trim_start_matches("TLS_").replace("_WITH_", "_");
    let plain = plain
        .replace("AES_", "AES")
        .replace("_POLY1305_SHA256", "_POLY1305");
    plain.replace('_', "-").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_as_far_as_servers_show_them() {
        for (family, name, length) in [
            (Family::MySql, "y".repeat(48), 48),
            (Family::MySql, "y".repeat(4000), 48),
            (Family::MySql, "ж".repeat(40), 48),
            (Family::MySql, format!("y{}", "ж".repeat(40)), 47),
            (Family::MariaDb, "y".repeat(128), 128),
            (Family::MariaDb, "y".repeat(4000), 128),
            (Family::MariaDb, "ж".repeat(200), 256),
        ] {
            let shown = shown_name(family, name.as_bytes());
            assert_eq!(shown.len(), length, "{family:?} {name}");
            assert!(name.starts_with(&shown));
        }
    }
}

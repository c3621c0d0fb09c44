//! What the servers' account tables (`mysql.user`, `mysql.global_priv`) ask of who logs in: the host,
//! TLS and certificate, and whether a Unix socket's peer is proof enough. A server judges these by the
//! connection that it sees, which is Millrace's; so they are judged here by the client's.

use std::net::IpAddr;
use std::sync::Arc;

use millrace_sql::Family;

use crate::conn::Row;

/// A row of the account table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserRow {
    /// The name; empty for the anonymous account.
    pub user: Box<[u8]>,
    /// The pattern of the hosts that it may come from.
    pub host: Box<str>,
    /// `auth_socket` or `unix_socket` is one of its plugins: the peer of a Unix socket is let in by its
    /// user in the operating system.
    pub by_socket: bool,
    /// Clients prove themselves by other means than a password that Millrace can learn: their logins
    /// are handed to and fro.
    pub is_relayed: bool,
    /// `SHA1(SHA1(password))`, where mysql_native_password is its plugin.
    pub native_hash: Option<[u8; 20]>,
    /// What it asks of the connection.
    pub requires: Requires,
}

/// `REQUIRE …` of an account.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Requires {
    /// `NONE`.
    #[default]
    Nothing,
    /// `SSL`.
    Tls,
    /// `X509`: a valid certificate.
    Certificate,
    /// What is not empty must be so; names as OpenSSL writes them on one line, `/C=SE/CN=client`.
    Exactly {
        /// `CIPHER`.
        cipher: Box<str>,
        /// `ISSUER`.
        issuer: Box<str>,
        /// `SUBJECT`.
        subject: Box<str>,
    },
}

/// The rows that a name may log in by: its own and the anonymous account's. In the order in which the
/// server tries them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserRows {
    rows: Arc<[UserRow]>,
    /// The server knows clients by their hosts' names as well (`skip_name_resolve` is off).
    resolves: bool,
}

/// The plugins whose passwords are learnt. A socket's are nothing to relay.
const LEARNT: &str = "'mysql_native_password','caching_sha2_password','sha256_password','ed25519',\
    'authentication_ldap_simple','auth_socket','unix_socket'";

/// The question for the rows of a name.
pub(crate) fn question(family: Family, user: &[u8]) -> String {
    use std::fmt::Write;
    let name = user.iter().fold(String::from("x'"), |mut hex, byte| {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    }) + "'";
    match family {
        Family::MySql => format!(
            "SELECT @@skip_name_resolve,User,Host,plugin='auth_socket',\
             JSON_EXTRACT(User_attributes,'$.multi_factor_authentication') IS NOT NULL OR \
             plugin NOT IN ({LEARNT}),\
             IF(plugin='mysql_native_password',authentication_string,''),\
             ssl_type,ssl_cipher,x509_issuer,x509_subject \
             FROM mysql.user WHERE User=CONVERT({name} USING utf8mb4) OR User=''"
        ),
        // -1, 0: nothing, 1: SSL, 2: X509, 3: what is given.
        Family::MariaDb => format!(
            "SELECT @@skip_name_resolve,User,Host,JSON_SEARCH(Priv,'one','unix_socket') IS NOT NULL,\
             IFNULL(JSON_VALUE(Priv,'$.plugin'),'') NOT IN ('',{LEARNT}) AND \
             IFNULL(JSON_VALUE(Priv,'$.auth_or[0].plugin'),'-') NOT IN ({LEARNT}) AND \
             IFNULL(JSON_VALUE(Priv,'$.auth_or[1].plugin'),'-') NOT IN ({LEARNT}) AND \
             IFNULL(JSON_VALUE(Priv,'$.auth_or[2].plugin'),'-') NOT IN ({LEARNT}),\
             IF(IFNULL(JSON_VALUE(Priv,'$.plugin'),'') IN ('','mysql_native_password'),\
             JSON_VALUE(Priv,'$.authentication_string'),''),\
             ELT(1+JSON_VALUE(Priv,'$.ssl_type'),'','ANY','X509','SPECIFIED'),\
             JSON_VALUE(Priv,'$.ssl_cipher'),JSON_VALUE(Priv,'$.x509_issuer'),\
             JSON_VALUE(Priv,'$.x509_subject') \
             FROM mysql.global_priv WHERE (User=CONVERT({name} USING utf8mb4) OR User='') \
             AND IFNULL(JSON_VALUE(Priv,'$.is_role'),0)=0"
        ),
    }
}

impl UserRows {
    /// Reads the answer to [`question`].
    pub(crate) fn read(rows: Vec<Row>) -> UserRows {
        let resolves = rows.first().is_some_and(|row| {
            row.first()
                .is_some_and(|cell| cell.as_deref() == Some(b"0"))
        });
        let mut rows: Vec<UserRow> = rows.into_iter().map(user_row).collect();
        // Stable: what the server does with equals is its own affair.
        rows.sort_by_key(|row| {
            std::cmp::Reverse((specific(&row.host), usize::from(!row.user.is_empty())))
        });
        UserRows {
            rows: rows.into(),
            resolves,
        }
    }

    /// Whether names in hosts count.
    pub fn resolves(&self) -> bool {
        self.resolves
    }

    /// The row that `CURRENT_USER()` names.
    pub fn named(&self, current: &[u8]) -> Option<&UserRow> {
        self.rows.iter().find(|row| {
            let user = current.strip_prefix(&*row.user);
            user.and_then(|rest| rest.strip_prefix(b"@")) == Some(row.host.as_bytes())
        })
    }

    /// Whether the name has only accounts of mysql_native_password, and their hashes are known.
    pub fn are_native(&self, user: &[u8]) -> bool {
        let mut own = self.rows.iter().filter(|row| *row.user == *user).peekable();
        own.peek().is_some() && own.all(|row| row.native_hash.is_some())
    }

    /// Whether no row of the name is one whose password can be learnt.
    pub fn are_relayed(&self, user: &[u8]) -> bool {
        let mut own = self.rows.iter().filter(|row| *row.user == *user).peekable();
        own.peek().is_some() && own.all(|row| row.is_relayed)
    }

    /// The rows in the order in which the server tries them.
    pub fn iter(&self) -> impl Iterator<Item = &UserRow> {
        self.rows.iter()
    }
}

fn user_row(row: Row) -> UserRow {
    let mut cells = row.into_iter().skip(1);
    let mut next = || cells.next().flatten().unwrap_or_default();
    let user = next().into();
    let host = String::from_utf8_lossy(&next()).to_lowercase().into();
    let by_socket = next() == b"1";
    let is_relayed = next() == b"1";
    let native_hash = native_hash(&next());
    let kind = next();
    let mut word = || String::from_utf8_lossy(&next()).into();
    let (cipher, issuer, subject) = (word(), word(), word());
    let requires = match &*kind {
        b"ANY" => Requires::Tls,
        b"X509" => Requires::Certificate,
        b"SPECIFIED" => Requires::Exactly {
            cipher,
            issuer,
            subject,
        },
        _ => Requires::Nothing,
    };
    UserRow {
        user,
        host,
        by_socket,
        is_relayed,
        native_hash,
        requires,
    }
}

/// `*` and forty hexadecimal digits.
fn native_hash(text: &[u8]) -> Option<[u8; 20]> {
    let digits = text
        .strip_prefix(b"*")
        .filter(|digits| digits.len() == 40)?;
    let mut hash = [0; 20];
    for (byte, digits) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        let digits = std::str::from_utf8(digits).ok()?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(hash)
}

/// How early the server tries a pattern: what has its first wildcard later is more specific, what has
/// none the most (MySQL manual, "Access Control, Stage 1").
fn specific(pattern: &str) -> usize {
    match pattern.find(['%', '_']) {
        Some(at) => at,
        None if pattern.is_empty() => 0,
        None => usize::MAX,
    }
}

/// What a pattern says of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matches {
    Yes,
    No,
    /// It is a name: whether the address has it, a resolver says.
    IfNamed,
}

/// Whether a host pattern of an account is for an address.
pub fn matches(pattern: &str, address: IpAddr) -> Matches {
    let address = address.to_canonical();
    let verdict = |yes| if yes { Matches::Yes } else { Matches::No };
    if pattern.is_empty() || pattern == "%" {
        return Matches::Yes;
    }
    if let Some((network, mask)) = pattern.split_once('/') {
        return verdict(in_network(network, mask, address));
    }
    if let Ok(one) = pattern.parse::<IpAddr>() {
        return verdict(one.to_canonical() == address);
    }
    if like(pattern.as_bytes(), address.to_string().as_bytes()) {
        return Matches::Yes;
    }
    // A pattern of an address has no letters, or is IPv6's.
    let is_name = pattern
        .bytes()
        .any(|byte| byte.is_ascii_alphabetic() && !pattern.contains(':'));
    if is_name {
        Matches::IfNamed
    } else {
        Matches::No
    }
}

/// `10.0.0.0/255.255.255.0`, and `10.0.0.0/24` as MySQL takes it.
fn in_network(network: &str, mask: &str, address: IpAddr) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let Ok(network) = network.parse::<IpAddr>() else {
        return false;
    };
    let ((network, width), (address, width_of)) = (bits(network), bits(address));
    let all = u128::MAX >> (128 - width);
    let mask = match (mask.parse::<u32>(), mask.parse::<IpAddr>()) {
        (Ok(ones), _) if ones <= width => {
            let zeros = width - ones;
            if zeros == 128 {
                0
            } else {
                all >> zeros << zeros
            }
        }
        (_, Ok(mask)) => bits(mask).0,
        _ => return false,
    };
    width == width_of && address & mask == network
}

/// `%` is any number of characters, `_` one, `\` makes the next one plain; ASCII case does not matter.
pub fn like(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'%', rest @ ..] => (0..=text.len()).any(|at| like(rest, &text[at..])),
        [b'_', rest @ ..] => !text.is_empty() && like(rest, &text[1..]),
        [b'\\', plain, rest @ ..] | [plain, rest @ ..] => {
            text.first()
                .is_some_and(|byte| byte.eq_ignore_ascii_case(plain))
                && like(rest, &text[1..])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(cells: [&str; 9]) -> Row {
        let skip_name_resolve = Some(b"0".to_vec());
        let cells = cells.map(|cell| Some(cell.as_bytes().to_vec()));
        [skip_name_resolve].into_iter().chain(cells).collect()
    }

    #[test]
    fn rows_come_in_the_order_of_the_server() {
        let row = |user, host| cells([user, host, "0", "0", "", "", "", "", ""]);
        let rows = UserRows::read(vec![
            row("app", "%"),
            row("", "localhost"),
            row("app", "10.0.%"),
            row("app", "10.0.0.%"),
            row("app", "localhost"),
        ]);
        let order: Vec<_> = rows.iter().map(|row| (&*row.user, &*row.host)).collect();
        assert_eq!(
            order,
            [
                (&b"app"[..], "localhost"),
                (b"", "localhost"),
                (b"app", "10.0.0.%"),
                (b"app", "10.0.%"),
                (b"app", "%"),
            ]
        );
        assert_eq!(
            rows.named(b"@localhost").map(|row| &*row.user),
            Some(&b""[..])
        );
        assert_eq!(
            rows.named(b"app@10.0.%").map(|row| &*row.host),
            Some("10.0.%")
        );
        assert_eq!(rows.named(b"app@db"), None);
    }

    #[test]
    fn a_row_is_read() {
        let hash = "*6BB4837EB74329105EE4568DDA7DC67ED2CA2AD9";
        let rows = UserRows::read(vec![
            cells(["a", "H", "1", "1", hash, "SPECIFIED", "c", "/CN=i", "/CN=s"]),
            cells(["b", "%", "0", "0", "", "X509", "", "", ""]),
        ]);
        let rows: Vec<_> = rows.iter().collect();
        assert!(rows[0].by_socket && rows[0].is_relayed && rows[0].native_hash.is_some());
        assert_eq!(
            rows[0].requires,
            Requires::Exactly {
                cipher: "c".into(),
                issuer: "/CN=i".into(),
                subject: "/CN=s".into()
            }
        );
        assert_eq!(
            (&*rows[0].host, &rows[1].requires),
            ("h", &Requires::Certificate)
        );
    }

    #[test]
    fn patterns_are_for_addresses_as_the_servers_say() {
        let matches =
            |pattern, address: &str| matches(pattern, address.parse().expect("it is an address"));
        for (pattern, address) in [
            ("%", "10.1.2.3"),
            ("", "10.1.2.3"),
            ("10.1.2.3", "10.1.2.3"),
            ("10.1.%", "10.1.2.3"),
            ("10.1.2._", "10.1.2.3"),
            ("10.1.0.0/255.255.0.0", "10.1.2.3"),
            ("10.1.0.0/16", "10.1.2.3"),
            ("0.0.0.0/0", "10.1.2.3"),
            ("::1", "::1"),
            ("10.1.2.3", "::ffff:10.1.2.3"),
            ("fe80:%", "fe80::1"),
        ] {
            assert_eq!(
                matches(pattern, address),
                Matches::Yes,
                "{pattern} {address}"
            );
        }
        for (pattern, address) in [
            ("10.1.2.4", "10.1.2.3"),
            ("10.2.%", "10.1.2.3"),
            ("10.2.0.0/16", "10.1.2.3"),
            ("10.1.2.0/33", "10.1.2.3"),
            ("::1", "10.1.2.3"),
        ] {
            assert_eq!(
                matches(pattern, address),
                Matches::No,
                "{pattern} {address}"
            );
        }
        for pattern in ["localhost", "web1.example", "%.example"] {
            assert_eq!(matches(pattern, "10.1.2.3"), Matches::IfNamed, "{pattern}");
        }
    }
}

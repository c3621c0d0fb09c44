//! What the servers' account tables (`mysql.user`, `mysql.global_priv`) ask of who logs in: the host,
//! TLS and certificate, and whether a Unix socket's peer is proof enough. A server judges these by the
//! connection that it sees, which is Millrace's; so they are judged here by the client's.

use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use millrace_protocol::auth::Plugin;
use millrace_sql::Family;

use crate::conn::{Conn, Row};
use crate::error::BackendError;

mod hosts;
mod sql;

pub use hosts::{Matches, like};
use hosts::{Place, place};
pub(crate) use sql::{charset_question, is_in_utf8, proxies_question, question};

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
    /// mysql_native_password is the only plugin by which clients prove themselves.
    pub is_native: bool,
    /// `SHA1(SHA1(password))` of each password of mysql_native_password. MariaDB's accounts may have several.
    pub native_hashes: Vec<[u8; 20]>,
    /// What its plugins keep of passwords of which clients keep no more; see [`Kept`]. MariaDB's only.
    pub kept: Vec<Kept>,
    /// Another one after its password was changed. It tells nothing else.
    pub passwords: Box<[u8]>,
    /// Its password before opens it as well (MySQL's RETAIN CURRENT PASSWORD).
    pub has_old: bool,
    /// Wrong passwords are counted, and so many of them lock it (MySQL's `FAILED_LOGIN_ATTEMPTS`, MariaDB's
    /// `max_password_errors`).
    pub counts_failures: bool,
    /// What it asks of the connection.
    pub requires: Requires,
}

/// What a plugin of MariaDB's keeps of a password, as its clients know it: by that a login's OK can vouch for a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// `ed25519`: the public key.
    Ed25519([u8; 32]),
    /// `parsec`: how the key is derived (algorithm, iterations, salt), and the public key.
    Parsec(Box<[u8]>),
}

impl Kept {
    /// Reads `plugin authentication_string`.
    fn read(cell: &[u8]) -> Option<Kept> {
        let text = std::str::from_utf8(cell).ok()?;
        let decoded = |text: &str| STANDARD_NO_PAD.decode(text).ok();
        match text.split_once(' ')? {
            ("ed25519", key) => Some(Kept::Ed25519(decoded(key)?.try_into().ok()?)),
            ("parsec", kept) => {
                let (how, rest) = kept.split_once(':')?;
                let (salt, key) = rest.split_once(':')?;
                let [algorithm, iterations] = how.as_bytes().try_into().ok()?;
                // 2 to the power of 10 and this one, a digit.
                let iterations = char::from(iterations).to_digit(36)? as u8;
                let key: [u8; 32] = decoded(key)?.try_into().ok()?;
                Some(Kept::Parsec(
                    [&[algorithm, iterations][..], &decoded(salt)?, &key]
                        .concat()
                        .into(),
                ))
            }
            _ => None,
        }
    }

    /// The plugin by its name for clients.
    pub fn plugin(&self) -> Plugin {
        match self {
            Kept::Ed25519(_) => Plugin::Ed25519,
            Kept::Parsec(_) => Plugin::Other("parsec".to_owned()),
        }
    }

    /// What the client hashes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Kept::Ed25519(key) => key,
            Kept::Parsec(bytes) => bytes,
        }
    }
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
        /// A valid certificate is asked for as well. MariaDB asks for none where `CIPHER` is all.
        certificate: bool,
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserRows {
    family: Family,
    rows: Arc<[UserRow]>,
    /// The name, in UTF-8; empty where there is no row at all.
    name: Arc<[u8]>,
    /// The server knows clients by their hosts' names as well (`skip_name_resolve` is off).
    resolves: bool,
    proxies: Option<Proxies>,
}

/// What of `GRANT PROXY` counts for a name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Proxies {
    rights: Arc<[ProxyRight]>,
    /// MySQL's `check_proxy_users`: an account may be a proxy without a plugin that says whose.
    by_password: bool,
}

/// A row of `mysql.proxies_priv`. Servers compare the hosts of both accounts with the client's address (observed).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyRight {
    /// The pattern of the account that may be a proxy.
    pub host: Box<str>,
    /// That of the account whose privileges it gets.
    pub proxied_host: Box<str>,
}

impl Proxies {
    /// The rights of the name, and of anybody's.
    pub fn rights(&self) -> &[ProxyRight] {
        &self.rights
    }

    /// Whether any account may be a proxy, not only those of plugins that say whose.
    pub fn by_password(&self) -> bool {
        self.by_password
    }

    /// Reads the answer to [`proxies_question`].
    pub(crate) fn read(rows: Vec<Row>) -> Proxies {
        let by_password = rows.first().and_then(|row| row.first()?.as_deref()) == Some(b"1");
        let right = |row: Row| {
            let mut cells = row.into_iter().skip(1);
            let mut next = || {
                let cell = cells.next().flatten().unwrap_or_default();
                String::from_utf8_lossy(&cell).to_lowercase().into()
            };
            ProxyRight {
                host: next(),
                proxied_host: next(),
            }
        };
        Proxies {
            by_password,
            rights: rows.into_iter().map(right).collect(),
        }
    }
}

/// An account's name as a client writes it.
#[derive(Debug, Clone, Copy)]
pub struct Name<'a> {
    /// Its bytes, in the character set of `collation`.
    pub user: &'a [u8],
    /// Of the client's login, which says the character set.
    pub collation: u8,
}

/// Asks by which row a connection was let in. A proxy user's privileges are another account's, which is what
/// `CURRENT_USER()` names then; `@@proxy_user` names the row. In hexadecimal: the answer is in the client's
/// character set, which may lack letters of the name.
pub(crate) const WHO: &str =
    "SELECT HEX(CONVERT(CURRENT_USER() USING utf8mb4)),HEX(CONVERT(@@proxy_user USING utf8mb4))";

/// The same where `@` is a letter, as in swe7.
const WHO_BUT_PROXIES: &str = "SELECT HEX(CONVERT(CURRENT_USER() USING utf8mb4))";

/// By which row a connection was let in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Who {
    /// `user@host`. Empty where it cannot be asked.
    pub row: Box<[u8]>,
    /// Of a proxy user, the account whose privileges it has, `user@host`.
    pub proxied: Option<Box<[u8]>>,
}

impl Who {
    /// Reads the answer to [`WHO`].
    pub(crate) fn read(rows: Vec<Row>) -> Who {
        let mut cells = rows.into_iter().flatten();
        let mut next = || cells.next().flatten().and_then(|cell| from_hex(&cell));
        let current: Box<[u8]> = next().unwrap_or_default().into();
        match next() {
            Some(proxy) if !proxy.is_empty() => Who {
                row: unquoted(&proxy).unwrap_or(proxy).into(),
                proxied: Some(current),
            },
            _ => Who {
                row: current,
                proxied: None,
            },
        }
    }
}

/// Asks a connection by which row it was let in.
///
/// # Errors
/// When the connection breaks or the server refuses the question.
pub async fn by_which_row(conn: &mut Conn) -> Result<Who, BackendError> {
    match conn.query(WHO).await {
        Ok(rows) => Ok(Who::read(rows)),
        // The password has expired, or a device is not registered: nothing can be asked before that is done.
        Err(BackendError::Server(error)) if matches!(error.code, 1820 | 4055) => Ok(Who::default()),
        Err(BackendError::Server(error)) if error.code == 1064 => {
            Ok(Who::read(conn.query(WHO_BUT_PROXIES).await?))
        }
        Err(error) => Err(error),
    }
}

/// The name of `user@host`. A host has no `@`.
pub fn user_of(row: &[u8]) -> &[u8] {
    let at = row.iter().rposition(|byte| *byte == b'@');
    &row[..at.unwrap_or(row.len())]
}

fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let pairs = digits.chunks_exact(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// `user@host` of `'user'@'host'`. A host has no quotes.
fn unquoted(proxy: &[u8]) -> Option<Vec<u8>> {
    let inner = proxy.strip_prefix(b"'")?.strip_suffix(b"'")?;
    let middle = inner.windows(3).rposition(|three| three == b"'@'")?;
    let (user, host) = (&inner[..middle], &inner[middle + 3..]);
    Some([user, b"@", host].concat())
}

impl UserRows {
    /// Reads the answer to [`question`].
    pub(crate) fn read(family: Family, rows: Vec<Row>) -> UserRows {
        let resolves = rows.first().is_some_and(|row| {
            row.first()
                .is_some_and(|cell| cell.as_deref() == Some(b"0"))
        });
        let name = rows.first().and_then(|row| row.get(1)?.as_deref());
        let name = name.unwrap_or_default().into();
        let mut rows: Vec<UserRow> = rows.into_iter().map(user_row).collect();
        rows.sort_by_cached_key(|row| row.place(family));
        UserRows {
            family,
            rows: rows.into(),
            name,
            resolves,
            proxies: None,
        }
    }

    /// The same with what counts of `GRANT PROXY`; none where that cannot be read.
    pub(crate) fn with_proxies(self, proxies: Option<Proxies>) -> UserRows {
        UserRows { proxies, ..self }
    }

    /// What counts of `GRANT PROXY`; none where that cannot be read.
    pub fn proxies(&self) -> Option<&Proxies> {
        self.proxies.as_ref()
    }

    /// Whether a host of an account is for a client's address.
    pub fn matches(&self, host: &str, address: IpAddr) -> Matches {
        hosts::matches(self.family, host, address, self.resolves)
    }

    /// The row that a [`Who`] names.
    pub fn named(&self, current: &[u8]) -> Option<&UserRow> {
        self.rows.iter().find(|row| {
            let user = current.strip_prefix(&*row.user);
            user.and_then(|rest| rest.strip_prefix(b"@")) == Some(row.host.as_bytes())
        })
    }

    /// The name's own rows, without the anonymous account's.
    pub fn own(&self) -> impl Iterator<Item = &UserRow> {
        self.rows.iter().filter(|row| row.user[..] == self.name[..])
    }

    /// Whether the name has only accounts of mysql_native_password.
    pub fn are_native(&self) -> bool {
        self.own().next().is_some() && self.own().all(|row| row.is_native)
    }

    /// Whether no row of the name, or of the anonymous account where it has none, is one whose password can be learnt.
    pub fn are_relayed(&self) -> bool {
        match self.own().next() {
            Some(_) => self.own().all(|row| row.is_relayed),
            None => !self.rows.is_empty() && self.rows.iter().all(|row| row.is_relayed),
        }
    }

    /// The rows in the order in which the server tries them. Rows of one slice stand in an order that cannot be known:
    /// on MySQL it changes when the server reads its tables again.
    pub fn tied(&self) -> impl Iterator<Item = &[UserRow]> {
        let is_tied =
            |one: &UserRow, other: &UserRow| one.place(self.family) == other.place(self.family);
        self.rows.chunk_by(is_tied)
    }

    /// The rows in the order in which the server tries them; see [`tied`](Self::tied).
    pub fn iter(&self) -> impl Iterator<Item = &UserRow> {
        self.rows.iter()
    }
}

impl UserRow {
    fn place(&self, family: Family) -> Place {
        place(family, &self.host, self.user.is_empty())
    }
}

fn user_row(row: Row) -> UserRow {
    let mut cells = row.into_iter().skip(2);
    let mut next = || cells.next().flatten().unwrap_or_default();
    let user = next().into();
    let host = String::from_utf8_lossy(&next()).to_lowercase().into();
    let by_socket = next() == b"1";
    let is_relayed = next() == b"1";
    let is_native = next() == b"1";
    let native_hashes = next()
        .split(|byte| *byte == b',')
        .filter_map(native_hash)
        .collect();
    let kept = next()
        .split(|byte| *byte == b',')
        .filter_map(Kept::read)
        .collect();
    let passwords = next().into();
    let has_old = next() == b"1";
    let counts_failures = next() == b"1";
    let kind = next();
    let mut word = || String::from_utf8_lossy(&next()).into();
    let (cipher, issuer, subject) = (word(), word(), word());
    let requires = match &*kind {
        b"ANY" => Requires::Tls,
        b"X509" => Requires::Certificate,
        b"SPECIFIED" | b"CIPHER" => Requires::Exactly {
            certificate: kind == b"SPECIFIED",
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
        is_native,
        native_hashes,
        kept,
        passwords,
        has_old,
        counts_failures,
        requires,
    }
}

/// `*` and forty hexadecimal digits.
fn native_hash(text: &[u8]) -> Option<[u8; 20]> {
    let digits = text
        .strip_prefix(b"*")
        .filter(|digits| digits.len() == 40)?;
    from_hex(digits)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(cells: [&str; 14]) -> Row {
        let cells = cells.map(|cell| Some(cell.as_bytes().to_vec()));
        let (skip_name_resolve, name) = (Some(b"0".to_vec()), Some(b"app".to_vec()));
        [skip_name_resolve, name].into_iter().chain(cells).collect()
    }

    #[test]
    fn rows_come_in_the_order_of_the_server() {
        let row = |user, host| {
            cells([
                user, host, "0", "0", "0", "", "", "", "0", "0", "", "", "", "",
            ])
        };
        let rows = UserRows::read(
            Family::MySql,
            vec![
                row("app", "%"),
                row("", "localhost"),
                row("app", "10.0.%"),
                row("app", "10.0.0.%"),
                row("app", "localhost"),
            ],
        );
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
        assert_eq!(rows.own().count(), 4);
    }

    #[test]
    fn rows_of_an_unknown_order_are_tied() {
        let row = |host| {
            let none = ["0", "0", "0", "", "", "", "0", "0", "", "", "", ""];
            let mut all = ["app"; 14];
            all[1] = host;
            all[2..].copy_from_slice(&none);
            cells(all)
        };
        let hosts = ["10.0._.7", "%", "10.0.%", "10.0.0.7"];
        let tied = |family| -> Vec<usize> {
            let rows = UserRows::read(family, hosts.map(row).into());
            rows.tied().map(<[UserRow]>::len).collect()
        };
        assert_eq!(tied(Family::MySql), [1, 2, 1]);
        assert_eq!(tied(Family::MariaDb), [1, 1, 1, 1]);
    }

    #[test]
    fn a_proxy_user_is_known_by_its_own_row() {
        let answer = |current: &str, proxy: Option<&str>| {
            let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02X}")).collect();
            let cell = |text: &str| Some(String::into_bytes(hex(text)));
            Who::read(vec![vec![cell(current), proxy.and_then(cell)]])
        };
        for proxy in [None, Some("")] {
            let who = answer("app@%", proxy);
            assert_eq!((&*who.row, who.proxied), (&b"app@%"[..], None));
        }
        for (proxy, row) in [
            ("'ext'@'10.%'", "ext@10.%"),
            ("''@''", "@"),
            ("'a'@'b'@'%'", "a'@'b@%"),
        ] {
            let who = answer("base@%", Some(proxy));
            assert_eq!(&*who.row, row.as_bytes());
            assert_eq!(who.proxied.as_deref().map(user_of), Some(&b"base"[..]));
        }
    }

    /// What MariaDB writes for them; the salt has 18 bytes.
    const PARSEC: &str =
        "parsec P3:WW9sXaaL/oWW9sXaaL/oabcd:vubFBzIrapbfHct1/J72dnUryz5VS7lA6XHH8sIx4TI";
    const ED25519: &str = "ed25519 vubFBzIrapbfHct1/J72dnUryz5VS7lA6XHH8sIx4TI";

    #[test]
    fn a_row_is_read() {
        let hash = "*6BB4837EB74329105EE4568DDA7DC67ED2CA2AD9";
        let hash = &format!("{hash},,{hash}");
        let rows = UserRows::read(
            Family::MySql,
            vec![
                cells([
                    "a",
                    "H",
                    "1",
                    "1",
                    "0",
                    hash,
                    PARSEC,
                    "5ba9",
                    "1",
                    "1",
                    "SPECIFIED",
                    "c",
                    "/CN=i",
                    "/CN=s",
                ]),
                cells([
                    "b", "%", "0", "0", "1", "", ED25519, "", "0", "0", "X509", "", "", "",
                ]),
                cells([
                    "c", "%", "0", "0", "0", "", "", "", "0", "0", "CIPHER", "c", "", "",
                ]),
            ],
        );
        let rows: Vec<_> = rows.iter().collect();
        assert!(rows[0].by_socket && rows[0].is_relayed && rows[0].native_hashes.len() == 2);
        assert!(!rows[0].is_native && rows[1].is_native && rows[1].native_hashes.is_empty());
        assert_eq!(&*rows[0].passwords, b"5ba9");
        assert_eq!(rows[0].kept.len(), 1);
        assert_eq!(rows[0].kept[0].bytes()[..3], [b'P', 3, 0x59]);
        assert_eq!(rows[0].kept[0].bytes().len(), 2 + 18 + 32);
        assert!(matches!(rows[1].kept[..], [Kept::Ed25519(_)]));
        assert!(rows[2].kept.is_empty());
        assert!(rows[0].has_old && !rows[1].has_old);
        assert!(rows[0].counts_failures && !rows[1].counts_failures);
        assert_eq!(
            rows[0].requires,
            Requires::Exactly {
                certificate: true,
                cipher: "c".into(),
                issuer: "/CN=i".into(),
                subject: "/CN=s".into()
            }
        );
        assert_eq!(
            (&*rows[0].host, &rows[1].requires),
            ("h", &Requires::Certificate)
        );
        let is_without = |row: &UserRow| {
            matches!(
                row.requires,
                Requires::Exactly {
                    certificate: false,
                    ..
                }
            )
        };
        assert!(!is_without(rows[0]) && is_without(rows[2]));
    }
}

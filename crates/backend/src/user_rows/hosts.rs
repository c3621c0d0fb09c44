//! Which clients the host of an account is for, and in which order a server tries a name's accounts.
//!
//! MySQL: `update_hostname`, `compare_hostname`, `get_sort` and `ACL_USER_compare` in `sql/auth/sql_auth_cache.cc`.
//! MariaDB: `update_hostname`, `compare_hostname`, `acl_user_compare` and `find_by_username_or_anon` in
//! `sql/sql_acl.cc`, `get_magic_sort` in `sql/sql_acl_getsort.ic`. Checked on MySQL 9.7 and MariaDB 11.8.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millrace_sql::Family;

/// What a pattern says of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matches {
    /// The address has it.
    Yes,
    /// The address does not have it.
    No,
    /// It is a name: whether the address has it, a resolver says.
    IfNamed,
    /// It is a pattern of names. Whether the client's name has it, only the server knows.
    Unknown,
}

/// Whether a host pattern of an account is for an address. `resolves`: the server asks for clients' names.
pub(super) fn matches(family: Family, pattern: &str, address: IpAddr, resolves: bool) -> Matches {
    let address = address.to_canonical();
    if pattern.is_empty() {
        return Matches::Yes;
    }
    let network = Network::read(family, pattern);
    match address {
        // Servers compare nothing else then.
        IpAddr::V4(address) if network.mask != 0 => {
            return verdict(address.to_bits() & network.mask == network.address);
        }
        _ => {}
    }
    let of_addresses = match family {
        Family::MySql => Cow::Owned(joined_wildcards(pattern.as_bytes())),
        Family::MariaDb => Cow::Borrowed(pattern.as_bytes()),
    };
    if like(&of_addresses, address.to_string().as_bytes()) {
        return Matches::Yes;
    }
    match resolves && can_be_of_names(pattern) {
        true => matches_name(pattern, address),
        false => Matches::No,
    }
}

fn verdict(yes: bool) -> Matches {
    if yes { Matches::Yes } else { Matches::No }
}

fn matches_name(pattern: &str, address: IpAddr) -> Matches {
    let is_plain = !pattern.contains(['%', '_', '\\']);
    // Servers look up no name for these: they are `localhost` (`ip_to_hostname`).
    let is_localhost = address == Ipv4Addr::LOCALHOST || address == Ipv6Addr::LOCALHOST;
    match is_localhost {
        // MySQL takes `_` in names in its own way.
        true if !pattern.contains('_') => verdict(like(pattern.as_bytes(), b"localhost")),
        false if is_plain => Matches::IfNamed,
        _ => Matches::Unknown,
    }
}

/// Whether a client's name could match. Servers take no name that begins with a number and a dot
/// (`is_hostname_valid`), and no name ends in a part of digits alone (RFC 3696, section 2).
fn can_be_of_names(pattern: &str) -> bool {
    let is_digit = |letter: char| letter.is_ascii_digit();
    let after_number = pattern.trim_start_matches(is_digit);
    let begins_as_address = after_number.len() < pattern.len() && after_number.starts_with('.');
    let last = pattern.rsplit('.').next().unwrap_or_default();
    let ends_as_address = !last.is_empty() && last.chars().all(is_digit);
    !begins_as_address && !ends_as_address && !pattern.contains(['/', ':'])
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

/// MySQL's `_` after a `%` takes no character: `%_2` is `%2`. At the end it asks for one
/// (`wild_compare_full` in `mysys/mf_wcomp.cc`).
fn joined_wildcards(pattern: &[u8]) -> Vec<u8> {
    let mut joined = Vec::with_capacity(pattern.len());
    let mut rest = pattern;
    loop {
        rest = match rest {
            [] => return joined,
            [b'%', after @ ..] => {
                let is_wild = |byte: &&u8| matches!(byte, b'%' | b'_');
                let wild = after.iter().take_while(is_wild).count();
                let (wild, after) = after.split_at(wild);
                if after.is_empty() && wild.contains(&b'_') {
                    joined.push(b'_');
                }
                joined.push(b'%');
                after
            }
            [b'\\', plain, after @ ..] => {
                joined.extend([b'\\', *plain]);
                after
            }
            [plain, after @ ..] => {
                joined.push(*plain);
                after
            }
        };
    }
}

/// A pattern as a server reads it for IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network {
    address: u32,
    /// 0: the pattern is compared as a text.
    mask: u32,
    written: Written,
}

/// How a mask is written, in the order in which MySQL tries them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Written {
    /// There is none.
    Nowhere,
    /// `/24`
    Cidr,
    /// `/255.255.255.0`
    Dotted,
}

impl Network {
    const NONE: Network = Network {
        address: 0,
        mask: 0,
        written: Written::Nowhere,
    };

    fn read(family: Family, pattern: &str) -> Network {
        let Some((address, rest)) = address(pattern.as_bytes()) else {
            return Network::NONE;
        };
        let (mask, written) = match (family, rest) {
            (Family::MySql, []) => (u32::MAX, Written::Nowhere),
            (_, [b'/', mask @ ..]) => match (family, dotted(mask), cidr(mask)) {
                (Family::MariaDb, Some(mask), _) => (mask, Written::Dotted),
                (Family::MySql, Some(mask), _) if is_contiguous(mask) => (mask, Written::Dotted),
                (Family::MySql, None, Some(mask)) => (mask, Written::Cidr),
                _ => return Network::NONE,
            },
            // MySQL keeps the address of `10.0.0.2%`: it is tried among the addresses.
            _ => (0, Written::Nowhere),
        };
        Network {
            address,
            mask,
            written,
        }
    }
}

/// Ones, then zeros. MySQL takes no mask of zeros alone.
fn is_contiguous(mask: u32) -> bool {
    mask != 0 && mask.leading_ones() + mask.trailing_zeros() == 32
}

fn dotted(mask: &[u8]) -> Option<u32> {
    address(mask).and_then(|(mask, rest)| rest.is_empty().then_some(mask))
}

/// `/0` is a mask of 0, which matches no client (observed).
fn cidr(mask: &[u8]) -> Option<u32> {
    let (ones, rest) = number(mask, 32)?;
    let zeros = 32 - ones;
    rest.is_empty()
        .then(|| u32::MAX.checked_shl(zeros).unwrap_or_default())
}

/// Four numbers with dots, and what follows them.
fn address(text: &[u8]) -> Option<(u32, &[u8])> {
    let (mut address, mut rest) = number(text, 255)?;
    for _ in 0..3 {
        let (byte, after) = number(rest.strip_prefix(b".")?, 255)?;
        (address, rest) = (address << 8 | byte, after);
    }
    Some((address, rest))
}

/// A number and what follows it, as the servers' `str2int` reads it: spaces, a sign, digits.
fn number(text: &[u8], most: u32) -> Option<(u32, &[u8])> {
    let text = text.trim_ascii_start();
    let (most, digits) = match text {
        [b'+', digits @ ..] => (most, digits),
        [b'-', digits @ ..] => (0, digits),
        digits => (most, digits),
    };
    let end = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let (digits, rest) = digits.split_at(end);
    let add = |sum: u32, digit: &u8| {
        sum.saturating_mul(10)
            .saturating_add(u32::from(digit - b'0'))
    };
    let number = digits.iter().fold(0, add);
    (!digits.is_empty() && number <= most).then_some((number, rest))
}

/// Where an account stands among those that a server tries for a name: the least is the first. Of equals it cannot be
/// known which is the first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// MySQL: an address, alone or with a mask. Equals stand in the order of their places in the server's memory.
    Address(Written, Reverse<u32>, bool),
    /// MySQL: anything else, by [`rank`].
    Text(Reverse<u8>, bool),
    /// MariaDB: by [`magic`], and then by the pattern itself, the greater first.
    Magic(u64, bool, Reverse<Box<str>>),
}

pub(super) fn place(family: Family, pattern: &str, is_anonymous: bool) -> Place {
    if family == Family::MariaDb {
        // It reads an empty host as this one.
        let pattern = if pattern.is_empty() { "%" } else { pattern };
        return Place::Magic(
            magic(pattern.as_bytes()),
            is_anonymous,
            Reverse(pattern.into()),
        );
    }
    let network = Network::read(family, pattern);
    match network.address {
        0 => Place::Text(Reverse(rank(pattern)), is_anonymous),
        _ => Place::Address(network.written, Reverse(network.mask), is_anonymous),
    }
}

/// MySQL's `get_sort`: by the number of bytes before the first wildcard; none is the most, `%` the least but nothing.
fn rank(pattern: &str) -> u8 {
    let mut bytes = pattern.bytes().enumerate();
    let mut first = None;
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            b'%' | b'_' => {
                first = Some(at);
                break;
            }
            _ => {}
        }
    }
    match (pattern, first) {
        ("", _) => 0,
        ("%", _) => 1,
        (_, None) => 128,
        (_, Some(at)) => u8::try_from(at + 2).unwrap_or(u8::MAX).min(127),
    }
}

/// MariaDB's `get_magic_sort`: how many hosts a pattern is for, as far as it compares that. Of patterns that are for
/// as many, the one with its first wildcard earlier has less.
fn magic(pattern: &[u8]) -> u64 {
    /// The longest host.
    const LONGEST: u64 = 255;
    /// It counts wildcards up to here.
    const COUNTED: u64 = 31;
    let (mut plain, mut ones, mut manys, mut before) = (0, 0, 0, 0);
    let mut rest = pattern;
    while let [byte, after @ ..] = rest {
        rest = after;
        if matches!(byte, b'%' | b'_') && ones + manys == 0 {
            before = plain;
        }
        match byte {
            b'%' => {
                manys += 1;
                let more = rest.iter().take_while(|byte| **byte == b'%').count();
                rest = &rest[more..];
            }
            b'_' => ones += 1,
            b'\\' if !rest.is_empty() => {
                plain += 1;
                rest = &rest[1..];
            }
            _ => plain += 1,
        }
    }
    let (ones, manys) = (COUNTED.min(ones), COUNTED.min(manys));
    let any = match manys {
        0 => 0,
        _ => LONGEST.saturating_sub(plain + ones),
    };
    let (length, count) = (LONGEST + 1, COUNTED + 1);
    if any > ones {
        (((any * 2 + 1) * length + manys) * count + ones) * length + before
    } else {
        ((ones * 2 * length + any) * count + manys) * length + before
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::Matches::{IfNamed, No, Unknown, Yes};
    use super::*;

    /// The rows that match, in the order in which they are tried; those of one place together.
    fn tried(family: Family, patterns: &[&str], address: &str) -> Vec<HashSet<String>> {
        let address = address.parse().expect("it is an address");
        let mut patterns: Vec<&str> = patterns.to_vec();
        patterns.sort_by_key(|pattern| place(family, pattern, false));
        let groups = patterns.chunk_by(|a, b| place(family, a, false) == place(family, b, false));
        let matching = groups.map(|group| {
            let is = |pattern: &&&str| matches(family, pattern, address, false) == Yes;
            group
                .iter()
                .filter(is)
                .map(|one| (*one).to_owned())
                .collect()
        });
        matching
            .filter(|group: &HashSet<_>| !group.is_empty())
            .collect()
    }

    /// One line for each place, the first first; equals are parted by spaces.
    fn check(family: Family, address: &str, order: &[&str], never: &[&str]) {
        let groups: Vec<HashSet<String>> = order
            .iter()
            .map(|line| line.split(' ').map(str::to_owned).collect())
            .collect();
        let all = order.iter().flat_map(|line| line.split(' '));
        let mut all: Vec<&str> = all.chain(never.iter().copied()).collect();
        for _ in 0..2 {
            assert_eq!(tried(family, &all, address), groups, "{family:?}");
            all.reverse();
        }
        // The next wins where the first was dropped, as it was measured.
        for at in 0..order.len() {
            let rest: Vec<&str> = order[at..]
                .iter()
                .flat_map(|line| line.split(' '))
                .collect();
            assert_eq!(tried(family, &rest, address)[0], groups[at]);
        }
    }

    #[test]
    fn mysql_tries_rows_in_its_order() {
        check(
            Family::MySql,
            "10.99.0.2",
            &[
                "10.99.0.2 10.99.0.02 +10.99.0.2",
                "10.99.0.2% 10.99.0.2%%",
                "10.99.0.2/32",
                "10.99.0.0/24 10.99.0.0/024",
                "10.99.0.0/16",
                "10.0.0.0/8",
                "10.99.0.2/255.255.255.255",
                "10.99.0.0/255.255.255.0 10.099.0.0/255.255.0255.0",
                "10.0.0.0/255.0.0.0",
                "0.0.0.0/1 10.99.0.\\2 \\10.99.0.2",
                "10.99.0._ 10.99.0.%_2 10.99.0._% 10.99.0.%_",
                "10.\\99.%",
                "10.99.%.2",
                "10.%",
                "1%",
                "_0.99.0.2 %.2 %%",
                "%",
                "",
            ],
            &[
                "::ffff:10.99.0.2",
                "0.0.0.0/0",
                "0.0.0.0/0.0.0.0",
                "10.99.0.2/0",
                "10.99.0.3/24",
                "10.99.0.0/33",
                "10.0.0.0/255.0.255.0",
                "10.99.0.2/abc",
                "10.99.0.2_",
                "10.99.0.2%_",
                "-10.99.0.2",
                "x%",
            ],
        );
    }

    #[test]
    fn mariadb_tries_rows_in_its_order() {
        check(
            Family::MariaDb,
            "10.99.0.2",
            &[
                "10.99.0.\\2",
                "10.99.0.2/255.255.255.255",
                "10.99.0.2/255.255.255.254",
                "10.99.0.2",
                "10.99.0.0/255.255.255.252",
                "10.99.0.0/255.255.255.0",
                "10.99.0.0/255.255.0255.0",
                "10.99.0.0/255.255.0.0",
                "10.0.0.0/255.0.255.0",
                "+10.99.0.0/255.255.255.0",
                "_0.99.0.2",
                "1_.99.0.2",
                "10.99.0._",
                "__.__._._",
                "10.99.0.%2",
                "10.99.0.2%",
                "10.99.%.2",
                "10.99.0.%",
                "10.%.0.2",
                "%.99.%",
                "10.%",
                "%.2",
                "%_2",
                "%.%.%",
                "%2",
                "1%",
                "_%",
                "%%",
                "%",
            ],
            &[
                "10.99.0.0/24",
                "10.99.0.02",
                "0.0.0.0/0",
                "0.0.0.0/0.0.0.0",
                "::ffff:10.99.0.2",
                "10.99.0.%_2",
            ],
        );
    }

    #[test]
    fn an_anonymous_account_comes_after_one_of_the_name() {
        for family in [Family::MySql, Family::MariaDb] {
            for host in ["10.0.0.1", "10.%", "localhost", "%"] {
                assert!(place(family, host, false) < place(family, host, true));
            }
            assert!(place(family, "10.0.0.1", true) < place(family, "10.%", false));
        }
        assert!(
            place(Family::MariaDb, "localhost", false) < place(Family::MariaDb, "127.0.0.1", false)
        );
        assert!(
            place(Family::MySql, "localhost", false) > place(Family::MySql, "127.0.0.1", false)
        );
        assert_eq!(
            place(Family::MySql, "web1.example", false),
            place(Family::MySql, "::1", false)
        );
        assert!(place(Family::MySql, "web1", false) > place(Family::MySql, "10.0.0.0/8", false));
    }

    #[test]
    fn patterns_are_for_addresses_as_the_servers_say() {
        for family in [Family::MySql, Family::MariaDb] {
            for (pattern, address, wanted) in [
                ("%", "10.1.2.3", Yes),
                ("", "10.1.2.3", Yes),
                ("10.1.2.3", "10.1.2.3", Yes),
                ("10.1.%", "10.1.2.3", Yes),
                ("10.1.2._", "10.1.2.3", Yes),
                ("10.1.0.0/255.255.0.0", "10.1.2.3", Yes),
                ("::1", "::1", Yes),
                ("10.1.2.3", "::ffff:10.1.2.3", Yes),
                ("fe80:%", "fe80::1", Yes),
                ("10.1.2.4", "10.1.2.3", No),
                ("10.2.%", "10.1.2.3", No),
                ("10.2.0.0/16", "10.1.2.3", No),
                ("10.1.2.0/33", "10.1.2.3", No),
                ("10.1.2.0/255.255.255.0", "::1", No),
                ("::1", "10.1.2.3", No),
                ("0:0:0:0:0:0:0:1", "::1", No),
                ("%.2", "10.1.2.3", No),
                ("localhost", "10.1.2.3", IfNamed),
                ("web1.example", "10.1.2.3", IfNamed),
                ("%.example", "10.1.2.3", Unknown),
                ("web\\_1.example", "10.1.2.3", Unknown),
                ("web_.example", "10.1.2.3", Unknown),
                ("%a", "10.1.2.3", Unknown),
                ("%2", "10.1.2.3", Unknown),
                ("11%", "10.1.2.3", Unknown),
                ("%.%", "fd00::1", Unknown),
                ("10.%.example", "10.1.2.3", No),
                ("10.example", "10.1.2.3", No),
                ("localhost", "127.0.0.1", Yes),
                ("local%", "::1", Yes),
                ("%.example", "127.0.0.1", No),
                ("web1", "127.0.0.1", No),
                ("localhost", "127.0.0.2", IfNamed),
            ] {
                let address = address.parse().expect("it is an address");
                let found = matches(family, pattern, address, true);
                assert_eq!(found, wanted, "{family:?} {pattern} {address}");
                let unresolved = matches(family, pattern, address, false);
                let is_of_names = ["local", "l%"]
                    .iter()
                    .any(|start| pattern.starts_with(start));
                if wanted != Yes || is_of_names {
                    assert_eq!(unresolved, No, "{family:?} {pattern} {address}");
                }
            }
        }
    }
}

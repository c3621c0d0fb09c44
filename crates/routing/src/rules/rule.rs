//! A rule: its conditions, and what it does. Says of one rule whether it holds.

use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use millrace_sql::{Access, Kind};
use regex::bytes::Regex;

use crate::{Consistency, Wanted};

/// A regular expression, over bytes. Two are the same where their texts are.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

impl Pattern {
    /// Compiles it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(text: &str) -> Result<Self, regex::Error> {
        Regex::new(text).map(Pattern)
    }
}

impl Deref for Pattern {
    type Target = Regex;

    fn deref(&self) -> &Regex {
        &self.0
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

/// One rule: what it looks at and what follows.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// For operators: unique, never empty.
    pub name: Arc<str>,
    /// All of its conditions must hold.
    pub when: When,
    /// What follows.
    pub then: Then,
    /// Whether later rules are looked at as well; what they say adds to what this one says.
    pub goes_on: bool,
}

/// A rule's conditions. Of a list, one entry must hold; an empty list holds for everything.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct When {
    /// Account names.
    pub accounts: Vec<Box<[u8]>>,
    /// Default databases.
    pub databases: Vec<Box<[u8]>>,
    /// Networks that the client is in; a client on a Unix socket is in none.
    pub clients: Vec<Network>,
    /// Listeners, by number.
    pub listeners: Vec<u16>,
    /// Kinds of statements.
    pub kinds: Vec<KindName>,
    /// Hashes of normalised texts.
    pub digests: Vec<u64>,
    /// Tables that it names, among others perhaps.
    pub tables: Vec<TableName>,
    /// A regular expression that matches somewhere in the normalised text.
    pub pattern: Option<Pattern>,
    /// Tags in its comments.
    pub tags: Vec<Box<str>>,
}

/// What a rule does; nothing but to count where all is none.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Then {
    /// Where the statement goes, if it may run there.
    pub wanted: Option<Wanted>,
    /// What it is guaranteed to see.
    pub consistency: Option<Consistency>,
    /// It is ended on its server after this.
    pub time_limit: Option<Duration>,
    /// So many of the rule's statements run at once; others wait.
    pub concurrency: Option<u32>,
    /// It is refused, with this text.
    pub refuse: Option<Arc<str>>,
    /// It is sent to these servers too, a bit for each; their answers are dropped.
    pub mirror: Option<u64>,
    /// It is written anew.
    pub rewrite: Option<Rewrite>,
    /// Whether its result may be kept in memory and served again.
    pub cache: Option<Caching>,
}

/// What a rule says about results in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// A server answers each time.
    Never,
    /// Results are kept and served as long as they are exactly what a server would answer.
    Exact,
    /// Results are kept and served for so long, whatever is written.
    Within(Duration),
}

/// A statement's text by a template.
#[derive(Debug, Clone, PartialEq)]
pub struct Rewrite {
    /// What is replaced, in the statement's own text.
    pub pattern: Pattern,
    /// What replaces each place; `$1` and `${name}` stand for what the pattern's groups matched.
    pub template: Arc<[u8]>,
}

/// A table in a condition, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TableName {
    /// Its database; none: any.
    pub schema: Option<Box<[u8]>>,
    /// Its name.
    pub name: Box<[u8]>,
}

/// A kind of statements as rules name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KindName {
    /// Whatever may run on a replica.
    Read,
    /// Whatever may not.
    Write,
    /// SELECT, with locks or without.
    Select,
    /// INSERT.
    Insert,
    /// REPLACE.
    Replace,
    /// UPDATE.
    Update,
    /// DELETE.
    Delete,
    /// CALL.
    Call,
    /// CREATE, ALTER, DROP, RENAME, TRUNCATE.
    Ddl,
    /// SHOW, DESCRIBE, EXPLAIN, HELP.
    Show,
    /// SET, USE and whatever else is about the session.
    Set,
    /// BEGIN, COMMIT, ROLLBACK, savepoints, XA.
    Transaction,
    /// LOAD DATA.
    Load,
}

impl KindName {
    /// All of them with their names.
    pub const ALL: [(&'static str, KindName); 13] = [
        ("read", KindName::Read),
        ("write", KindName::Write),
        ("select", KindName::Select),
        ("insert", KindName::Insert),
        ("replace", KindName::Replace),
        ("update", KindName::Update),
        ("delete", KindName::Delete),
        ("call", KindName::Call),
        ("ddl", KindName::Ddl),
        ("show", KindName::Show),
        ("set", KindName::Set),
        ("transaction", KindName::Transaction),
        ("load", KindName::Load),
    ];

    fn holds(self, kind: Kind, access: Access) -> bool {
        match self {
            // What sets or asks a server's state without data is neither.
            KindName::Read => {
                access <= Access::Read || (access == Access::PrimaryRead && kind == Kind::Select)
            }
            KindName::Write => access == Access::Write,
            KindName::Select => kind == Kind::Select,
            KindName::Insert => kind == Kind::Insert,
            KindName::Replace => kind == Kind::Replace,
            KindName::Update => kind == Kind::Update,
            KindName::Delete => kind == Kind::Delete,
            KindName::Call => kind == Kind::Call,
            KindName::Ddl => kind == Kind::Ddl,
            KindName::Load => matches!(kind, Kind::LoadData { .. }),
            KindName::Show => matches!(
                kind,
                Kind::Show(_) | Kind::Explain { .. } | Kind::Help | Kind::Diagnostics
            ),
            KindName::Set => matches!(
                kind,
                Kind::Set | Kind::Use | Kind::SetTransaction | Kind::SetRole
            ),
            KindName::Transaction => matches!(
                kind,
                Kind::Begin
                    | Kind::Commit
                    | Kind::Rollback
                    | Kind::Savepoint
                    | Kind::ReleaseSavepoint
                    | Kind::RollbackTo
                    | Kind::Xa(_)
            ),
        }
    }
}

/// A network: an address and how many of its first bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Reads `10.0.0.0/8`, `fe80::/10` or a single address.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| format!("`{text}` is no address and no network such as 10.0.0.0/8"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits.map(str::parse) {
            None => most,
            Some(Ok(bits)) if bits <= most => bits,
            Some(_) => return Err(format!("behind the / of `{text}` stands 0 to {most}")),
        };
        Ok(Network { address, bits })
    }

    /// Whether an address is in it. One of IPv4 may come in the form of IPv6.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        match (self.address.to_canonical(), address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let apart = own.to_bits() ^ other.to_bits();
                apart.leading_zeros() >= u32::from(self.bits.min(32))
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let apart = own.to_bits() ^ other.to_bits();
                apart.leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// What a session brings along.
#[derive(Debug, Clone, Copy)]
pub struct Who<'a> {
    /// Its account's name.
    pub account: &'a [u8],
    /// Its default database; empty for none.
    pub database: &'a [u8],
    /// Where its client is; none for a Unix socket.
    pub address: Option<IpAddr>,
    /// The listener's number.
    pub listener: u16,
}

/// What a statement brings along.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// Its kind.
    pub kind: Kind,
    /// What it needs, stored routines and views looked at.
    pub access: Access,
    /// The tables that it names, in lower case.
    pub tables: &'a [TableName],
    /// The default database, in lower case: of tables named without one.
    pub database: &'a [u8],
    /// The hash of its normalised text.
    pub digest: u64,
    /// Its normalised text.
    pub normalised: &'a [u8],
    /// The tags in its comments.
    pub tags: &'a [&'a str],
}

/// The rules that can concern a session, by their numbers, ascending.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    pub(super) rules: Vec<u16>,
    /// Those of them that no index leads to.
    pub(super) others: Vec<u16>,
    /// Some rule looks at texts: they must be normalised.
    pub needs_text: bool,
}

impl Selection {
    /// No rule can concern the session.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

impl When {
    pub(super) fn holds_for_session(&self, who: &Who<'_>) -> bool {
        let one_of = |list: &[Box<[u8]>], value: &[u8]| {
            list.is_empty() || list.iter().any(|one| **one == *value)
        };
        let in_network =
            |network: &Network| who.address.is_some_and(|address| network.contains(address));
        one_of(&self.accounts, who.account)
            && one_of(&self.databases, who.database)
            && (self.clients.is_empty() || self.clients.iter().any(in_network))
            && (self.listeners.is_empty() || self.listeners.contains(&who.listener))
    }

    /// Whether it has a condition that an index finds it by.
    pub(super) fn is_indexed(&self) -> bool {
        self.looks_at_text() || !self.tables.is_empty() || !self.tags.is_empty()
    }

    pub(super) fn looks_at_text(&self) -> bool {
        !self.digests.is_empty() || self.pattern.is_some()
    }

    pub(super) fn holds_for_statement(&self, facts: &Facts<'_>) -> bool {
        let named = |wanted: &TableName| facts.tables.iter().any(|table| wanted.is(table, facts));
        (self.kinds.is_empty()
            || self
                .kinds
                .iter()
                .any(|kind| kind.holds(facts.kind, facts.access)))
            && (self.digests.is_empty() || self.digests.contains(&facts.digest))
            && (self.tables.is_empty() || self.tables.iter().any(named))
            && (self.tags.is_empty() || self.tags.iter().any(|tag| facts.tags.contains(&&**tag)))
            && self
                .pattern
                .as_ref()
                .is_none_or(|pattern| pattern.is_match(facts.normalised))
    }
}

impl TableName {
    /// Reads `table` or `database.table`.
    pub fn parse(text: &str) -> Self {
        let lower = |text: &str| text.trim_matches('`').to_lowercase().into_bytes().into();
        match text.split_once('.') {
            Some((schema, name)) => TableName {
                schema: Some(lower(schema)),
                name: lower(name),
            },
            None => TableName {
                schema: None,
                name: lower(text),
            },
        }
    }

    fn is(&self, table: &TableName, facts: &Facts<'_>) -> bool {
        let schema = table.schema.as_deref().unwrap_or(facts.database);
        self.name == table.name && self.schema.as_deref().is_none_or(|own| own == schema)
    }
}

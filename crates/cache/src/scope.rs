//! What a result depends on and what a transaction touches: subjects, whole or by key.

use smallvec::SmallVec;

/// A value of an index's columns, as bytes whose order is that of the index. All keys of one index have the
/// same length.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(SmallVec<[u8; 16]>);

impl Key {
    /// Without a column; the columns follow in the order of the index.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a column of a signed integer type.
    #[must_use]
    pub fn signed(self, value: i64) -> Self {
        self.unsigned((value as u64) ^ (1 << 63))
    }

    /// Adds a column of an unsigned integer type. An index must not mix both in one place.
    #[must_use]
    pub fn unsigned(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Adds a column of BINARY(`len`), filled up with zero bytes as the server does.
    #[must_use]
    pub fn bytes(mut self, value: &[u8], len: usize) -> Self {
        let filled = self.0.len() + len;
        self.0.extend_from_slice(&value[..value.len().min(len)]);
        self.0.resize(filled, 0);
        self
    }

    /// The value of an index of one integer.
    pub(crate) fn as_integer(&self) -> Option<u64> {
        let bytes = self.0.as_slice().try_into().ok()?;
        Some(u64::from_be_bytes(bytes))
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        if self.0.spilled() {
            self.0.capacity()
        } else {
            0
        }
    }
}

/// Keys from one to another, both included.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Interval {
    /// The first.
    pub lo: Key,
    /// The last.
    pub hi: Key,
}

impl Interval {
    /// One key.
    pub fn point(key: Key) -> Self {
        Self {
            hi: key.clone(),
            lo: key,
        }
    }

    /// Whether it holds one key.
    pub fn is_point(&self) -> bool {
        self.lo == self.hi
    }

    /// Whether it has the key.
    pub fn has(&self, key: &Key) -> bool {
        self.lo <= *key && *key <= self.hi
    }
}

/// Something that results depend on and that the log tells changes of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject(Box<[u8]>);

impl Subject {
    /// A table, its names as the server compares them (lower_case_table_names).
    pub fn table(database: &[u8], table: &[u8]) -> Self {
        Self::named(b't', database, table)
    }

    /// What an account may do. Each entry depends on that of the account that filled it.
    pub fn account(user: &[u8], host: &[u8]) -> Self {
        Self::named(b'a', user, host)
    }

    /// Roles, and what cannot be told apart of rights. Each entry depends on it.
    pub fn rights() -> Self {
        Self::named(b'r', b"", b"")
    }

    fn named(kind: u8, first: &[u8], second: &[u8]) -> Self {
        let len = (first.len() as u32).to_le_bytes();
        Self([&[kind], &len[..], first, second].concat().into())
    }

    /// Whether it is a table.
    pub fn is_table(&self) -> bool {
        self.0.first() == Some(&b't')
    }

    /// Database and name of a table, for listings.
    pub fn names(&self) -> (&[u8], &[u8]) {
        let (head, names) = self.0.split_at_checked(5).unwrap_or_default();
        let len = head.get(1..).and_then(|len| len.try_into().ok());
        let len = len.map_or(0, |len| u32::from_le_bytes(len) as usize);
        names.split_at_checked(len).unwrap_or_default()
    }

    pub(crate) fn heap(&self) -> usize {
        self.0.len()
    }
}

/// How much of a subject a result depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// All of it.
    Whole,
    /// The rows whose key in this unique index, by a number that the caller gives it, is in the interval.
    Within {
        /// Which index.
        index: u8,
        /// Which of its keys.
        interval: Interval,
    },
}

/// What a result depends on: it must name every table that it reads, and the rights of its account.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// Of what.
    pub subject: Subject,
    /// How much of it.
    pub scope: Scope,
}

impl Access {
    /// All of a subject.
    pub fn whole(subject: Subject) -> Self {
        Self {
            subject,
            scope: Scope::Whole,
        }
    }
}

/// Keys of one index that a transaction has changed, before or after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexKeys {
    /// Which index, as in [`Scope::Within`].
    pub index: u8,
    /// In any order.
    pub keys: Vec<Key>,
}

/// What a transaction has touched of one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Of what.
    pub subject: Subject,
    /// For each index the keys of all changed rows. None: all of the subject. An index that is not named counts
    /// as all of it.
    pub keys: Option<Vec<IndexKeys>>,
}

impl Touch {
    /// All of a subject.
    pub fn whole(subject: Subject) -> Self {
        Self {
            subject,
            keys: None,
        }
    }
}

/// Keys that were touched, sorted; None for the whole subject.
pub(crate) type Touched = Option<Box<[IndexKeys]>>;

pub(crate) fn sorted(keys: &Option<Vec<IndexKeys>>) -> Touched {
    let mut keys = keys.clone()?.into_boxed_slice();
    for of_index in &mut keys {
        of_index.keys.sort_unstable();
        of_index.keys.dedup();
    }
    Some(keys)
}

/// Whether what was touched is part of the scope.
pub(crate) fn overlaps(scope: &Scope, touched: &Touched) -> bool {
    let (Scope::Within { index, interval }, Some(touched)) = (scope, touched) else {
        return true;
    };
    let Some(of_index) = touched.iter().find(|of_index| of_index.index == *index) else {
        return true;
    };
    let from = of_index.keys.partition_point(|key| *key < interval.lo);
    of_index
        .keys
        .get(from)
        .is_some_and(|key| *key <= interval.hi)
}

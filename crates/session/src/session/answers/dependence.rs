//! What a result depends on: the tables that its statement names, and of each the rows, where the statement names those
//! by the primary key.

use millrace_cache::{
    Access, Definitions, Interval, Key, KeyColumn, KeyKind, Never, PRIMARY, Scope, Subject, Table,
};
use millrace_engine::request::Types;
use millrace_protocol::command::Command;
use millrace_protocol::packet::{self, Reader};
use millrace_protocol::types::{binary_value, column_type};
use millrace_protocol::{Capabilities, Malformed};
use millrace_sql::ident::unquote_ident;
use millrace_sql::{
    Comparison, Condition, Conditions, Constant, Flags, LexMode, Reads, Statement, TableRef, Why,
    digest, reads,
};
use smallvec::SmallVec;

/// A statement that was not found in the cache.
pub(in crate::session) struct Looked<'a> {
    pub(in crate::session) class: &'a Statement,
    pub(in crate::session) text: &'a [u8],
    /// What its text was read with.
    pub(in crate::session) lex: LexMode,
    /// The bytes of a string of ASCII are those of its text.
    pub(in crate::session) strings_are_plain: bool,
    /// Where its names are looked for.
    pub(in crate::session) database: Box<[u8]>,
    pub(in crate::session) parameters: Parameters,
}

/// What an execution's parameters are, as far as keys can be made of them.
#[derive(Default)]
pub(in crate::session) struct Parameters {
    values: SmallVec<[Option<i128>; 4]>,
    /// One is of type TIME, which servers complete with the current date where they need one.
    has_time: bool,
    /// One is of type DATE, DATETIME or TIMESTAMP, for which a TIME is completed.
    has_date: bool,
}

impl Parameters {
    /// Of COM_STMT_EXECUTE's packet, with the types that it leaves out. None where it cannot be read.
    pub(super) fn of(
        frame: &[u8],
        (count, capabilities): (usize, Capabilities),
        (types, known): (Types, &[u8]),
    ) -> Option<Parameters> {
        let payload = packet::payload(frame);
        let Ok(Command::StmtExecute(execute)) = Command::parse(&payload, capabilities) else {
            return None;
        };
        let sent = execute.params(count, capabilities).ok()?;
        let types = if types == Types::LeftOut {
            known
        } else {
            sent.types
        };
        let has_names = capabilities.contains(Capabilities::QUERY_ATTRIBUTES);
        read(sent.count, sent.null_bitmap, types, sent.values, has_names).ok()
    }
}

fn read(
    count: usize,
    nulls: &[u8],
    types: &[u8],
    values: &[u8],
    has_names: bool,
) -> Result<Parameters, Malformed> {
    let (mut types, mut values) = (Reader::new(types), Reader::new(values));
    let mut read = Parameters::default();
    for at in 0..count {
        let (kind, flags) = (types.u8()?, types.u8()?);
        if has_names {
            types.lenenc_bytes()?;
        }
        read.has_time |= kind == column_type::TIME;
        read.has_date |= matches!(
            kind,
            column_type::DATE | column_type::DATETIME | column_type::TIMESTAMP
        );
        let is_null = nulls
            .get(at / 8)
            .is_some_and(|bits| bits & 1 << (at % 8) != 0);
        read.values.push(match is_null {
            true => None,
            false => value(&mut values, kind, flags & UNSIGNED != 0)?,
        });
    }
    Ok(read)
}

/// The second byte of a parameter's type says that it has no sign (MySQL manual, "COM_STMT_EXECUTE").
const UNSIGNED: u8 = 0x80;

/// One value; none where it is no integer.
fn value(values: &mut Reader<'_>, kind: u8, unsigned: bool) -> Result<Option<i128>, Malformed> {
    let bytes = binary_value(values, kind)?;
    let is_integer = matches!(
        kind,
        column_type::TINY
            | column_type::SHORT
            | column_type::YEAR
            | column_type::LONG
            | column_type::INT24
            | column_type::LONGLONG
    );
    if !is_integer {
        return Ok(None);
    }
    let filler = match bytes.last() {
        Some(128..) if !unsigned => 0xFF,
        _ => 0,
    };
    let mut all = [filler; 16];
    all[..bytes.len()].copy_from_slice(bytes);
    Ok(Some(i128::from_le_bytes(all)))
}

#[cfg(test)]
impl<'a> Looked<'a> {
    /// A text of MySQL's in the database d, with integers for its parameters, and its class.
    pub(in crate::session) fn of(
        text: &'a str,
        class: &'a mut Statement,
        parameters: &[i128],
    ) -> Looked<'a> {
        let lex = LexMode::new(millrace_sql::Family::MySql, 90_700);
        millrace_sql::classify(text.as_bytes(), &lex, class);
        Looked {
            class,
            text: text.as_bytes(),
            lex,
            strings_are_plain: true,
            database: b"d".as_slice().into(),
            parameters: Parameters {
                values: parameters.iter().copied().map(Some).collect(),
                ..Parameters::default()
            },
        }
    }
}

impl Looked<'_> {
    /// What its result depends on, or why it is none of the cache's.
    pub(super) fn reads(&self, definitions: &Definitions) -> Result<SmallVec<[Access; 4]>, Never> {
        let mut told = Reads::default();
        reads(self.text, &self.lex, self.class, &mut told);
        if let Some(unstable) = told.unstable {
            return Err(never(unstable.why));
        }
        if self.parameters.has_time {
            return Err(Never::Function);
        }
        let mut all = SmallVec::new();
        for (at, table) in self.class.tables.iter().enumerate() {
            let subject = self.subject(table, definitions).ok_or(Never::Table)?;
            let definition = definitions.table(&subject).ok_or(Never::Table)?;
            if definition.has_time && (told.computes || self.parameters.has_date) {
                return Err(Never::Function);
            }
            let scope = self
                .scope(definition, &told.conditions, at)
                .unwrap_or(Scope::Whole);
            all.push(Access { subject, scope });
        }
        all.push(Access::whole(Subject::rights()));
        Ok(all)
    }

    /// What its result can show, whatever else it depends on; none where that is not known. It may read clocks and
    /// variables, but must run no code and name no table of unknown kind.
    pub(in crate::session) fn shows(
        &self,
        definitions: &Definitions,
    ) -> Option<SmallVec<[Access; 4]>> {
        let class = self.class;
        let is_known = class.functions.is_empty()
            && !class.tables.is_empty()
            && !(class.flags).intersects(Flags::TRUNCATED | Flags::WAITS | Flags::SYSTEM_SCHEMA);
        if !is_known {
            return None;
        }
        let mut told = Reads::default();
        reads(self.text, &self.lex, class, &mut told);
        let by_key = match told.unstable.map(|unstable| unstable.why) {
            None => true,
            Some(
                Why::Function
                | Why::TimeOfDay
                | Why::Variable
                | Why::FullText
                | Why::NoCache
                | Why::FoundRows
                | Why::Limits,
            ) => false,
            Some(_) => return None,
        };
        let mut all = SmallVec::new();
        for (at, table) in class.tables.iter().enumerate() {
            let subject = self.subject(table, definitions)?;
            let definition = definitions.table(&subject)?;
            let scope = by_key
                .then(|| self.scope(definition, &told.conditions, at))
                .flatten();
            let scope = scope.unwrap_or(Scope::Whole);
            all.push(Access { subject, scope });
        }
        all.push(Access::whole(Subject::rights()));
        Some(all)
    }

    /// Whether its result may be an old one. What asks about the session or the connection may not, nor what was not
    /// understood or has SQL_NO_CACHE.
    pub(super) fn may_be_old(&self) -> Result<(), Never> {
        let mut told = Reads::default();
        reads(self.text, &self.lex, self.class, &mut told);
        let why = told.unstable.map(|unstable| unstable.why);
        let is_old = |why: &Why| {
            matches!(
                why,
                Why::Function | Why::FullText | Why::TimeOfDay | Why::Sample | Why::PastRows
            )
        };
        match why.filter(|why| !is_old(why)) {
            Some(why) => return Err(never(why)),
            None if why.is_none() => return Ok(()),
            None => {}
        }
        let mut normalised = Vec::new();
        digest(self.text, &self.lex, &mut normalised);
        match asks_about_session(&normalised) {
            true => Err(Never::Function),
            false => Ok(()),
        }
    }

    pub(in crate::session) fn subject(
        &self,
        table: &TableRef,
        definitions: &Definitions,
    ) -> Option<Subject> {
        let unquoted = |span: millrace_sql::Span| unquote_ident(span.of(self.text)).into_owned();
        let schema = table
            .schema
            .map_or_else(|| self.database.to_vec(), unquoted);
        definitions.subject(&schema, &unquoted(table.name))
    }

    /// The keys of one of the statement's tables that all rows have which it can show; none where that is not known.
    pub(in crate::session) fn scope(
        &self,
        table: &Table,
        told: &Conditions,
        at: usize,
    ) -> Option<Scope> {
        let columns = table.primary_key.as_deref()?;
        let interval = match columns {
            [column] => self.interval(column, told, at)?,
            _ => Interval::point(self.point(columns, told, at)?),
        };
        Some(Scope::Within {
            index: PRIMARY,
            interval,
        })
    }

    /// The key that all columns of an index are compared with.
    fn point(&self, columns: &[KeyColumn], told: &Conditions, at: usize) -> Option<Key> {
        let mut key = Key::new();
        for column in columns {
            let mut conditions = told.on(at);
            let equal = |one: &&Condition| {
                is_on(one, column)
                    && matches!(
                        one.comparison,
                        Comparison::Equal | Comparison::NullSafeEqual
                    )
            };
            let condition = conditions.find(equal)?;
            let constant = told.constants(condition).first()?;
            key = match column.kind {
                KeyKind::Binary(_) => column.kind.push_bytes(key, &self.bytes(constant)?)?,
                kind => kind.push_integer(key, self.integer(constant)?)?,
            };
        }
        Some(key)
    }

    /// The keys between which all conditions leave one column of integers, or its one key.
    fn interval(&self, column: &KeyColumn, told: &Conditions, at: usize) -> Option<Interval> {
        let (least, most) = match column.kind {
            KeyKind::Binary(_) => {
                let key = self.point(std::slice::from_ref(column), told, at)?;
                return Some(Interval::point(key));
            }
            KeyKind::Signed(_) => (i128::from(i64::MIN), i128::from(i64::MAX)),
            KeyKind::Unsigned(_) => (0, i128::from(u64::MAX)),
        };
        let (mut lo, mut hi) = (least, most);
        for condition in told.on(at).filter(|one| is_on(one, column)) {
            let Some((from, to)) = self.bounds(condition, told, least, most) else {
                continue;
            };
            (lo, hi) = (lo.max(from), hi.min(to));
        }
        // Where no row can meet them all, any key will do; none of them is met by less.
        if lo > hi {
            (lo, hi) = (least, least);
        }
        if (lo, hi) == (least, most) {
            return None;
        }
        Some(Interval {
            lo: column.kind.push_integer(Key::new(), lo)?,
            hi: column.kind.push_integer(Key::new(), hi)?,
        })
    }

    /// Between which values a condition leaves a column, both included. None where it says nothing.
    fn bounds(
        &self,
        condition: &Condition,
        told: &Conditions,
        least: i128,
        most: i128,
    ) -> Option<(i128, i128)> {
        let constants = told.constants(condition);
        let mut values = SmallVec::<[i128; 4]>::new();
        for constant in constants {
            values.push(self.integer(constant)?);
        }
        let first = *values.first()?;
        let (from, to) = match condition.comparison {
            Comparison::Equal | Comparison::NullSafeEqual => (first, first),
            Comparison::Less | Comparison::LessOrEqual => (least, first),
            Comparison::Greater | Comparison::GreaterOrEqual => (first, most),
            Comparison::Between => (first, *values.get(1)?),
            Comparison::In => (*values.iter().min()?, *values.iter().max()?),
        };
        Some((from.clamp(least, most), to.clamp(least, most)))
    }

    pub(in crate::session) fn integer(&self, constant: &Constant) -> Option<i128> {
        match constant {
            Constant::Parameter(number) => *self.parameters.values.get(usize::from(*number))?,
            _ => constant.integer(constant.literal()?.span.of(self.text)),
        }
    }

    pub(in crate::session) fn bytes(&self, constant: &Constant) -> Option<SmallVec<[u8; 16]>> {
        if matches!(constant, Constant::Text(_)) && !self.strings_are_plain {
            return None;
        }
        constant.bytes(constant.literal()?.span.of(self.text))
    }
}

/// Functions about who asks, and those that are called for what they do.
const ABOUT_SESSION: &[&[u8]] = &[
    b"BENCHMARK",
    b"CURRENT_ROLE",
    b"CURRENT_USER",
    b"PS_CURRENT_THREAD_ID",
    b"PS_THREAD_ID",
    b"ROLES_GRAPHML",
    b"SESSION_USER",
    b"SLEEP",
    b"SYSTEM_USER",
    b"USER",
];

/// Whether a text calls one of them, or names one without parentheses.
fn asks_about_session(normalised: &[u8]) -> bool {
    let words = normalised.split(|byte| *byte == b' ');
    let mut words = words.map(<[u8]>::trim_ascii).peekable();
    while let Some(word) = words.next() {
        let name = word.strip_prefix(b"`").unwrap_or(word);
        let name = name.strip_suffix(b"`").unwrap_or(name);
        let is_called = words.peek().is_some_and(|next| next.starts_with(b"("));
        let is_bare = matches!(name, b"CURRENT_USER" | b"CURRENT_ROLE") && name == word;
        let is_listed = ABOUT_SESSION.iter().any(|it| name.eq_ignore_ascii_case(it));
        if is_listed && (is_called || is_bare) {
            return true;
        }
    }
    false
}

fn is_on(condition: &Condition, column: &KeyColumn) -> bool {
    condition.column[..] == column.name[..]
}

fn never(why: Why) -> Never {
    match why {
        Why::NotOneSelect => Never::NotASelect,
        Why::NotUnderstood | Why::Sample => Never::NotUnderstood,
        Why::Function | Why::FullText | Why::TimeOfDay | Why::Sequence | Why::PastRows => {
            Never::Function
        }
        Why::Variable => Never::Variables,
        Why::Into => Never::Into,
        Why::Locks => Never::LocksRows,
        Why::SystemSchema => Never::Table,
        Why::Procedure | Why::NoCache | Why::FoundRows | Why::Limits => Never::Forbidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(kinds: &[(&str, KeyKind)]) -> Table {
        let columns = kinds
            .iter()
            .enumerate()
            .map(|(position, (name, kind))| KeyColumn {
                name: name.as_bytes().into(),
                position: position as u16,
                kind: *kind,
                is_auto: false,
            });
        Table {
            columns: 5,
            primary_key: Some(columns.collect()),
            ..Table::default()
        }
    }

    fn scope(text: &str, kinds: &[(&str, KeyKind)], parameters: &[i128]) -> Option<Scope> {
        let mut class = Statement::default();
        let looked = Looked::of(text, &mut class, parameters);
        let mut told = Reads::default();
        reads(looked.text, &looked.lex, looked.class, &mut told);
        assert_eq!(told.unstable, None, "{text}");
        looked.scope(&table(kinds), &told.conditions, 0)
    }

    fn within(lo: i64, hi: i64) -> Option<Scope> {
        Some(Scope::Within {
            index: PRIMARY,
            interval: Interval {
                lo: Key::new().signed(lo),
                hi: Key::new().signed(hi),
            },
        })
    }

    #[test]
    fn keys_that_a_statement_names() {
        let id = [("id", KeyKind::Signed(4))];
        let cases = [
            ("SELECT v FROM t WHERE id = 5", within(5, 5)),
            ("SELECT v FROM t WHERE ID = -5 AND v = 'x'", within(-5, -5)),
            ("SELECT v FROM t WHERE id BETWEEN 2 AND 9", within(2, 9)),
            ("SELECT v FROM t WHERE id IN (7, 3, 5)", within(3, 7)),
            ("SELECT v FROM t WHERE id > 3 AND id <= 8", within(3, 8)),
            ("SELECT v FROM t WHERE id < 8", within(i64::MIN, 8)),
            (
                "SELECT v FROM t WHERE id = 3 AND id = 4",
                within(i64::MIN, i64::MIN),
            ),
            ("SELECT v FROM t WHERE id = '5'", None),
            ("SELECT v FROM t WHERE id = 5 OR v = 1", None),
            ("SELECT v FROM t WHERE id = 5.5", None),
            ("SELECT v FROM t", None),
        ];
        for (text, wanted) in cases {
            assert_eq!(scope(text, &id, &[]), wanted, "{text}");
        }
        assert_eq!(
            scope("SELECT v FROM t WHERE id = ?", &id, &[6]),
            within(6, 6)
        );
        assert_eq!(scope("SELECT v FROM t WHERE id = ?", &id, &[]), None);
    }

    #[test]
    fn what_may_be_old_asks_nothing_about_the_session() {
        for (text, wanted) in [
            ("SELECT a FROM t", Ok(())),
            ("SELECT NOW(), a FROM v WHERE d < CURRENT_DATE", Ok(())),
            ("SELECT user, `USER` FROM t ORDER BY RAND()", Ok(())),
            ("SELECT a FROM t WHERE MATCH(a) AGAINST('x')", Ok(())),
            ("SELECT NOW(), USER() FROM t", Err(Never::Function)),
            ("SELECT CURRENT_USER FROM t", Err(Never::Function)),
            ("SELECT session_user () FROM t", Err(Never::Function)),
            ("SELECT SLEEP(1) FROM t", Err(Never::Function)),
            ("SELECT SQL_NO_CACHE NOW() FROM t", Err(Never::Forbidden)),
            ("SELECT @a FROM t", Err(Never::Variables)),
            ("SELECT a FROM t; SELECT b FROM t", Err(Never::NotASelect)),
            ("SELECT a FROM t FOR UPDATE", Err(Never::LocksRows)),
        ] {
            let mut class = Statement::default();
            let looked = Looked::of(text, &mut class, &[]);
            assert_eq!(looked.may_be_old(), wanted, "{text}");
        }
    }

    #[test]
    fn keys_of_several_columns_are_named_whole() {
        let kinds = [("a", KeyKind::Unsigned(8)), ("b", KeyKind::Binary(3))];
        let key = Key::new().unsigned(7).bytes(b"xy", 3);
        let wanted = Some(Scope::Within {
            index: PRIMARY,
            interval: Interval::point(key),
        });
        assert_eq!(
            scope("SELECT 1 FROM t WHERE b = 'xy' AND a = 7", &kinds, &[]),
            wanted
        );
        assert_eq!(
            scope("SELECT 1 FROM t WHERE b = 0x7879 AND a = 7", &kinds, &[]),
            wanted
        );
        assert_eq!(scope("SELECT 1 FROM t WHERE a = 7", &kinds, &[]), None);
        assert_eq!(
            scope("SELECT 1 FROM t WHERE b = 'xy' AND a = -7", &kinds, &[]),
            None
        );
    }

    #[test]
    fn parameters_are_read_as_the_server_reads_them() {
        let types = [
            column_type::LONG,
            0,
            column_type::VAR_STRING,
            0,
            column_type::LONGLONG,
            UNSIGNED,
        ];
        let values = [
            &(-3_i32).to_le_bytes()[..],
            &[2, b'a', b'b'],
            &u64::MAX.to_le_bytes(),
        ]
        .concat();
        let told = read(3, &[0], &types, &values, false).unwrap();
        assert_eq!(
            told.values[..],
            [Some(-3), None, Some(i128::from(u64::MAX))]
        );
        let told = read(3, &[1], &types, &values[4..], false).unwrap();
        assert_eq!(told.values[..], [None, None, Some(i128::from(u64::MAX))]);
        assert!(read(3, &[0], &types, &values[..5], false).is_err());
        let time = [column_type::TIME, 0];
        assert!(read(1, &[0], &time, &[0], false).unwrap().has_time);
    }
}

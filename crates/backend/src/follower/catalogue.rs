//! What the follower has to know of tables to say what a transaction has changed: their definitions, what changes with
//! them through foreign keys, and which have triggers. A pure value, made of rows of the information schema.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use millrace_cache::{Definitions, KeyColumn, KeyKind, Rule, Subject, Table};

use crate::conn::Row;

/// Rows of the information schema; names as the server spells them.
#[derive(Debug, Default)]
pub(super) struct SchemaRows {
    /// Database and name of each base table of InnoDB.
    pub(super) tables: Vec<Row>,
    /// Database, table, how many columns it has, the place of the last, how many are of type TIME, how many may be
    /// another value each time, a hash of what they are.
    pub(super) columns: Vec<Row>,
    /// Columns that may be part of a primary key: database, table, name, place from 1, type, type with its attributes, bytes,
    /// what else it is.
    pub(super) key_columns: Vec<Row>,
    /// Primary keys, in their order: database, table, column, length of a prefix.
    pub(super) primary_keys: Vec<Row>,
    /// Foreign keys: child's database and name, parent's database and name, what an UPDATE does, what a DELETE.
    pub(super) foreign_keys: Vec<Row>,
    /// Database and name of each table with a trigger; none where the account does not see all of them.
    pub(super) triggers: Option<Vec<Row>>,
    /// lower_case_table_names is not 0.
    pub(super) lower: bool,
}

/// What tables are.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    pub(super) definitions: Arc<Definitions>,
    /// None: any may have one.
    triggered: Option<HashSet<Subject>>,
    /// What a DELETE changes of other tables.
    by_delete: Cascades,
    /// What an UPDATE changes of other tables.
    by_update: Cascades,
}

type Cascades = HashMap<Subject, Box<[Subject]>>;

/// What was done to rows, as far as foreign keys ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Deed {
    Delete,
    Update,
}

/// A foreign key, and what its child suffers from either; none where it suffers nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ForeignKey {
    child: Subject,
    on_delete: Option<Deed>,
    on_update: Option<Deed>,
}

/// Foreign keys by their parents.
type Edges = HashMap<Subject, Vec<ForeignKey>>;

impl Catalogue {
    /// Of what was read.
    pub(super) fn new(rows: &SchemaRows) -> Self {
        let names = Definitions::new(rows.lower, []);
        let subject = |row: &Row, at: usize| names.subject(cell(row, at), cell(row, at + 1));
        let mut tables: HashMap<Subject, Table> = rows
            .tables
            .iter()
            .filter_map(|row| Some((subject(row, 0)?, Table::default())))
            .collect();
        let mut edges = edges(rows, &subject);
        leave_out_unknown_children(&mut tables, rows, &edges, &subject);
        for row in &rows.columns {
            let Some(subject) = subject(row, 0) else {
                continue;
            };
            let is_some = |at| !matches!(cell(row, at), b"" | b"0");
            if is_some(5) {
                tables.remove(&subject);
            }
            let table = tables.get_mut(&subject);
            let table = table.map(|table| (table, is_some(4)));
            // Where columns are hidden, places are not those of the log.
            let Some((table, has_time)) = table else {
                continue;
            };
            table.has_time = has_time;
            table.shape = number(cell(row, 6)).unwrap_or(0);
            if cell(row, 2) == cell(row, 3) {
                table.columns = number(cell(row, 2)).unwrap_or(0);
            }
        }
        for (subject, key) in primary_keys(rows, &subject) {
            if let Some(table) = tables.get_mut(&subject)
                && table.columns > 0
            {
                table.primary_key = key;
            }
        }
        if Rule::Cascades.is_broken() {
            edges.clear();
        }
        let by_delete = closures(&edges, Deed::Delete);
        let by_update = closures(&edges, Deed::Update);
        let triggers = rows.triggers.as_ref();
        let triggered: Option<HashSet<Subject>> =
            triggers.map(|rows| rows.iter().filter_map(|row| subject(row, 0)).collect());
        let triggered = triggered.map(|found| match Rule::Triggers.is_broken() {
            true => HashSet::new(),
            false => found,
        });
        for (subject, table) in &mut tables {
            table.cascades = united(&by_delete, &by_update, subject);
            let triggered = triggered.as_ref();
            table.is_plain = triggered.is_some_and(|triggered| !triggered.contains(subject));
        }
        Self {
            triggered,
            by_delete,
            by_update,
            definitions: Arc::new(Definitions::new(rows.lower, tables)),
        }
    }

    /// Whether what a statement does to the table is all in its text, but for foreign keys.
    pub(super) fn is_plain(&self, subject: &Subject) -> bool {
        let triggered = self.triggered.as_ref();
        self.definitions.table(subject).is_some()
            && triggered.is_some_and(|triggered| !triggered.contains(subject))
    }

    /// Tables that change where rows of this one are deleted.
    pub(super) fn deleted_with(&self, subject: &Subject) -> &[Subject] {
        self.by_delete.get(subject).map_or(&[], |all| all)
    }

    /// Tables that change where rows of this one are updated.
    pub(super) fn updated_with(&self, subject: &Subject) -> &[Subject] {
        self.by_update.get(subject).map_or(&[], |all| all)
    }
}

fn cell(row: &Row, at: usize) -> &[u8] {
    row.get(at).and_then(Option::as_deref).unwrap_or_default()
}

fn number<N: std::str::FromStr>(text: &[u8]) -> Option<N> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A foreign key whose parent's name cannot be told has none here: its child is left out of the tables.
fn edges(rows: &SchemaRows, subject: &impl Fn(&Row, usize) -> Option<Subject>) -> Edges {
    let mut edges = Edges::new();
    for row in &rows.foreign_keys {
        let (Some(child), Some(parent)) = (subject(row, 0), subject(row, 2)) else {
            continue;
        };
        let deletes = cell(row, 5).eq_ignore_ascii_case(b"CASCADE");
        let on_delete = acts(cell(row, 5)).then_some(match deletes {
            true => Deed::Delete,
            false => Deed::Update,
        });
        edges.entry(parent).or_default().push(ForeignKey {
            child,
            on_delete,
            on_update: acts(cell(row, 4)).then_some(Deed::Update),
        });
    }
    edges
}

/// CASCADE, SET NULL and SET DEFAULT do something to the child.
fn acts(rule: &[u8]) -> bool {
    !rule.eq_ignore_ascii_case(b"RESTRICT") && !rule.eq_ignore_ascii_case(b"NO ACTION")
}

/// A parent that the account does not see may be a child of others, and nobody knows of which: what changes with it is
/// not known then.
fn leave_out_unknown_children(
    tables: &mut HashMap<Subject, Table>,
    rows: &SchemaRows,
    edges: &Edges,
    subject: &impl Fn(&Row, usize) -> Option<Subject>,
) {
    let mut unknown = Vec::new();
    for row in &rows.foreign_keys {
        let is_seen = |parent| tables.contains_key(&parent);
        if !acts(cell(row, 4)) && !acts(cell(row, 5)) || subject(row, 2).is_some_and(is_seen) {
            continue;
        }
        if let Some(child) = subject(row, 0) {
            unknown.extend(closure(edges, &child, Deed::Delete));
            unknown.extend(closure(edges, &child, Deed::Update));
            unknown.push(child);
        }
    }
    for subject in &unknown {
        tables.remove(subject);
    }
}

fn closures(edges: &Edges, deed: Deed) -> Cascades {
    edges
        .keys()
        .map(|parent| (parent.clone(), closure(edges, parent, deed).into()))
        .collect()
}

/// What changes where this is done to rows of `parent`, down to the last.
fn closure(edges: &Edges, parent: &Subject, deed: Deed) -> Vec<Subject> {
    let mut found = HashSet::new();
    let mut seen = HashSet::from([(parent, deed)]);
    let mut ahead = vec![(parent, deed)];
    while let Some((parent, deed)) = ahead.pop() {
        for key in edges.get(parent).into_iter().flatten() {
            let suffers = match deed {
                Deed::Delete => key.on_delete,
                Deed::Update => key.on_update,
            };
            let Some(suffers) = suffers else { continue };
            found.insert(&key.child);
            if seen.insert((&key.child, suffers)) {
                ahead.push((&key.child, suffers));
            }
        }
    }
    found.into_iter().cloned().collect()
}

fn united(by_delete: &Cascades, by_update: &Cascades, subject: &Subject) -> Box<[Subject]> {
    let of = |all: &Cascades| all.get(subject).cloned().unwrap_or_default();
    let mut both = [of(by_delete), of(by_update)].concat();
    both.sort_unstable();
    both.dedup();
    both.into()
}

/// Each table's primary key; none where a column is of another kind.
fn primary_keys(
    rows: &SchemaRows,
    subject: &impl Fn(&Row, usize) -> Option<Subject>,
) -> HashMap<Subject, Option<Box<[KeyColumn]>>> {
    let columns: HashMap<[&[u8]; 3], &Row> = rows
        .key_columns
        .iter()
        .map(|row| ([cell(row, 0), cell(row, 1), cell(row, 2)], row))
        .collect();
    let mut keys: HashMap<Subject, Option<Vec<KeyColumn>>> = HashMap::new();
    for row in &rows.primary_keys {
        let Some(subject) = subject(row, 0) else {
            continue;
        };
        let whole = cell(row, 3).is_empty();
        let named = [cell(row, 0), cell(row, 1), cell(row, 2)];
        let column = columns.get(&named).filter(|_| whole);
        let column = column.and_then(|row| key_column(row));
        let key = keys.entry(subject).or_insert_with(|| Some(Vec::new()));
        match (key.as_mut(), column) {
            (Some(key), Some(column)) => key.push(column),
            _ => *key = None,
        }
    }
    keys.into_iter()
        .map(|(subject, key)| (subject, key.map(Into::into)))
        .collect()
}

fn key_column(row: &Row) -> Option<KeyColumn> {
    let extra = cell(row, 7).to_ascii_uppercase();
    // It changes with other columns, and an image without it does not say that it has not changed.
    if extra.starts_with(b"VIRTUAL") || extra.starts_with(b"STORED") {
        return None;
    }
    let kind = cell(row, 4).to_ascii_lowercase();
    let is_unsigned = cell(row, 5).split(|byte| *byte == b' ');
    let is_unsigned = is_unsigned
        .skip(1)
        .any(|word| word.eq_ignore_ascii_case(b"unsigned"));
    let integer = |width| match is_unsigned {
        true => KeyKind::Unsigned(width),
        false => KeyKind::Signed(width),
    };
    Some(KeyColumn {
        name: cell(row, 2).to_ascii_lowercase().into(),
        position: number::<u16>(cell(row, 3))?.checked_sub(1)?,
        is_auto: extra
            .split(|byte| *byte == b' ')
            .any(|word| word == b"AUTO_INCREMENT"),
        kind: match &*kind {
            b"tinyint" => integer(1),
            b"smallint" => integer(2),
            b"mediumint" => integer(3),
            b"int" => integer(4),
            b"bigint" => integer(8),
            b"binary" => KeyKind::Binary(number(cell(row, 6))?),
            _ => return None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Vec<Row> {
        let cell = |word: &str| (word != "-").then(|| word.replace('_', " ").into_bytes());
        let row = |line: &str| line.split_whitespace().map(cell).collect();
        text.lines()
            .filter(|line| !line.trim().is_empty())
            .map(row)
            .collect()
    }

    fn of(name: &str) -> Subject {
        Subject::table(b"d", name.as_bytes())
    }

    fn catalogue(tables: &str, foreign_keys: &str) -> Catalogue {
        let tables: Vec<String> = tables.split(' ').map(|name| format!("d {name}")).collect();
        Catalogue::new(&SchemaRows {
            tables: rows(&tables.join("\n")),
            foreign_keys: rows(foreign_keys),
            ..SchemaRows::default()
        })
    }

    fn sorted(subjects: &[Subject]) -> Vec<Subject> {
        let mut subjects = subjects.to_vec();
        subjects.sort_unstable();
        subjects
    }

    #[test]
    fn foreign_keys_are_followed_to_the_last_child() {
        let catalogue = catalogue(
            "a b c e f",
            "d b d a NO_ACTION CASCADE
             d c d b NO_ACTION CASCADE
             d e d b CASCADE RESTRICT
             d f d c NO_ACTION SET_NULL
             d a d f NO_ACTION CASCADE",
        );
        assert_eq!(
            sorted(catalogue.deleted_with(&of("a"))),
            [of("b"), of("c"), of("f")]
        );
        assert_eq!(catalogue.updated_with(&of("a")), []);
        assert_eq!(catalogue.updated_with(&of("b")), [of("e")]);
        // A circle goes on through its first table.
        assert_eq!(
            sorted(catalogue.deleted_with(&of("f"))),
            [of("a"), of("b"), of("c"), of("f")]
        );
        let table = catalogue.definitions.table(&of("b"));
        let table = table.expect("it is one");
        assert_eq!(*table.cascades, [of("c"), of("e"), of("f")]);
    }

    #[test]
    fn what_changes_with_an_unseen_table_is_left_out() {
        let catalogue = catalogue(
            "b c e",
            "d b d hidden NO_ACTION CASCADE
             d c d b NO_ACTION CASCADE
             d e d hidden NO_ACTION RESTRICT",
        );
        let has = |name| catalogue.definitions.table(&of(name)).is_some();
        assert!(!has("b") && !has("c") && has("e"));
    }

    #[test]
    fn primary_keys_of_integers_and_bytes() {
        let catalogue = Catalogue::new(&SchemaRows {
            tables: rows("d a\nd b\nd c\nd e\nd f\nd g"),
            columns: rows("d a 3 3\nd b 2 2\nd c 2 2\nd e 2 3\nd f 2 2\nd g 2 2"),
            key_columns: rows(
                "d a id 3 bigint bigint_unsigned - -
                 d a n 1 smallint smallint(6) - auto_increment
                 d b id 1 binary binary(16) 16 DEFAULT_GENERATED
                 d c id 1 varchar varchar(9) 36 -
                 d e id 1 int int - -
                 d f id 1 binary binary(9) 9 -
                 d g id 1 int int - STORED_GENERATED",
            ),
            primary_keys: rows(
                "d a id -\nd a n -\nd b id -\nd c id -\nd e id -\nd f id 4\nd g id -",
            ),
            ..SchemaRows::default()
        });
        let key = |name| {
            let table = catalogue.definitions.table(&of(name));
            let key = table.and_then(|table| table.primary_key.as_deref())?;
            Some(key.iter().map(|c| (c.position, c.kind)).collect::<Vec<_>>())
        };
        assert_eq!(
            key("a"),
            Some(vec![(2, KeyKind::Unsigned(8)), (0, KeyKind::Signed(2))])
        );
        assert_eq!(key("b"), Some(vec![(0, KeyKind::Binary(16))]));
        // A text, a hidden column, a prefix, a generated column.
        assert_eq!(["c", "e", "f", "g"].map(key), [const { None }; 4]);
    }

    #[test]
    fn triggers_that_are_not_seen_may_be_anywhere() {
        let mut rows = SchemaRows {
            tables: rows("d a\nd b"),
            ..SchemaRows::default()
        };
        assert!(!Catalogue::new(&rows).is_plain(&of("a")));
        rows.triggers = Some(vec![vec![Some(b"d".to_vec()), Some(b"b".to_vec())]]);
        let catalogue = Catalogue::new(&rows);
        assert!(catalogue.is_plain(&of("a")));
        assert!(!catalogue.is_plain(&of("b")) && !catalogue.is_plain(&of("v")));
    }
}

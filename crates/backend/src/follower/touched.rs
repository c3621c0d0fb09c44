//! What the transaction that is being read has touched so far: tables, whole or by key. Keeps no row.

use millrace_cache::{IndexKeys, Key, PRIMARY, Subject, Touch};

use super::catalogue::Catalogue;

/// A transaction that changes more keys of a table counts for the whole of it.
const KEYS_MAX: usize = 1000;

/// A transaction that touches more tables counts as one of which nothing is known.
const TABLES_MAX: usize = 1024;

/// What was touched.
#[derive(Debug, Default)]
pub(super) struct Touched {
    tables: Vec<OfTable>,
    rights: bool,
    /// It may have changed anything.
    anything: bool,
}

#[derive(Debug)]
struct OfTable {
    subject: Subject,
    /// None: all of it.
    keys: Option<Vec<Key>>,
    /// It was mapped, and no rows of it have followed yet. MariaDB maps tables that a cascade may change, and
    /// logs no rows of them (observed on 10.11 and 11.8).
    is_without_rows: bool,
    has_deletes: bool,
    has_updates: bool,
}

/// What was done to rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    Inserted,
    Updated,
    Deleted,
    /// Any of them.
    Something,
}

impl Touched {
    /// Begins anew.
    pub(super) fn clear(&mut self) {
        self.tables.clear();
        (self.rights, self.anything) = (false, false);
    }

    /// It may have changed anything.
    pub(super) fn anything(&mut self) {
        self.anything = true;
    }

    /// It has changed what accounts may do.
    pub(super) fn rights(&mut self) {
        self.rights = true;
    }

    /// A table is mapped. Answers its place for what follows; none where there are too many.
    pub(super) fn map(&mut self, subject: &Subject) -> Option<usize> {
        let at = self.place(subject)?;
        let table = &mut self.tables[at];
        if std::mem::replace(&mut table.is_without_rows, true) {
            table.keys = None;
        }
        Some(at)
    }

    /// A table was changed as a whole.
    pub(super) fn whole(&mut self, subject: &Subject, done: Done) {
        if let Some(at) = self.place(subject) {
            self.note(at, done);
            self.tables[at].keys = None;
        }
    }

    /// Rows of the table at this place follow. Gives where their keys go; none where all of it counts.
    pub(super) fn rows(&mut self, at: usize, done: Done) -> Option<&mut Vec<Key>> {
        self.note(at, done);
        let table = self.tables.get_mut(at)?;
        table.is_without_rows = false;
        table.keys.as_mut()
    }

    /// Which rows were changed cannot be told, or they are too many: all of the table counts.
    pub(super) fn give_up(&mut self, at: usize) {
        if let Some(table) = self.tables.get_mut(at) {
            table.keys = None;
        }
    }

    /// Whether there is place for another key.
    pub(super) fn has_room(keys: &[Key]) -> bool {
        keys.len() < KEYS_MAX
    }

    fn place(&mut self, subject: &Subject) -> Option<usize> {
        let found = self.tables.iter().position(|of| of.subject == *subject);
        if found.is_some() {
            return found;
        }
        if self.tables.len() >= TABLES_MAX {
            self.anything = true;
            return None;
        }
        self.tables.push(OfTable {
            subject: subject.clone(),
            keys: Some(Vec::new()),
            is_without_rows: false,
            has_deletes: false,
            has_updates: false,
        });
        Some(self.tables.len() - 1)
    }

    fn note(&mut self, at: usize, done: Done) {
        if let Some(table) = self.tables.get_mut(at) {
            table.has_deletes |= matches!(done, Done::Deleted | Done::Something);
            table.has_updates |= matches!(done, Done::Updated | Done::Something);
        }
    }

    /// All of it, with what changes through foreign keys. `suspects`: tables that may change with any other, because it is
    /// not known what foreign keys they have now. None where anything may have changed.
    pub(super) fn finish(
        &mut self,
        catalogue: &Catalogue,
        suspects: &[Subject],
    ) -> Option<Vec<Touch>> {
        if std::mem::take(&mut self.anything) {
            self.clear();
            return None;
        }
        let mut whole: Vec<Subject> = Vec::new();
        for table in &mut self.tables {
            if table.is_without_rows {
                table.keys = None;
                (table.has_deletes, table.has_updates) = (true, true);
            }
            if table.has_deletes {
                whole.extend_from_slice(catalogue.deleted_with(&table.subject));
            }
            if table.has_updates {
                whole.extend_from_slice(catalogue.updated_with(&table.subject));
            }
        }
        if !self.tables.is_empty() {
            whole.extend_from_slice(suspects);
        }
        whole.sort_unstable();
        whole.dedup();
        let mut touches: Vec<Touch> = Vec::with_capacity(self.tables.len() + whole.len());
        touches.extend(
            self.tables
                .drain(..)
                .filter(|table| whole.binary_search(&table.subject).is_err())
                .map(OfTable::touch),
        );
        touches.extend(whole.into_iter().map(Touch::whole));
        if std::mem::take(&mut self.rights) {
            touches.push(Touch::whole(Subject::rights()));
        }
        Some(touches)
    }
}

impl OfTable {
    fn touch(self) -> Touch {
        let of_primary = |keys| {
            vec![IndexKeys {
                index: PRIMARY,
                keys,
            }]
        };
        Touch {
            subject: self.subject,
            keys: self.keys.map(of_primary),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Subject {
        Subject::table(b"d", name.as_bytes())
    }

    fn finished(touched: &mut Touched) -> Vec<Touch> {
        let all = touched.finish(&Catalogue::default(), &[]);
        all.expect("it is known")
    }

    #[test]
    fn a_table_that_is_mapped_without_rows_has_changed() {
        let mut touched = Touched::default();
        let at = touched.map(&of("a")).expect("there is place");
        touched.map(&of("b"));
        let keys = touched.rows(at, Done::Inserted).expect("by key");
        keys.push(Key::new().signed(1));
        let all = finished(&mut touched);
        assert_eq!(all.len(), 2);
        assert!(all[0].keys.is_some() && all[1].keys.is_none());
        // The same where rows had followed the first time.
        let at = touched.map(&of("a")).expect("there is place");
        touched.rows(at, Done::Updated);
        touched.map(&of("a"));
        assert_eq!(finished(&mut touched), [Touch::whole(of("a"))]);
        assert_eq!(finished(&mut touched), []);
    }

    #[test]
    fn suspects_change_with_any_table() {
        let mut touched = Touched::default();
        let suspects = [of("s")];
        let none = touched.finish(&Catalogue::default(), &suspects);
        assert_eq!(none, Some(Vec::new()));
        touched.whole(&of("a"), Done::Something);
        let all = touched.finish(&Catalogue::default(), &suspects);
        assert_eq!(
            all,
            Some(vec![Touch::whole(of("a")), Touch::whole(of("s"))])
        );
    }

    #[test]
    fn too_many_tables_are_anything() {
        let mut touched = Touched::default();
        for number in 0..=TABLES_MAX {
            touched.whole(&of(&number.to_string()), Done::Inserted);
        }
        assert_eq!(touched.finish(&Catalogue::default(), &[]), None);
        assert_eq!(finished(&mut touched), []);
    }
}

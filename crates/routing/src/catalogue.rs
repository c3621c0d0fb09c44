//! What stored functions, procedures and views make of a statement that looks harmless by its
//! text. A pure value, built from rows of the information schema; asks no server.
//!
//! Whatever cannot be seen (a body without the privilege to read it, a routine that is not
//! listed, another language) counts as writing. What the monitor's account should be granted so
//! that it sees everything: MySQL `SHOW_ROUTINE, SELECT, SHOW VIEW, TRIGGER ON *.*`, MariaDB
//! `SELECT, SHOW VIEW, TRIGGER ON *.*`.

mod body;
mod build;
mod names;

use std::collections::{HashMap, HashSet};

use millrace_sql::{Access, Flags, Kind, NameRef, Statement, TableUse};

use names::{Buffer, Name};

/// A row of text columns; none is NULL.
pub type Row = Vec<Option<Vec<u8>>>;

/// Session state that some trigger reads or changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TriggerEffects {
    /// LAST_INSERT_ID.
    pub last_insert_id: bool,
    /// User variables.
    pub user_variables: bool,
    /// A trigger's body could not be seen, or calls routines: it may do anything.
    pub unknown: bool,
}

/// What stored code may leave on the connection that ran it without a word from the server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leaves {
    /// User variables that were set, nobody knows which.
    pub user_variables: bool,
    /// User variables that may have been set, by name, without quotes.
    pub variables: Vec<Box<[u8]>>,
    /// Locks taken with GET_LOCK, by name, as SQL literals.
    pub locks: Vec<Box<str>>,
    /// Locks whose names are not known.
    pub unknown_locks: bool,
    /// Session variables, which the server tells with an OK only.
    pub session_variables: bool,
}

impl Leaves {
    /// What cannot be seen may leave anything.
    fn anything() -> Self {
        Leaves {
            user_variables: true,
            variables: Vec::new(),
            locks: Vec::new(),
            unknown_locks: true,
            session_variables: true,
        }
    }

    fn add_variable(&mut self, name: Box<[u8]>) {
        if !self.variables.contains(&name) {
            self.variables.push(name);
        }
    }

    fn add(&mut self, other: &Leaves) {
        self.user_variables |= other.user_variables;
        self.unknown_locks |= other.unknown_locks;
        self.session_variables |= other.session_variables;
        for name in &other.variables {
            self.add_variable(name.clone());
        }
        for lock in &other.locks {
            if !self.locks.contains(lock) {
                self.locks.push(lock.clone());
            }
        }
    }
}

/// Which stored routines only read, and which views do more than read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Catalogue {
    read_only_functions: HashSet<Name>,
    read_only_procedures: HashSet<Name>,
    unsafe_views: HashSet<Name>,
    /// Tables whose rows the cluster does not replicate: Galera's that are not InnoDB's.
    unreplicated: HashSet<Name>,
    /// Some unsafe view's name has other than ASCII letters, which a statement in another
    /// character set would spell with other bytes.
    unsafe_beyond_ascii: bool,
    triggers: TriggerEffects,
    function_leaves: HashMap<Name, Leaves>,
    procedure_leaves: HashMap<Name, Leaves>,
    /// By table.
    trigger_leaves: HashMap<Name, Leaves>,
    /// What each routine, view and table with triggers names in turn.
    leans_on: HashMap<Name, Vec<Name>>,
    /// All functions and views together: what a view may leave.
    any_function_leaves: Leaves,
}

impl Catalogue {
    /// What the triggers of all tables do to a session.
    pub fn triggers(&self) -> TriggerEffects {
        self.triggers
    }

    /// How many functions and procedures are known to only read, and how many views are not: for
    /// the log.
    pub fn counts(&self) -> (usize, usize, usize) {
        (
            self.read_only_functions.len(),
            self.read_only_procedures.len(),
            self.unsafe_views.len(),
        )
    }

    /// What the statement needs, its functions, views and procedure taken into account.
    /// `database` is the session's default database, empty where there is none.
    pub fn effective_access(&self, statement: &Statement, text: &[u8], database: &[u8]) -> Access {
        let access = self.access(statement, text, database);
        if access < Access::PrimaryRead && self.reads_unreplicated(statement, text, database) {
            return Access::PrimaryRead;
        }
        access
    }

    fn access(&self, statement: &Statement, text: &[u8], database: &[u8]) -> Access {
        let base = statement.access_if_calls_read;
        if base == Access::Write {
            let reads = self.is_read_only_call(statement, text, database);
            return if reads { Access::Read } else { Access::Write };
        }
        if self.only_reads(statement, text, database) {
            base
        } else {
            Access::Write
        }
    }

    /// Whether a statement reads rows that are on one server alone, by itself or by what it names.
    fn reads_unreplicated(&self, statement: &Statement, text: &[u8], database: &[u8]) -> bool {
        !self.unreplicated.is_empty()
            && self.names_any(statement, text, database, &|name| {
                self.unreplicated.contains(name)
            })
    }

    /// What the routines and triggers that the statement runs may leave on its connection.
    pub fn leaves(&self, statement: &Statement, text: &[u8], database: &[u8]) -> Leaves {
        let mut all = Leaves::default();
        let mut add = |map: &HashMap<Name, Leaves>, name: &NameRef| {
            all.add(get(map, name, text, database).unwrap_or(&Leaves::anything()));
        };
        for name in &statement.functions {
            add(&self.function_leaves, name);
        }
        if statement.kind == Kind::Call
            && let Some(name) = &statement.name
        {
            add(&self.procedure_leaves, name);
        }
        if self.unsafe_views.is_empty() && self.trigger_leaves.is_empty() {
            return all;
        }
        for table in &statement.tables {
            let name = NameRef {
                schema: table.schema,
                name: table.name,
            };
            if self.is_unsafe_view(&name, text, database) {
                all.add(&self.any_function_leaves);
            }
            if table.usage == TableUse::Write
                && let Some(leaves) = get(&self.trigger_leaves, &name, text, database)
            {
                all.add(leaves);
            }
        }
        all
    }

    /// The names that a definition of stored code touches, for [`Catalogue::names_any`]. A trigger stands for
    /// every table of its database: it is about what is written, and not looked up by its own name.
    pub fn touched(statement: &Statement, text: &[u8], database: &[u8]) -> Vec<Box<[u8]>> {
        let tables = statement.tables.iter();
        let defined = tables.filter(|table| table.usage == TableUse::Define);
        let defined = defined.map(|table| NameRef {
            schema: table.schema,
            name: table.name,
        });
        let names = defined.chain(statement.name);
        let mut names: Vec<Box<[u8]>> = names
            .map(|name| key(&name, text, database).into_vec().into())
            .collect();
        if statement.flags.contains(Flags::DEFINES_TRIGGER)
            && let Some(trigger) = statement.name
        {
            let schema = trigger.schema.map(|schema| schema.of(text));
            names.push(names::key(schema, b"", database).into_vec().into());
        }
        names
    }

    /// Whether a statement reads, writes or calls something that was touched, or that leans on such. `is` tells
    /// whether the name is one of those that [`Catalogue::touched`] gave.
    pub fn names_any(
        &self,
        statement: &Statement,
        text: &[u8],
        database: &[u8],
        is: &dyn Fn(&[u8]) -> bool,
    ) -> bool {
        let call = statement.name.filter(|_| statement.kind == Kind::Call);
        let mut routines = statement.functions.iter().chain(call.as_ref());
        routines.any(|name| self.leans_on_any(&key(name, text, database), is))
            || statement.tables.iter().any(|table| {
                let name = NameRef {
                    schema: table.schema,
                    name: table.name,
                };
                let schema = table.schema.map(|schema| schema.of(text));
                let may_fire = table.usage == TableUse::Write;
                self.leans_on_any(&key(&name, text, database), is)
                    || may_fire && is(&names::key(schema, b"", database))
            })
    }

    /// Whether `is` says so of a name or of what it leans on.
    fn leans_on_any(&self, name: &[u8], is: &dyn Fn(&[u8]) -> bool) -> bool {
        if is(name) {
            return true;
        }
        let mut seen: HashSet<&[u8]> = HashSet::new();
        let mut next: Vec<&[u8]> = vec![name];
        while let Some(name) = next.pop() {
            for other in self.leans_on.get(name).into_iter().flatten() {
                if seen.insert(other) {
                    if is(other) {
                        return true;
                    }
                    next.push(other);
                }
            }
        }
        false
    }

    /// Its functions are known to only read, and none of its tables is an unsafe view.
    fn only_reads(&self, statement: &Statement, text: &[u8], database: &[u8]) -> bool {
        if statement.functions.is_empty() && self.unsafe_views.is_empty() {
            return true;
        }
        !statement.flags.contains(Flags::TRUNCATED)
            && self.functions_only_read(statement, text, database)
            && !statement.tables.iter().any(|table| {
                let name = NameRef {
                    schema: table.schema,
                    name: table.name,
                };
                self.is_unsafe_view(&name, text, database)
            })
    }

    fn functions_only_read(&self, statement: &Statement, text: &[u8], database: &[u8]) -> bool {
        let mut functions = statement.functions.iter();
        functions.all(|name| contains(&self.read_only_functions, name, text, database))
    }

    fn is_unsafe_view(&self, name: &NameRef, text: &[u8], database: &[u8]) -> bool {
        if self.unsafe_views.is_empty() {
            return false;
        }
        let other_letters = self.unsafe_beyond_ascii && !name.name.of(text).is_ascii();
        other_letters || contains(&self.unsafe_views, name, text, database)
    }

    /// A CALL of a procedure that is known to only read, with nothing else about it.
    fn is_read_only_call(&self, statement: &Statement, text: &[u8], database: &[u8]) -> bool {
        let touches = Flags::ASSIGNS_USER_VARS
            | Flags::READS_USER_VARS
            | Flags::TRUNCATED
            | Flags::COMPOUND_QUERY
            | body::SESSION_FLAGS;
        statement.kind == Kind::Call
            && !statement.flags.intersects(touches)
            && statement.tables.is_empty()
            && self.functions_only_read(statement, text, database)
            && statement
                .name
                .as_ref()
                .is_some_and(|name| contains(&self.read_only_procedures, name, text, database))
    }
}

fn contains(names: &HashSet<Name>, name: &NameRef, text: &[u8], database: &[u8]) -> bool {
    if names.is_empty() {
        return false;
    }
    names.contains(&key(name, text, database)[..])
}

fn get<'m>(
    map: &'m HashMap<Name, Leaves>,
    name: &NameRef,
    text: &[u8],
    database: &[u8],
) -> Option<&'m Leaves> {
    map.get(&key(name, text, database)[..])
}

fn key(name: &NameRef, text: &[u8], database: &[u8]) -> Buffer {
    let schema = name.schema.map(|schema| schema.of(text));
    names::key(schema, name.name.of(text), database)
}

#[cfg(test)]
mod tests;

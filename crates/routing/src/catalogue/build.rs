//! Builds the catalogue: judges each routine and view by itself, then withdraws whatever leans on
//! something that is not known to only read, until nothing changes. Looks nothing up later.

use std::collections::{HashMap, HashSet};

use millrace_sql::{Access, Flags, LexMode, Statement, classify};
use millrace_topology::Family;

use super::body::{self, Body, Reference, SESSION_FLAGS};
use super::names::{self, Name};
use super::{Catalogue, Leaves, Row, TriggerEffects};

impl Catalogue {
    /// The statements that read a family's stored routines, views and triggers, in this order; and, in a cluster of
    /// Galera, the tables whose rows it does not replicate.
    pub fn queries(family: Family) -> [&'static str; 4] {
        queries(family)
    }

    /// Judges the rows of the [`Catalogue::queries`]. `version` is the server's number
    /// (90704, 101119). Rows that are shorter than they should be are left out.
    pub fn from_rows(family: Family, version: u32, rows: &[Vec<Row>; 4]) -> Self {
        build(family, version, rows)
    }
}

/// The columns are read by position below.
fn queries(_family: Family) -> [&'static str; 4] {
    // The same in both families; their own schemas hold nothing that an application calls
    // without naming the schema, which then counts as unknown.
    [
        "SELECT ROUTINE_SCHEMA, ROUTINE_NAME, ROUTINE_TYPE, SQL_DATA_ACCESS, ROUTINE_BODY, \
         ROUTINE_DEFINITION, SQL_MODE FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA \
         NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema')",
        "SELECT TABLE_SCHEMA, TABLE_NAME, VIEW_DEFINITION FROM information_schema.VIEWS WHERE \
         TABLE_SCHEMA NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema')",
        "SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE, ACTION_STATEMENT, SQL_MODE FROM \
         information_schema.TRIGGERS WHERE TRIGGER_SCHEMA NOT IN ('mysql', 'sys')",
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE' \
         AND ENGINE <> 'InnoDB' AND TABLE_SCHEMA NOT IN ('mysql', 'sys', 'information_schema', \
         'performance_schema')",
    ]
}

/// What a routine or view leans on.
#[derive(Debug, Default)]
struct Needs {
    functions: Vec<Name>,
    procedures: Vec<Name>,
    /// Tables and views; for a routine, every name in its body.
    tables: Vec<Name>,
}

/// Routines that only read if what they lean on does, and views in the same way.
#[derive(Debug, Default)]
struct Draft {
    functions: HashMap<Name, Needs>,
    procedures: HashMap<Name, Needs>,
    views: HashMap<Name, Needs>,
    unsafe_views: HashSet<Name>,
    /// What each routine leaves, and what it calls.
    function_leaves: HashMap<Name, Left>,
    procedure_leaves: HashMap<Name, Left>,
    /// By table.
    trigger_leaves: HashMap<Name, Left>,
    /// The locks of all views together.
    view_leaves: Leaves,
    /// What each routine, view and table with triggers names in turn.
    leans_on: HashMap<Name, Vec<Name>>,
}

/// What a body leaves by itself, and the routines that add theirs.
#[derive(Debug, Default)]
struct Left {
    own: Leaves,
    functions: Vec<Name>,
    procedures: Vec<Name>,
}

fn build(family: Family, version: u32, rows: &[Vec<Row>; 4]) -> Catalogue {
    let [routines, views, triggers, unreplicated] = rows;
    let mut reader = Reader {
        mode: lex_mode(family, version),
        statement: Statement::default(),
        builtins: HashMap::new(),
    };
    let mut draft = Draft::default();
    for row in routines {
        reader.routine(row, &mut draft);
    }
    for row in views {
        reader.view(row, &mut draft);
    }
    while draft.withdraw() {}
    let effects = triggers.iter().fold(TriggerEffects::default(), |all, row| {
        reader.trigger(row, &mut draft, all)
    });
    while draft.add_leaves() {}
    let mut catalogue = draft.finish(effects);
    let name = |row: &Row| names::name(column(row, 0), column(row, 1));
    catalogue.unreplicated = unreplicated.iter().map(name).collect();
    catalogue
}

fn lex_mode(family: Family, version: u32) -> LexMode {
    LexMode::new(family, version)
}

fn column(row: &Row, at: usize) -> &[u8] {
    row.get(at).and_then(Option::as_deref).unwrap_or_default()
}

/// A `sql_mode` under which a body's text means something else to `body`.
fn reads_differently(sql_mode: &[u8]) -> bool {
    const MODES: [&[u8]; 3] = [b"ANSI_QUOTES", b"NO_BACKSLASH_ESCAPES", b"ORACLE"];
    sql_mode.split(|byte| *byte == b',').any(|mode| {
        MODES
            .iter()
            .any(|m| m.eq_ignore_ascii_case(mode.trim_ascii()))
    })
}

struct Reader {
    mode: LexMode,
    statement: Statement,
    /// Built-in functions seen so far, and whether they leave the session alone.
    builtins: HashMap<Vec<u8>, Option<bool>>,
}

impl Reader {
    fn routine(&mut self, row: &Row, draft: &mut Draft) {
        let (schema, name) = (column(row, 0), column(row, 1));
        let (kind, access, language) = (column(row, 2), column(row, 3), column(row, 4));
        let (text, sql_mode) = (column(row, 5), column(row, 6));
        let left = self.left(text, schema, language == b"SQL", sql_mode);
        draft.lean(names::name(schema, name), &left, text, schema);
        let lists = match kind {
            b"FUNCTION" => &mut draft.function_leaves,
            _ => &mut draft.procedure_leaves,
        };
        lists.insert(names::name(schema, name), left);
        if text.is_empty() || language != b"SQL" || reads_differently(sql_mode) {
            return;
        }
        let body = body::read(text);
        let declared = match access {
            b"READS SQL DATA" | b"NO SQL" => true,
            // The default, which says nothing: believed where there is no SELECT to doubt it.
            b"CONTAINS SQL" => !body.selects,
            _ => false,
        };
        if body.hazard || !declared {
            return;
        }
        let Some(needs) = self.needs(&body, schema) else {
            return;
        };
        let list = match kind {
            b"FUNCTION" => &mut draft.functions,
            b"PROCEDURE" => &mut draft.procedures,
            _ => return,
        };
        list.insert(names::name(schema, name), needs);
    }

    /// What a body leaves on the connection.
    fn left(&mut self, text: &[u8], schema: &[u8], is_sql: bool, sql_mode: &[u8]) -> Left {
        if text.is_empty() || !is_sql || reads_differently(sql_mode) {
            return Left {
                own: Leaves::anything(),
                ..Left::default()
            };
        }
        let body = body::read(text);
        let key = |r: &Reference<'_>| names::written(r.schema, r.name, schema);
        let is_lock = |call: &Reference<'_>| call.name.eq_ignore_ascii_case(b"get_lock");
        let mut left = Left {
            own: Leaves {
                user_variables: body.sets_unknown || body.dynamic || body.leaves_more,
                variables: Vec::new(),
                unknown_locks: body.dynamic,
                locks: Vec::new(),
                session_variables: body.sets_session,
            },
            functions: Vec::new(),
            procedures: body.procedures.iter().map(key).collect(),
        };
        for name in &body.sets {
            left.own.add_variable(names::plain(name));
        }
        if body.functions.iter().any(is_lock) {
            let named = millrace_sql::lock_names(text, &mut left.own.locks);
            left.own.unknown_locks |= !named;
        }
        for call in &body.functions {
            if self.builtin(call).is_none() {
                left.functions.push(key(call));
            }
        }
        left
    }

    /// What a body leans on; none where it calls a built-in function that does more than read.
    fn needs(&mut self, body: &Body<'_>, schema: &[u8]) -> Option<Needs> {
        let key = |r: &Reference<'_>| names::written(r.schema, r.name, schema);
        let mut needs = Needs::default();
        for function in &body.functions {
            match self.builtin(function) {
                Some(true) => {}
                Some(false) => return None,
                None => needs.functions.push(key(function)),
            }
        }
        needs.procedures.extend(body.procedures.iter().map(key));
        needs.tables.extend(body.names.iter().map(key));
        Some(needs)
    }

    /// Whether a call is of a built-in function, and if so whether it leaves the session alone.
    fn builtin(&mut self, call: &Reference<'_>) -> Option<bool> {
        if call.schema.is_some() || call.name.first() == Some(&b'`') {
            return None;
        }
        let name = call.name.to_ascii_lowercase();
        if let Some(known) = self.builtins.get(&name) {
            return *known;
        }
        let text = [b"SELECT ", &name[..], b"()"].concat();
        classify(&text, &self.mode, &mut self.statement);
        let statement = &self.statement;
        let answer = statement.functions.is_empty().then(|| {
            statement.access == Access::Read && !statement.flags.intersects(SESSION_FLAGS)
        });
        self.builtins.insert(name, answer);
        answer
    }

    fn view(&mut self, row: &Row, draft: &mut Draft) {
        let (schema, text) = (column(row, 0), column(row, 2));
        let name = names::name(schema, column(row, 1));
        // The server prints a view's definition in its own words, with backticks, whatever the
        // sql_mode. Without the privilege to see it, it is empty.
        classify(text, &self.mode, &mut self.statement);
        let statement = &self.statement;
        if statement.flags.contains(Flags::ACQUIRES_USER_LOCK) {
            let leaves = &mut draft.view_leaves;
            leaves.unknown_locks |= !millrace_sql::lock_names(text, &mut leaves.locks);
        }
        let session = SESSION_FLAGS | Flags::TRUNCATED | Flags::READS_USER_VARS;
        if text.is_empty()
            || statement.access_if_calls_read != Access::Read
            || statement.flags.intersects(session)
        {
            draft.unsafe_views.insert(name);
            return;
        }
        let needs = Needs {
            functions: statement
                .functions
                .iter()
                .map(|f| names::written(f.schema.map(|s| s.of(text)), f.name.of(text), schema))
                .collect(),
            procedures: Vec::new(),
            tables: statement
                .tables
                .iter()
                .map(|t| names::written(t.schema.map(|s| s.of(text)), t.name.of(text), schema))
                .collect(),
        };
        let leans_on = draft.leans_on.entry(name.clone()).or_default();
        leans_on.extend(needs.functions.iter().chain(&needs.tables).cloned());
        draft.views.insert(name, needs);
    }

    fn trigger(&mut self, row: &Row, draft: &mut Draft, mut all: TriggerEffects) -> TriggerEffects {
        let (text, sql_mode) = (column(row, 2), column(row, 3));
        let schema = column(row, 0);
        let left = self.left(text, schema, true, sql_mode);
        draft.lean(names::name(schema, column(row, 1)), &left, text, schema);
        let table = draft
            .trigger_leaves
            .entry(names::name(schema, column(row, 1)));
        table.or_default().add(left);
        let body = body::read(text);
        let lower = text.to_ascii_lowercase();
        let mentions = |word: &[u8]| lower.windows(word.len()).any(|part| part == word);
        all.last_insert_id |= mentions(b"last_insert_id") || mentions(b"@@identity");
        all.user_variables |= body.user_variables;
        all.unknown |= text.is_empty()
            || reads_differently(sql_mode)
            || !body.procedures.is_empty()
            || body.functions.iter().any(|f| self.builtin(f).is_none());
        all
    }
}

impl Draft {
    /// Notes what a body names.
    fn lean(&mut self, name: Name, left: &Left, text: &[u8], schema: &[u8]) {
        let leans_on = self.leans_on.entry(name).or_default();
        leans_on.extend(left.functions.iter().chain(&left.procedures).cloned());
        let body = body::read(text);
        let named = body.names.iter();
        leans_on.extend(named.map(|name| names::written(name.schema, name.name, schema)));
    }

    /// Withdraws what leans on something that is not known to only read. True where there was
    /// something.
    fn withdraw(&mut self) -> bool {
        let (functions, procedures) = (keys(&self.functions), keys(&self.procedures));
        let unsafe_views = self.unsafe_views.clone();
        let stands = |needs: &Needs| {
            needs.functions.iter().all(|name| functions.contains(name))
                && needs
                    .procedures
                    .iter()
                    .all(|name| procedures.contains(name))
                && !needs.tables.iter().any(|name| unsafe_views.contains(name))
        };
        let before = (
            self.functions.len(),
            self.procedures.len(),
            self.views.len(),
        );
        self.functions.retain(|_, needs| stands(needs));
        self.procedures.retain(|_, needs| stands(needs));
        self.views.retain(|name, needs| {
            let stays = stands(needs);
            if !stays {
                self.unsafe_views.insert(name.clone());
            }
            stays
        });
        before
            != (
                self.functions.len(),
                self.procedures.len(),
                self.views.len(),
            )
    }

    /// Adds to what each body leaves what the routines leave that it calls. True where there was
    /// something to add.
    fn add_leaves(&mut self) -> bool {
        let own = |map: &HashMap<Name, Left>| -> HashMap<Name, Leaves> {
            map.iter()
                .map(|(name, left)| (name.clone(), left.own.clone()))
                .collect()
        };
        let (functions, procedures) = (own(&self.function_leaves), own(&self.procedure_leaves));
        let mut changed = false;
        let bodies = self
            .function_leaves
            .values_mut()
            .chain(self.procedure_leaves.values_mut())
            .chain(self.trigger_leaves.values_mut());
        for left in bodies {
            let before = left.own.clone();
            let called = left.functions.iter().map(|name| functions.get(name));
            let called = called.chain(left.procedures.iter().map(|name| procedures.get(name)));
            for leaves in called {
                // Who is not listed may do anything.
                left.own.add(leaves.unwrap_or(&Leaves::anything()));
            }
            changed |= left.own != before;
        }
        changed
    }

    fn finish(self, triggers: TriggerEffects) -> Catalogue {
        let own = |map: HashMap<Name, Left>| -> HashMap<Name, Leaves> {
            map.into_iter()
                .map(|(name, left)| (name, left.own))
                .collect()
        };
        let (functions, procedures) = (own(self.function_leaves), own(self.procedure_leaves));
        let mut any = self.view_leaves;
        functions.values().for_each(|leaves| any.add(leaves));
        Catalogue {
            any_function_leaves: any,
            function_leaves: functions,
            procedure_leaves: procedures,
            trigger_leaves: own(self.trigger_leaves),
            unsafe_beyond_ascii: self.unsafe_views.iter().any(|name| !name.is_ascii()),
            read_only_functions: self.functions.into_keys().collect(),
            read_only_procedures: self.procedures.into_keys().collect(),
            unsafe_views: self.unsafe_views,
            unreplicated: HashSet::new(),
            leans_on: self.leans_on,
            triggers,
        }
    }
}

impl Left {
    fn add(&mut self, other: Left) {
        self.own.add(&other.own);
        self.functions.extend(other.functions);
        self.procedures.extend(other.procedures);
    }
}

fn keys(map: &HashMap<Name, Needs>) -> HashSet<Name> {
    map.keys().cloned().collect()
}

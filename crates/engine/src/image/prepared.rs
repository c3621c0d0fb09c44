//! A client's prepared statements: its own numbers, independent of any server connection.

use std::rc::Rc;

use millrace_base::ById;
use millrace_sql::Statement;

use crate::state::SessionState;

/// A statement's identity within a worker: text and everything it was prepared under.
pub type StatementUid = u64;

/// One prepared statement.
#[derive(Debug)]
pub struct ClientStatement {
    /// Its identity on server connections.
    pub uid: StatementUid,
    /// Whether clients that prepared the same share it. It is then another statement for other
    /// parameter types: MySQL derives a result's types from those of the first execution.
    pub shared: bool,
    /// Of a shared one: what all that were prepared alike are until they are executed. A connection that
    /// has that need not prepare it anew.
    pub unused: Option<StatementUid>,
    /// As the client sent it.
    pub text: Rc<[u8]>,
    /// What the text is.
    pub class: Rc<Statement>,
    /// What was set when it was prepared; decides what the text means.
    pub context: Rc<SessionState>,
    /// Parameter markers.
    pub params: u16,
    /// The parameter types last sent, for executions that leave them out.
    pub types: Box<[u8]>,
    /// Counts their changes.
    pub types_changed: u32,
    /// Long data for the next execution: parameter and bytes.
    pub long_data: Vec<(u16, Vec<u8>)>,
    /// Some of it was for a parameter that does not exist: the next execution fails.
    pub bad_long_data: bool,
    /// A cursor is open on the leased connection.
    pub cursor: bool,
    /// What the cursor is open on had answers in place of its questions: the next execution asks anew.
    pub answered: bool,
}

/// What makes two clients' statements one: to be told apart by nothing that a server looks at.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct StatementKey {
    /// As the client sent it.
    pub text: Rc<[u8]>,
    /// What was set when it was prepared.
    pub(super) context: Rc<SessionState>,
    /// The parameters' types as sent; empty where there are none, or before the first execution.
    pub(super) types: Box<[u8]>,
}

/// What all statements of a key have in common.
#[derive(Debug)]
pub struct SharedStatement {
    /// Their identity on server connections.
    pub uid: StatementUid,
    /// What their text is.
    pub class: Rc<Statement>,
}

impl ClientStatement {
    /// Whether its text would mean under this state what it meant when it was prepared.
    pub fn means_the_same(&self, state: &SessionState) -> bool {
        const MEANINGS: [&str; 3] = ["sql_mode", "character_set_client", "collation_connection"];
        let is_same = |name: &&str| self.context.effective(name) == state.effective(name);
        std::ptr::eq(&*self.context, state) || MEANINGS.iter().all(is_same)
    }

    /// Tells parameter types of one identity apart; never 0. Those of a shared statement are part of its
    /// identity.
    pub fn types_version(&self) -> u32 {
        if self.shared {
            u32::MAX
        } else {
            self.types_changed % u32::MAX + 1
        }
    }

    /// Its key with the parameter types sent last.
    pub fn key(&self) -> StatementKey {
        StatementKey {
            text: self.text.clone(),
            context: self.context.clone(),
            types: self.types.clone(),
        }
    }
}

/// A number that no client is given.
pub const TEMPORARY: u32 = 0;

/// A session's prepared statements.
#[derive(Debug, Default)]
pub struct Statements {
    held: ById<u32, Box<ClientStatement>>,
    last_id: u32,
    /// Whether all ones name the statement prepared last: MariaDB's way alone.
    names_last: bool,
    /// Bytes of long data kept.
    pub long_data: usize,
}

impl Statements {
    pub(super) fn new(names_last: bool) -> Self {
        Statements {
            names_last,
            ..Statements::default()
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether any has an open cursor.
    pub fn has_cursor(&self) -> bool {
        self.with_cursor().next().is_some()
    }

    /// The identities of those that have an open cursor: they live on the kept connection only.
    pub fn with_cursor(&self) -> impl Iterator<Item = StatementUid> {
        let open = self.held.values().filter(|statement| statement.cursor);
        open.map(|statement| statement.uid)
    }

    /// The number that the next statement will get.
    pub fn next_id(&mut self) -> u32 {
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            // 0 and the highest are no numbers: MariaDB's "last prepared" is the latter.
            if self.last_id != 0
                && self.last_id != u32::MAX
                && !self.held.contains_key(&self.last_id)
            {
                return self.last_id;
            }
        }
    }

    /// Adds a statement under its number.
    pub fn add(&mut self, id: u32, statement: ClientStatement) {
        self.held.insert(id, Box::new(statement));
    }

    /// Adds a copy of a statement under [`TEMPORARY`], for one execution of another text. It takes the
    /// long data with it.
    pub fn add_temporary(
        &mut self,
        id: u32,
        uid: StatementUid,
        text: &Rc<[u8]>,
        class: &Rc<Statement>,
    ) {
        let Some(asking) = self.get_mut(id) else {
            return;
        };
        let copy = ClientStatement {
            uid,
            shared: false,
            unused: None,
            text: text.clone(),
            class: class.clone(),
            context: asking.context.clone(),
            params: asking.params,
            types: asking.types.clone(),
            types_changed: 0,
            long_data: std::mem::take(&mut asking.long_data),
            bad_long_data: false,
            cursor: false,
            answered: false,
        };
        self.add(TEMPORARY, copy);
    }

    /// The statement with this number.
    pub fn get(&self, id: u32) -> Option<&ClientStatement> {
        self.held.get(&self.real(id)).map(|held| &**held)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut ClientStatement> {
        let id = self.real(id);
        self.held.get_mut(&id).map(|held| &mut **held)
    }

    /// MariaDB's clients may name the statement prepared last by all ones.
    pub fn real(&self, id: u32) -> u32 {
        if id == u32::MAX && self.names_last {
            self.last_id
        } else {
            id
        }
    }

    /// Takes out the statement with this number.
    pub fn remove(&mut self, id: u32) -> Option<Box<ClientStatement>> {
        let removed = self.held.remove(&self.real(id));
        if let Some(statement) = &removed {
            let bytes: usize = statement.long_data.iter().map(|(_, data)| data.len()).sum();
            self.long_data -= bytes;
        }
        removed
    }

    /// Forgets a statement's long data.
    pub fn clear_long_data(&mut self, id: u32) {
        let id = self.real(id);
        if let Some(statement) = self.held.get_mut(&id) {
            let bytes: usize = statement.long_data.iter().map(|(_, data)| data.len()).sum();
            statement.long_data.clear();
            self.long_data -= bytes;
        }
    }

    pub(super) fn clear(&mut self) {
        self.held.clear();
        self.long_data = 0;
    }
}

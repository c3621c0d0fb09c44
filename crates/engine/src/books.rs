//! What a connection remembers of the sessions that have used it: whose last statement it ran, what that
//! session may still ask about it, and whose variables it holds. Only verbs change it, so that every
//! reader of "is this mine?" asks the same question. Never talks to a server.

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use millrace_topology::ServerId;

/// Identifies a session within the process; 0 is nobody.
pub type SessionUid = u64;

/// Where a statement ran, and its number among its session's statements.
pub type StatementAt = (ServerId, u64);

/// Level, code and text, as SHOW WARNINGS tells them.
pub type Message = [Box<[u8]>; 3];

/// LAST_INSERT_ID() of a connection that nobody's was left on: no table generates it. InnoDB
/// refuses with error 1467 (observed), and an explicit value leaves LAST_INSERT_ID() alone.
pub const BLANK_ID: u64 = u64::MAX;

/// What a connection remembers of its last statement, and another session must save before it uses the
/// connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unread {
    /// LAST_INSERT_ID() may have changed to something that is not known.
    pub insert_id: bool,
    /// There are warnings or an error to show.
    pub diagnostics: bool,
    /// FOUND_ROWS() is not the number of rows sent (SQL_CALC_FOUND_ROWS).
    pub found_rows: bool,
}

impl Unread {
    /// Nothing that would be lost.
    pub fn is_empty(self) -> bool {
        self == Unread::default()
    }
}

/// What a session may still ask about a statement after another has used the connection.
#[derive(Debug, Clone, Default)]
pub struct SavedDiagnostics {
    /// Which of the session's statements this is about.
    pub seq: u64,
    /// LAST_INSERT_ID(), where it was read.
    pub last_insert_id: Option<u64>,
    /// FOUND_ROWS(), where it was read.
    pub found_rows: Option<u64>,
    /// The rows of SHOW WARNINGS: level, code, message.
    pub warnings: Option<Vec<Message>>,
}

/// Where a session finds what was saved for it, and sees that something is being saved. What was
/// saved of different statements, on different connections, stands side by side.
#[derive(Debug, Default)]
pub struct DiagnosticsStore {
    saved: RefCell<Vec<SavedDiagnostics>>,
    saving: Cell<u32>,
    waker: RefCell<Option<Waker>>,
}

/// As long as it lives, something is being saved.
#[derive(Debug)]
pub struct Saving(Rc<DiagnosticsStore>);

impl DiagnosticsStore {
    /// What was saved of the session's statement `seq`.
    pub fn find(&self, seq: u64) -> Option<Ref<'_, SavedDiagnostics>> {
        Ref::filter_map(self.saved.borrow(), |saved| {
            saved.iter().find(|saved| saved.seq == seq)
        })
        .ok()
    }

    /// What was saved of the session's statement `seq`, to add to it.
    pub fn keep(&self, seq: u64) -> RefMut<'_, SavedDiagnostics> {
        RefMut::map(self.saved.borrow_mut(), |saved| {
            let at = saved.iter().position(|saved| saved.seq == seq);
            let at = at.unwrap_or_else(|| {
                saved.push(SavedDiagnostics {
                    seq,
                    ..SavedDiagnostics::default()
                });
                saved.len() - 1
            });
            &mut saved[at]
        })
    }

    /// Forgets what was saved of statements that `wanted` does not name.
    pub fn retain(&self, mut wanted: impl FnMut(u64) -> bool) {
        self.saved.borrow_mut().retain(|saved| wanted(saved.seq));
    }

    /// Something is about to be saved: its owner waits for that before it asks.
    pub fn begin(self: &Rc<Self>) -> Saving {
        self.saving.set(self.saving.get() + 1);
        Saving(self.clone())
    }

    /// Whether something is being saved.
    pub fn is_saving(&self) -> bool {
        self.saving.get() > 0
    }

    /// Done when nothing is being saved.
    pub fn poll_saved(&self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_saving() {
            return Poll::Ready(());
        }
        *self.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        self.0.saving.set(self.0.saving.get() - 1);
        if let Some(waker) = self.0.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

/// One connection's books. A statement is known by its session and that session's count of statements.
#[derive(Debug)]
pub struct Books {
    /// The connection's server.
    server: ServerId,
    /// The session that used the connection last.
    user: SessionUid,
    /// Which of its statements the connection ran last; 0: none that it can ask about.
    seq: u64,
    unread: Unread,
    /// Where that session finds what is saved for it.
    store: Option<Rc<DiagnosticsStore>>,
    /// The connection is on its way to another session, which will save that first.
    saving: Option<Saving>,
    /// LAST_INSERT_ID(), where that is known.
    insert_id: Option<u64>,
    /// Whose user variables and SQL-level prepared statements it holds, and which version of them.
    variables: (SessionUid, u64),
    /// The session whose session tracking is set on it; none: what Millrace needs is.
    tracks: Option<SessionUid>,
    /// The last session that may have drawn from sequences since the connection was new: LASTVAL() is its.
    drew: SessionUid,
    by_login: ByLogin,
    /// A reset took that away.
    lacks_login: bool,
}

/// What only a login gives a connection, and a reset takes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ByLogin {
    /// There is no such thing.
    #[default]
    Nothing,
    /// Foreign keys as MySQL itself keeps them: what changes rows needs them. With `innodb_native_foreign_keys=OFF`,
    /// InnoDB keeps them on a connection that was reset, and `REPLACE` of a parent's row deletes its children there
    /// (observed on 9.7).
    ForeignKeys,
    /// User variables that `init_connect` sets, at least.
    Variables,
}

/// A version of user variables that no session has: they are set again before they are used.
const DOUBTFUL: u64 = u64::MAX;

impl Books {
    /// As after a login.
    pub fn new(server: ServerId) -> Self {
        Books {
            server,
            user: 0,
            seq: 0,
            unread: Unread::default(),
            store: None,
            saving: None,
            insert_id: Some(0),
            variables: (0, 0),
            tracks: None,
            drew: 0,
            by_login: ByLogin::Nothing,
            lacks_login: false,
        }
    }

    /// The connection's server.
    pub fn server(&self) -> ServerId {
        self.server
    }

    /// The session that used the connection last; 0 for nobody.
    pub fn last_user(&self) -> SessionUid {
        self.user
    }

    /// Which of its last session's statements it ran last; 0 for none that can be asked about.
    pub fn last_seq(&self) -> u64 {
        self.seq
    }

    /// `session` used it last.
    pub fn is_of(&self, session: SessionUid) -> bool {
        self.user == session
    }

    /// Statement `seq` of `session` was the last on it.
    pub fn is_at(&self, session: SessionUid, seq: u64) -> bool {
        self.user == session && self.seq == seq
    }

    /// Its server, and the last statement that a session can ask about here.
    pub fn last_statement(&self) -> StatementAt {
        (self.server, self.seq)
    }

    /// What `session` has at `at` is here: nobody has used the connection since.
    pub fn holds(&self, session: SessionUid, at: Option<StatementAt>) -> bool {
        self.is_of(session) && at == Some(self.last_statement())
    }

    /// What its last user may still ask.
    pub fn unread(&self) -> Unread {
        self.unread
    }

    /// Its last user may still ask something.
    pub fn is_missed(&self) -> bool {
        !self.unread.is_empty()
    }

    /// A session other than `session` may still ask something, which has to be saved first.
    pub fn is_missed_by_other(&self, session: SessionUid) -> bool {
        !self.is_of(session) && self.is_missed()
    }

    /// Statement `seq` of `session` has run. `keeps`: what the session could ask of it before, it still can.
    pub fn ran(
        &mut self,
        session: SessionUid,
        seq: u64,
        store: &Rc<DiagnosticsStore>,
        keeps: bool,
    ) {
        if !keeps {
            self.unread = Unread::default();
        }
        self.store = Some(store.clone());
        self.mark(session, seq);
    }

    /// What it holds counts as statement `seq` of `session` from now on.
    pub fn mark(&mut self, session: SessionUid, seq: u64) {
        (self.user, self.seq) = (session, seq);
    }

    /// Its session counts what it holds as its statement `seq` from now on.
    pub fn renumber(&mut self, seq: u64) {
        self.seq = seq;
    }

    /// A connection that takes the place of a lost one: `session` finds there what it had.
    pub fn replaces(
        &mut self,
        session: SessionUid,
        seq: u64,
        unread: Unread,
        store: &Rc<DiagnosticsStore>,
    ) {
        self.ran(session, seq, store, false);
        self.unread = unread;
        // What went ahead of the statement that was lost may have set it.
        self.insert_id = None;
    }

    /// The statement that its user knows has been followed by others of Millrace's own.
    pub fn forget_statement(&mut self) {
        self.seq = 0;
    }

    /// Nobody is its last user any more; what was unread is saved, or stays to be.
    pub fn disown(&mut self) {
        self.user = 0;
    }

    /// It is nobody's, and nothing that anybody could ask is left.
    pub fn release(&mut self) {
        (self.user, self.seq) = (0, 0);
        self.unread = Unread::default();
    }

    /// What its user could ask has been read; it is still its last user.
    pub fn ended(&mut self) {
        self.seq = 0;
        self.unread = Unread::default();
    }

    /// All is saved or being saved: it is nobody's, and nothing is unread.
    pub fn handed_over(&mut self) {
        self.user = 0;
        self.unread = Unread::default();
    }

    /// It goes to another session than the one that used it last, which waits until that was saved.
    pub fn leave_owner(&mut self) {
        if self.user != 0 && self.is_missed() {
            self.saving = self.store.as_ref().map(DiagnosticsStore::begin);
        }
    }

    /// What was to be saved is, or nobody wants it.
    pub fn saved(&mut self) {
        self.saving = None;
    }

    /// Where to save what is unread, once.
    pub fn take_store(&mut self) -> Option<Rc<DiagnosticsStore>> {
        self.store.take()
    }

    /// Whether there are messages to show.
    pub fn has_messages(&mut self, has: bool) {
        self.unread.diagnostics = has;
    }

    /// Whether it alone knows FOUND_ROWS().
    pub fn has_found_rows(&mut self, has: bool) {
        self.unread.found_rows = has;
    }

    /// LAST_INSERT_ID(), where that is known.
    pub fn insert_id(&self) -> Option<u64> {
        self.insert_id
    }

    /// LAST_INSERT_ID() was set.
    pub fn set_insert_id(&mut self, id: u64) {
        self.insert_id = Some(id);
    }

    /// LAST_INSERT_ID() may be anything now; nobody asks for it.
    pub fn forget_insert_id(&mut self) {
        self.insert_id = None;
    }

    /// A statement may have changed LAST_INSERT_ID(), which its session may ask; answers what it was.
    pub fn generates_insert_id(&mut self) -> Option<u64> {
        self.unread.insert_id = true;
        self.insert_id.take()
    }

    /// The session has read its LAST_INSERT_ID().
    pub fn read_insert_id(&mut self) {
        self.unread.insert_id = false;
    }

    /// It holds this version of the session's user variables.
    pub fn holds_variables(&self, session: SessionUid, version: u64) -> bool {
        self.variables == (session, version)
    }

    /// It holds nobody's user variables.
    pub fn is_without_variables(&self) -> bool {
        self.variables.0 == 0
    }

    /// It holds user variables that the session must not see: another's, or its own of before.
    pub fn has_foreign_variables(&self, session: SessionUid, version: u64) -> bool {
        !self.is_without_variables() && !self.holds_variables(session, version)
    }

    /// Its login gave it what a reset takes away.
    pub fn has_by_login(&mut self, what: ByLogin) {
        self.by_login = what;
    }

    /// A reset takes, or took, away what a statement needs of a login. `changes`: it may change rows.
    pub fn loses_by_reset(&self, changes: bool) -> bool {
        match self.by_login {
            ByLogin::Nothing => false,
            ByLogin::ForeignKeys => changes,
            ByLogin::Variables => true,
        }
    }

    /// A reset has taken that away.
    #[inline]
    pub fn lacks_login(&self, changes: bool) -> bool {
        self.lacks_login && self.loses_by_reset(changes)
    }

    /// It holds another session's user variables.
    pub fn has_variables_of_other(&self, session: SessionUid) -> bool {
        !self.is_without_variables() && self.variables.0 != session
    }

    /// It holds the session's user variables, in this version; None: some of them, or old ones.
    pub fn set_variables(&mut self, session: SessionUid, version: Option<u64>) {
        self.variables = (session, version.unwrap_or(DOUBTFUL));
    }

    /// Its user variables have to be set again before they are used.
    pub fn doubt_variables(&mut self) {
        self.variables.1 = DOUBTFUL;
    }

    /// Session tracking is set as a session wants it, not as Millrace needs it.
    pub fn tracks_for_a_session(&self) -> bool {
        self.tracks.is_some()
    }

    /// Session tracking is set as this session wants it. Another's settings are no more its own than Millrace's.
    pub fn tracks_for(&self, session: SessionUid) -> bool {
        self.tracks == Some(session)
    }

    /// Session tracking was set as this session wants it.
    pub fn set_tracks_for(&mut self, session: SessionUid) {
        self.tracks = Some(session);
    }

    /// Session tracking was set as Millrace needs it.
    pub fn set_tracks_for_millrace(&mut self) {
        self.tracks = None;
    }

    /// The session may have drawn from a sequence.
    pub fn drew(&mut self, session: SessionUid) {
        self.drew = session;
    }

    /// A session other than this one has drawn from sequences last.
    pub fn drew_for_other(&self, session: SessionUid) -> bool {
        ![0, session].contains(&self.drew)
    }

    /// The server has forgotten all that sessions did (COM_RESET_CONNECTION); what its last user might ask is
    /// gone or saved.
    pub fn reset(&mut self) {
        self.variables = (0, 0);
        self.unread = Unread::default();
        self.drew = 0;
        self.insert_id = Some(0);
        self.lacks_login = true;
    }

    /// As after a login (COM_CHANGE_USER).
    pub fn login(&mut self) {
        *self = Books {
            saving: self.saving.take(),
            by_login: self.by_login,
            lacks_login: true,
            ..Books::new(self.server)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: SessionUid = 7;
    const OTHER: SessionUid = 8;

    fn store() -> Rc<DiagnosticsStore> {
        Rc::default()
    }

    #[test]
    fn a_statement_is_known_by_its_session_and_count() {
        let mut books = Books::new(ServerId(1));
        assert!(!books.is_at(ME, 1));
        books.ran(ME, 1, &store(), false);
        assert!(books.is_at(ME, 1) && books.is_of(ME));
        assert!(!books.is_at(ME, 2) && !books.is_at(OTHER, 1));
        assert!(books.holds(ME, Some((ServerId(1), 1))));
        assert!(!books.holds(ME, Some((ServerId(0), 1))) && !books.holds(ME, None));
        books.forget_statement();
        assert!(books.is_of(ME) && !books.is_at(ME, 1));
        books.release();
        assert!(!books.is_of(ME));
    }

    #[test]
    fn what_is_unread_is_missed_by_its_session_alone() {
        let mut books = Books::new(ServerId(1));
        books.ran(ME, 1, &store(), false);
        books.has_messages(true);
        assert!(books.is_missed_by_other(OTHER) && !books.is_missed_by_other(ME));
        books.ran(ME, 2, &store(), true);
        assert!(books.is_missed());
        books.ran(ME, 3, &store(), false);
        assert!(!books.is_missed());
        assert_eq!(books.generates_insert_id(), Some(0));
        assert_eq!(books.insert_id(), None);
        assert!(books.is_missed());
        books.read_insert_id();
        books.has_found_rows(true);
        assert!(books.is_missed());
        books.handed_over();
        assert!(!books.is_missed() && !books.is_of(ME));
    }

    #[test]
    fn what_a_login_sets_only_a_login_brings_back() {
        let mut books = Books::new(ServerId(1));
        books.reset();
        assert!(!books.loses_by_reset(true) && !books.lacks_login(true));
        for lose in [Books::reset, Books::login] {
            let mut books = Books::new(ServerId(1));
            books.has_by_login(ByLogin::Variables);
            assert!(books.loses_by_reset(false) && !books.lacks_login(false));
            lose(&mut books);
            assert!(books.lacks_login(false));
            books.has_by_login(ByLogin::ForeignKeys);
            assert!(books.lacks_login(true) && !books.lacks_login(false));
        }
    }

    #[test]
    fn its_owner_waits_only_while_something_is_saved_for_it() {
        let (mut books, store) = (Books::new(ServerId(1)), store());
        books.ran(ME, 1, &store, false);
        books.leave_owner();
        assert!(!store.is_saving(), "nothing is unread");
        books.has_messages(true);
        books.leave_owner();
        assert!(store.is_saving());
        books.saved();
        assert!(!store.is_saving());
        books.leave_owner();
        drop(books);
        assert!(!store.is_saving(), "the connection is gone");
    }

    #[test]
    fn variables_are_foreign_unless_of_this_session_and_version() {
        let mut books = Books::new(ServerId(1));
        assert!(books.is_without_variables() && !books.has_foreign_variables(ME, 1));
        books.set_variables(ME, Some(1));
        assert!(books.holds_variables(ME, 1) && !books.has_foreign_variables(ME, 1));
        assert!(books.has_foreign_variables(ME, 2) && books.has_foreign_variables(OTHER, 1));
        assert!(books.has_variables_of_other(OTHER) && !books.has_variables_of_other(ME));
        books.doubt_variables();
        assert!(books.has_foreign_variables(ME, 1));
        books.reset();
        assert!(books.is_without_variables());
    }

    #[test]
    fn session_tracking_is_one_sessions_or_millraces() {
        let mut books = Books::new(ServerId(1));
        assert!(!books.tracks_for_a_session() && !books.tracks_for(ME));
        books.set_tracks_for(OTHER);
        assert!(books.tracks_for_a_session() && !books.tracks_for(ME));
        books.set_tracks_for(ME);
        assert!(books.tracks_for(ME) && !books.tracks_for(OTHER));
        books.set_tracks_for_millrace();
        assert!(!books.tracks_for_a_session());
    }

    #[test]
    fn after_a_reset_or_login_nothing_is_left() {
        for clear in [Books::reset, Books::login] {
            let mut books = Books::new(ServerId(1));
            books.ran(ME, 1, &store(), false);
            books.generates_insert_id();
            books.has_messages(true);
            books.set_variables(ME, Some(3));
            books.drew(ME);
            assert!(books.drew_for_other(OTHER) && !books.drew_for_other(ME));
            clear(&mut books);
            assert!(!books.is_missed() && books.is_without_variables());
            assert!(!books.drew_for_other(OTHER));
            assert_eq!(books.insert_id(), Some(0));
        }
    }
}

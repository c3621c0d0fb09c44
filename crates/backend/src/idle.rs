//! One worker's idle connections of one kind: which of them suits a session's next statement best.

use std::rc::Rc;

use millrace_engine::books::SessionUid;
use millrace_engine::image::prepared::StatementUid;
use millrace_engine::state::SessionState;

use crate::conn::Conn;
use crate::fresh::Version;

/// What a session looks for in an idle connection.
pub struct CheckoutRequest<'a> {
    /// The session.
    pub uid: SessionUid,
    /// What must be set on the connection.
    pub state: &'a Rc<SessionState>,
    /// An older connection will not do: it may have what a login no longer gives.
    pub version: Version,
    /// The session has left something on a connection that it may need again: worth a longer look.
    pub own: bool,
    /// The prepared statement to execute.
    pub prepared: Option<StatementUid>,
    /// Another identity under which a connection may have it.
    pub unused: Option<StatementUid>,
    /// The statement may change rows.
    pub changes: bool,
}

/// The rank of a session's own last connection, and of one that is as good as new to it.
const OWN: u8 = 0;
const CLEAN: u8 = 1;
/// Preparing a statement is the most that may have to go ahead: it takes a round trip of its own.
const LACKS_STATEMENT: u8 = 8;
/// It would have to be closed, and another opened.
const LACKS_LOGIN: u8 = 32;
/// Will not do.
const TOO_OLD: u8 = u8::MAX;

impl<'a> CheckoutRequest<'a> {
    /// For statements out of the ordinary.
    pub fn new(uid: SessionUid, state: &'a Rc<SessionState>, version: Version) -> Self {
        CheckoutRequest {
            uid,
            state,
            version,
            own: true,
            prepared: None,
            unused: None,
            changes: true,
        }
    }

    /// The less, the less has to go ahead of the statement there.
    fn rank(&self, conn: &Conn) -> u8 {
        if conn.login.version < self.version {
            return TOO_OLD;
        }
        let rank = if conn.books.is_of(self.uid) {
            OWN
        } else {
            CLEAN
                + u8::from(!Rc::ptr_eq(&conn.state, self.state))
                + 2 * u8::from(conn.books.has_variables_of_other(self.uid))
        };
        rank + LACKS_STATEMENT * u8::from(self.lacks(conn))
            + LACKS_LOGIN * u8::from(conn.books.lacks_login(self.changes))
    }

    /// Nothing that is better is looked for.
    fn enough(&self) -> u8 {
        if self.own { OWN } else { CLEAN }
    }

    fn lacks(&self, conn: &Conn) -> bool {
        let has = |uid| conn.prepared.has(uid);
        self.prepared.is_some_and(|uid| !has(uid)) && !self.unused.is_some_and(has)
    }
}

/// Idle connections, in either list those used last at the end.
// In boxes: they are handed from place to place with every statement.
#[derive(Default)]
pub(crate) struct Idle {
    /// Nobody misses them.
    #[expect(clippy::vec_box, reason = "they are handed out in their boxes")]
    free: Vec<Box<Conn>>,
    /// Those that remember something of a session's last statement, beside the session: whoever else takes
    /// one has to save that first.
    bound: Vec<(SessionUid, Box<Conn>)>,
    /// Too old for new sessions, of either kind; those that were there before may use them.
    #[expect(clippy::vec_box, reason = "they are handed out in their boxes")]
    old: Vec<Box<Conn>>,
    /// What is older than this is there.
    newest_wanted: Version,
}

/// An idle connection, and whether taking it leaves a session without what it had there.
pub(crate) struct Found {
    pub(crate) conn: Box<Conn>,
    pub(crate) was_bound: bool,
}

impl Idle {
    /// All of them.
    pub(crate) fn len(&self) -> usize {
        self.usable() + self.old.len()
    }

    /// Those that will do for any session that has asked so far.
    pub(crate) fn usable(&self) -> usize {
        self.free.len() + self.bound.len()
    }

    /// Whether there is one that is no older.
    pub(crate) fn has(&self, version: Version) -> bool {
        let all = self.free.iter().chain(&self.old);
        let mut all = all.chain(self.bound.iter().map(|(_, conn)| conn));
        all.any(|conn| conn.login.version >= version)
    }

    pub(crate) fn push(&mut self, conn: Box<Conn>) {
        if conn.login.version < self.newest_wanted {
            self.old.push(conn);
        } else if !conn.books.is_missed() {
            self.free.push(conn);
        } else {
            self.bound.push((conn.books.last_user(), conn));
        }
    }

    /// Sets aside what is too old from now on.
    #[cold]
    fn set_aside(&mut self, version: Version) {
        self.newest_wanted = version;
        let bound = std::mem::take(&mut self.bound);
        let all = std::mem::take(&mut self.free).into_iter();
        for conn in all.chain(bound.into_iter().map(|(_, conn)| conn)) {
            self.push(conn);
        }
    }

    /// One that is too old for new sessions and that nobody misses.
    pub(crate) fn take_old(&mut self, version: Version) -> Option<Box<Conn>> {
        if version > self.newest_wanted {
            self.set_aside(version);
        }
        let is_free = |conn: &Conn| !conn.books.is_missed();
        let at = self.old.iter().rposition(|conn| is_free(conn))?;
        Some(self.old.remove(at))
    }

    /// For a session that was there before they were too old.
    #[cold]
    fn take_from_old(&mut self, wanted: &CheckoutRequest<'_>) -> Option<Found> {
        let own =
            |conn: &Conn| conn.books.is_of(wanted.uid) && conn.login.version >= wanted.version;
        let at = self.old.iter().rposition(|conn| own(conn));
        let at = at.or_else(|| {
            let (back, _) = best(self.old.iter().rev(), wanted)?;
            Some(self.old.len() - 1 - back)
        })?;
        let conn = self.old.swap_remove(at);
        let was_bound = conn.books.is_missed_by_other(wanted.uid);
        Some(Found { conn, was_bound })
    }

    /// The one that can run the session's statement with the least ahead of it.
    pub(crate) fn take(&mut self, wanted: &CheckoutRequest<'_>) -> Option<Found> {
        // As nearly always.
        if self.old.is_empty()
            && (!wanted.own || self.bound.is_empty())
            && let Some(conn) = self
                .free
                .pop_if(|conn| wanted.rank(conn) <= wanted.enough())
        {
            return Some(Found {
                conn,
                was_bound: false,
            });
        }
        self.search(wanted)
    }

    fn search(&mut self, wanted: &CheckoutRequest<'_>) -> Option<Found> {
        if wanted.version > self.newest_wanted {
            self.set_aside(wanted.version);
        }
        if wanted.version < self.newest_wanted
            && let Some(found) = self.take_from_old(wanted)
        {
            return Some(found);
        }
        let own = match wanted.own {
            true => self.bound.iter().rposition(|(uid, _)| *uid == wanted.uid),
            false => None,
        };
        if let Some(at) = own
            && !wanted.lacks(&self.bound[at].1)
        {
            return Some(self.take_bound(at, wanted.uid));
        }
        let free = best(self.free.iter().rev(), wanted);
        if let Some((back, rank)) = free
            && (own.is_none() || rank < LACKS_STATEMENT)
        {
            let conn = self.free.swap_remove(self.free.len() - 1 - back);
            return Some(Found {
                conn,
                was_bound: false,
            });
        }
        // The one whose session has not come for the longest time.
        let at = own.or_else(|| {
            let (at, _) = best(self.bound.iter().map(|(_, conn)| conn), wanted)?;
            Some(at)
        })?;
        Some(self.take_bound(at, wanted.uid))
    }

    fn take_bound(&mut self, at: usize, uid: SessionUid) -> Found {
        let (owner, conn) = self.bound.remove(at);
        Found {
            conn,
            was_bound: owner != uid,
        }
    }

    /// The one that ran statement `seq` of `uid`, if nothing was run on it since.
    pub(crate) fn take_own(&mut self, uid: SessionUid, seq: u64) -> Option<Box<Conn>> {
        let ran = |conn: &Conn| conn.books.is_at(uid, seq);
        let bound = |(owner, conn): &(SessionUid, Box<Conn>)| *owner == uid && ran(conn);
        if let Some(at) = self.bound.iter().rposition(bound) {
            return Some(self.bound.remove(at).1);
        }
        if let Some(at) = self.free.iter().rposition(|conn| ran(conn)) {
            return Some(self.free.swap_remove(at));
        }
        let at = self.old.iter().rposition(|conn| ran(conn))?;
        Some(self.old.swap_remove(at))
    }

    /// When the one unused for longest was used, in ticks.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let firsts = [self.free.first(), self.bound.first().map(|(_, conn)| conn)];
        let firsts = firsts.into_iter().flatten().map(|conn| conn.used);
        // Those that are too old go first.
        let old = self.old.first().map(|_| 0);
        old.into_iter().chain(firsts).min()
    }

    /// The one unused for longest; of those equally old one that nobody misses.
    pub(crate) fn take_oldest(&mut self) -> Option<Box<Conn>> {
        if !self.old.is_empty() {
            return Some(self.old.remove(0));
        }
        let free = self.free.first().map(|conn| conn.used);
        let bound = self.bound.first().map(|(_, conn)| conn.used);
        match (free, bound) {
            (None, None) => None,
            (Some(free), bound) if bound.is_none_or(|bound| free <= bound) => {
                Some(self.free.remove(0))
            }
            _ => Some(self.bound.remove(0).1),
        }
    }

    #[expect(clippy::vec_box, reason = "they are handed out in their boxes")]
    pub(crate) fn take_all(&mut self) -> Vec<Box<Conn>> {
        let bound = self.bound.drain(..).map(|(_, conn)| conn);
        let old = self.old.drain(..);
        self.free.drain(..).chain(bound).chain(old).collect()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Box<Conn>> {
        let bound = self.bound.iter_mut().map(|(_, conn)| conn);
        self.free.iter_mut().chain(bound).chain(&mut self.old)
    }
}

/// Which of the first few suits best, and how well; looks no further than it must: each look is at memory
/// that was last used a while ago.
fn best<'a>(
    conns: impl Iterator<Item = &'a Box<Conn>>,
    wanted: &CheckoutRequest<'_>,
) -> Option<(usize, u8)> {
    const LOOK: usize = 16;
    let enough = wanted.enough();
    let mut found: Option<(usize, u8)> = None;
    for (at, conn) in conns.take(LOOK).enumerate() {
        let rank = wanted.rank(conn);
        if rank != TOO_OLD && found.is_none_or(|(_, least)| rank < least) {
            found = Some((at, rank));
            if rank <= enough {
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use millrace_protocol::handshake::Greeting;
    use millrace_protocol::{Capabilities, Status};
    use millrace_sql::Family;
    use millrace_topology::ServerId;

    use super::*;
    use crate::connect::Opened;
    use crate::stream::Stream;

    /// Used at this tick by this session, which may miss what it left there.
    fn conn(used: u64, last_user: SessionUid, is_missed: bool) -> Box<Conn> {
        let greeting = Greeting {
            server_version: String::new(),
            thread_id: 0,
            nonce: [0; 20],
            capabilities: Capabilities::empty(),
            collation: 0,
            status: Status::empty(),
            auth_plugin: String::new(),
        };
        let opened = Opened {
            stream: Stream::Gone,
            greeting,
            capabilities: Capabilities::empty(),
            status: Status::empty(),
            tells_variables: false,
            buffer: Vec::new(),
        };
        let mut conn = Conn::new(opened, ServerId(0), Family::MySql, None);
        conn.used = used;
        conn.books.mark(last_user, used);
        conn.books.has_messages(is_missed);
        Box::new(conn)
    }

    fn idle(conns: &[(u64, SessionUid, bool)]) -> Idle {
        let mut idle = Idle::default();
        for (used, user, is_missed) in conns {
            idle.push(conn(*used, *user, *is_missed));
        }
        idle
    }

    fn taken(found: Option<Found>) -> Option<(u64, bool)> {
        found.map(|found| (found.conn.used, found.was_bound))
    }

    #[test]
    fn a_session_gets_its_own_then_what_nobody_misses_then_what_was_left_longest() {
        let mut idle = idle(&[(1, 7, true), (2, 8, true), (3, 9, false), (4, 5, true)]);
        let state = Rc::default();
        let mut wanted = CheckoutRequest::new(8, &state, 0);
        assert_eq!(taken(idle.take(&wanted)), Some((2, false)), "its own");
        assert_eq!(taken(idle.take(&wanted)), Some((3, false)), "nobody's");
        assert_eq!(taken(idle.take(&wanted)), Some((1, true)), "left longest");
        wanted.uid = 5;
        wanted.own = false;
        assert_eq!(
            taken(idle.take(&wanted)),
            Some((4, false)),
            "its own, unsought"
        );
        assert_eq!(taken(idle.take(&wanted)), None);
    }

    #[test]
    fn an_own_connection_without_the_statement_is_left_for_one_that_has_it() {
        let mut prepared = conn(1, 9, false);
        prepared.prepared.add(70, 1);
        let mut idle = idle(&[(2, 8, true)]);
        idle.push(prepared);
        let state = Rc::default();
        let wanted = CheckoutRequest {
            prepared: Some(70),
            ..CheckoutRequest::new(8, &state, 0)
        };
        assert_eq!(taken(idle.take(&wanted)), Some((1, false)));
        assert_eq!(
            taken(idle.take(&wanted)),
            Some((2, false)),
            "rather than none"
        );
    }

    #[test]
    fn a_new_session_gets_nothing_from_before_and_an_old_one_rather_that() {
        let mut idle = idle(&[(1, 7, false), (2, 8, true), (3, 9, false)]);
        idle.free[1].login.version = 2;
        let state = Rc::default();
        let new = CheckoutRequest::new(1, &state, 2);
        let old = CheckoutRequest::new(8, &state, 0);
        assert!(idle.has(2) && !idle.has(3));
        assert_eq!(taken(idle.take(&new)), Some((3, false)));
        assert_eq!(taken(idle.take(&new)), None, "the others are too old");
        assert_eq!((idle.len(), idle.usable()), (2, 0));
        let mut current = conn(4, 0, false);
        current.login.version = 2;
        idle.push(current);
        assert_eq!(taken(idle.take(&old)), Some((2, false)), "its own");
        assert_eq!(taken(idle.take(&old)), Some((1, false)));
        assert_eq!(
            taken(idle.take(&old)),
            Some((4, false)),
            "nothing is from before any more"
        );
    }

    #[test]
    fn what_is_too_old_logs_in_anew_or_is_closed_first() {
        let mut idle = idle(&[(1, 7, true), (2, 8, false), (3, 7, true)]);
        assert_eq!(idle.take_old(5).map(|conn| conn.used), Some(2));
        assert!(idle.take_old(5).is_none(), "somebody misses the others");
        let mut current = conn(0, 0, false);
        current.login.version = 5;
        idle.push(current);
        assert_eq!(idle.take_oldest().map(|conn| conn.used), Some(1));
        assert_eq!(idle.take_own(7, 3).map(|conn| conn.used), Some(3));
        assert_eq!(idle.usable(), 1);
    }

    #[test]
    fn what_a_session_asks_about_is_found_in_either_list() {
        let mut idle = idle(&[(1, 7, true), (2, 8, false), (3, 7, false)]);
        assert!(idle.take_own(7, 2).is_none(), "another's");
        assert_eq!(idle.take_own(7, 1).map(|conn| conn.used), Some(1));
        assert_eq!(idle.take_own(7, 3).map(|conn| conn.used), Some(3));
        assert_eq!(idle.len(), 1);
    }

    #[test]
    fn the_oldest_is_told_over_both_lists() {
        let mut idle = idle(&[(1, 7, true), (1, 8, false), (2, 7, true), (3, 8, false)]);
        let mut seen = Vec::new();
        while let Some(oldest) = idle.oldest() {
            let conn = idle.take_oldest().unwrap();
            assert_eq!(conn.used, oldest);
            seen.push((conn.used, conn.books.last_user()));
        }
        assert_eq!(seen, [(1, 8), (1, 7), (2, 7), (3, 8)]);
    }
}

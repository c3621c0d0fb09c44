//! One worker's idle connections of one kind: which of them suits a session's next statement best.

use std::rc::Rc;

use crate::conn::{Conn, SessionUid};
use crate::prepared::StatementUid;
use crate::state::SessionState;

/// What a session looks for in an idle connection.
pub struct Wish<'a> {
    /// The session.
    pub uid: SessionUid,
    /// What must be set on the connection.
    pub state: &'a Rc<SessionState>,
    /// The session has left something on a connection that it may need again: worth a longer look.
    pub own: bool,
    /// The prepared statement to execute.
    pub prepared: Option<StatementUid>,
    /// Another identity under which a connection may have it.
    pub unused: Option<StatementUid>,
}

/// The rank of a session's own last connection, and of one that is as good as new to it.
const OWN: u8 = 0;
const CLEAN: u8 = 1;
/// Preparing a statement is the most that may have to go ahead: it takes a round trip of its own.
const LACKS_STATEMENT: u8 = 8;

impl<'a> Wish<'a> {
    /// For statements out of the ordinary.
    pub fn new(uid: SessionUid, state: &'a Rc<SessionState>) -> Self {
        Wish {
            uid,
            state,
            own: true,
            prepared: None,
            unused: None,
        }
    }

    /// The less, the less has to go ahead of the statement there.
    fn rank(&self, conn: &Conn) -> u8 {
        let rank = if conn.last_user == self.uid {
            OWN
        } else {
            CLEAN
                + u8::from(!Rc::ptr_eq(&conn.state, self.state))
                + 2 * u8::from(conn.private_of != 0 && conn.private_of != self.uid)
        };
        rank + LACKS_STATEMENT * u8::from(self.lacks(conn))
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
}

/// An idle connection, and whether taking it leaves a session without what it had there.
pub(crate) struct Found {
    pub(crate) conn: Box<Conn>,
    pub(crate) was_bound: bool,
}

impl Idle {
    pub(crate) fn len(&self) -> usize {
        self.free.len() + self.bound.len()
    }

    pub(crate) fn push(&mut self, conn: Box<Conn>) {
        match conn.residue.is_empty() {
            true => self.free.push(conn),
            false => self.bound.push((conn.last_user, conn)),
        }
    }

    /// The one that can run the session's statement with the least ahead of it.
    pub(crate) fn take(&mut self, wish: &Wish<'_>) -> Option<Found> {
        // As nearly always.
        if (!wish.own || self.bound.is_empty())
            && let Some(conn) = self.free.pop_if(|conn| wish.rank(conn) <= wish.enough())
        {
            return Some(Found {
                conn,
                was_bound: false,
            });
        }
        self.search(wish)
    }

    fn search(&mut self, wish: &Wish<'_>) -> Option<Found> {
        let own = match wish.own {
            true => self.bound.iter().rposition(|(uid, _)| *uid == wish.uid),
            false => None,
        };
        if let Some(at) = own
            && !wish.lacks(&self.bound[at].1)
        {
            return Some(self.take_bound(at, wish.uid));
        }
        let free = best(self.free.iter().rev(), wish);
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
            let (at, _) = best(self.bound.iter().map(|(_, conn)| conn), wish)?;
            Some(at)
        })?;
        Some(self.take_bound(at, wish.uid))
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
        let ran = |conn: &Conn| conn.last_user == uid && conn.last_seq == seq;
        let bound = |(owner, conn): &(SessionUid, Box<Conn>)| *owner == uid && ran(conn);
        if let Some(at) = self.bound.iter().rposition(bound) {
            return Some(self.bound.remove(at).1);
        }
        let at = self.free.iter().rposition(|conn| ran(conn))?;
        Some(self.free.swap_remove(at))
    }

    /// When the one unused for longest was used, in ticks.
    pub(crate) fn oldest(&self) -> Option<u64> {
        [self.free.first(), self.bound.first().map(|(_, conn)| conn)]
            .into_iter()
            .flatten()
            .map(|conn| conn.used)
            .min()
    }

    /// The one unused for longest; of those equally old one that nobody misses.
    pub(crate) fn take_oldest(&mut self) -> Option<Box<Conn>> {
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
        self.free.drain(..).chain(bound).collect()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Box<Conn>> {
        let bound = self.bound.iter_mut().map(|(_, conn)| conn);
        self.free.iter_mut().chain(bound)
    }
}

/// Which of the first few suits best, and how well; looks no further than it must: each look is at memory
/// that was last used a while ago.
fn best<'a>(conns: impl Iterator<Item = &'a Box<Conn>>, wish: &Wish<'_>) -> Option<(usize, u8)> {
    const LOOK: usize = 16;
    let enough = wish.enough();
    let mut found: Option<(usize, u8)> = None;
    for (at, conn) in conns.take(LOOK).enumerate() {
        let rank = wish.rank(conn);
        if found.is_none_or(|(_, least)| rank < least) {
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
    use crate::conn::Residue;
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
            buffer: Vec::new(),
        };
        let mut conn = Conn::new(opened, ServerId(0), Family::MySql, None);
        conn.used = used;
        conn.last_user = last_user;
        conn.last_seq = used;
        conn.residue = Residue {
            insert_id: is_missed,
            ..Residue::default()
        };
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
        let mut wish = Wish::new(8, &state);
        assert_eq!(taken(idle.take(&wish)), Some((2, false)), "its own");
        assert_eq!(taken(idle.take(&wish)), Some((3, false)), "nobody's");
        assert_eq!(taken(idle.take(&wish)), Some((1, true)), "left longest");
        wish.uid = 5;
        wish.own = false;
        assert_eq!(
            taken(idle.take(&wish)),
            Some((4, false)),
            "its own, unsought"
        );
        assert_eq!(taken(idle.take(&wish)), None);
    }

    #[test]
    fn an_own_connection_without_the_statement_is_left_for_one_that_has_it() {
        let mut prepared = conn(1, 9, false);
        prepared.prepared.add(70, 1);
        let mut idle = idle(&[(2, 8, true)]);
        idle.push(prepared);
        let state = Rc::default();
        let wish = Wish {
            prepared: Some(70),
            ..Wish::new(8, &state)
        };
        assert_eq!(taken(idle.take(&wish)), Some((1, false)));
        assert_eq!(
            taken(idle.take(&wish)),
            Some((2, false)),
            "rather than none"
        );
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
            seen.push((conn.used, conn.last_user));
        }
        assert_eq!(seen, [(1, 8), (1, 7), (2, 7), (3, 8)]);
    }
}

//! One worker's pools, one for each server, made when the server is first heard of. Chooses none.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use millrace_backend::pool::{ServerFacts, ServerPool};
use millrace_topology::{Health, ServerId, ServerView, Snapshot};

/// What makes a server's pool.
type Make = Box<dyn Fn(&Arc<ServerFacts>) -> Rc<ServerPool>>;

/// A worker's pools; their number only grows.
pub struct Pools {
    pools: RefCell<Vec<Rc<ServerPool>>>,
    make: Make,
}

/// What became of a server from one view of the servers to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// It was usable, and is not.
    pub(super) fell: bool,
    /// It is another server now, or has been started anew.
    pub(super) other: bool,
    /// It was the primary, and is not.
    pub(super) demoted: bool,
    /// Its name means another machine now.
    pub(super) moved: bool,
}

impl Transition {
    fn of(server: ServerId, before: &Snapshot, now: &Snapshot, moved: bool) -> Transition {
        let (was, is) = (before.server(server), now.server(server));
        let usable = |view: Option<&ServerView>| view.is_some_and(|view| view.health.is_usable());
        Transition {
            fell: usable(was) && !usable(is),
            other: was
                .zip(is)
                .is_some_and(|(was, is)| was.incarnation != is.incarnation),
            demoted: before.primary == Some(server) && now.primary != Some(server),
            moved,
        }
    }
}

impl Pools {
    /// Closes and sends away what must not outlive the change from `before` to `now`.
    pub fn follow(
        &self,
        server: ServerId,
        before: &Snapshot,
        now: &Snapshot,
        moved: bool,
    ) -> Transition {
        let transition = Transition::of(server, before, now, moved);
        let pool = self.of(server);
        // An only server is used whatever is known of it.
        let is_down = |view: &ServerView| matches!(view.health, Health::Down { .. });
        pool.set_down(now.server(server).is_some_and(is_down) && now.primary != Some(server));
        if transition.fell || transition.other || transition.moved {
            pool.drop_idle();
        }
        if transition.fell || transition.demoted || transition.moved {
            pool.send_away();
        }
        transition
    }

    /// None yet; `make` makes the pool of a server.
    pub fn new(make: impl Fn(&Arc<ServerFacts>) -> Rc<ServerPool> + 'static) -> Self {
        Pools {
            pools: RefCell::default(),
            make: Box::new(make),
        }
    }

    /// Makes the pools of servers that were found since.
    pub fn grow(&self, facts: &[Arc<ServerFacts>]) {
        let mut pools = self.pools.borrow_mut();
        let known = pools.len();
        pools.extend(facts.iter().skip(known).map(|facts| (self.make)(facts)));
    }

    /// How many servers there are.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.pools.borrow().len()
    }

    /// The pool of a server that the worker's world shows.
    pub fn of(&self, server: ServerId) -> Rc<ServerPool> {
        self.pools.borrow()[server.index()].clone()
    }

    /// Does something with each. It must not wait, and must not make pools.
    pub fn each(&self, mut with: impl FnMut(usize, &ServerPool)) {
        for (at, pool) in self.pools.borrow().iter().enumerate() {
            with(at, pool);
        }
    }
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pools", self.len())
    }
}

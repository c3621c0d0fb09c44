//! One worker's pools, one for each server, made when the server is first heard of. Chooses none.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use millrace_backend::pool::{ServerFacts, ServerPool};
use millrace_topology::ServerId;

/// What makes a server's pool.
type Make = Box<dyn Fn(&Arc<ServerFacts>) -> Rc<ServerPool>>;

/// A worker's pools; their number only grows.
pub(crate) struct Pools {
    pools: RefCell<Vec<Rc<ServerPool>>>,
    make: Make,
}

impl Pools {
    pub(crate) fn new(make: impl Fn(&Arc<ServerFacts>) -> Rc<ServerPool> + 'static) -> Self {
        Pools {
            pools: RefCell::default(),
            make: Box::new(make),
        }
    }

    /// Makes the pools of servers that were found since.
    pub(crate) fn grow(&self, facts: &[Arc<ServerFacts>]) {
        let mut pools = self.pools.borrow_mut();
        let known = pools.len();
        pools.extend(facts.iter().skip(known).map(|facts| (self.make)(facts)));
    }

    pub(crate) fn len(&self) -> usize {
        self.pools.borrow().len()
    }

    /// The pool of a server that the worker's world shows.
    pub(crate) fn of(&self, server: ServerId) -> Rc<ServerPool> {
        self.pools.borrow()[server.index()].clone()
    }

    /// Does something with each. It must not wait, and must not make pools.
    pub(crate) fn each(&self, mut with: impl FnMut(usize, &ServerPool)) {
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

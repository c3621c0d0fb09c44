//! What a worker knows of the cache: numbers for what results are found by beside their text.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use millrace_backend::cache::Cache;
use millrace_cache::KeyBuilder;
use millrace_engine::state::SessionState;

/// So many states at most have a number at hand.
const STATES_MAX: usize = 1024;

/// The cache, as sessions of one worker use it.
#[derive(Default)]
pub struct CacheView {
    cache: Option<Arc<Cache>>,
    keeps_results: bool,
    states: RefCell<HashMap<*const SessionState, (Rc<SessionState>, u64)>>,
    /// Hits that should have been read again and compared, and were not yet.
    due: Cell<f64>,
    /// Keys are put together here.
    pub key: RefCell<KeyBuilder>,
}

impl CacheView {
    /// Of this cache; of none, it is off.
    pub fn new(cache: Option<Arc<Cache>>) -> Self {
        Self {
            keeps_results: cache.as_ref().is_some_and(|cache| cache.keeps_results()),
            cache,
            ..Self::default()
        }
    }

    /// The cache, where it is on.
    pub fn get(&self) -> Option<&Arc<Cache>> {
        self.cache.as_ref().filter(|_| self.keeps_results)
    }

    /// The log, for results or for what reads must see, while one is followed.
    pub fn log(&self) -> Option<&Arc<Cache>> {
        self.cache.as_ref().filter(|cache| cache.is_followed())
    }

    /// Whether the next hit is to be read again, and compared.
    pub fn is_check_due(&self) -> bool {
        self.due.get() >= 1.0
    }

    /// A hit. `share`: how many of them are to be read again; `is_checked`: this one is.
    pub fn note_hit(&self, share: f64, is_checked: bool) {
        let checked = f64::from(u8::from(is_checked));
        // What cannot be compared is not made up for later.
        self.due.set((self.due.get() + share - checked).min(2.0));
    }

    /// The number of a session's state: that of every equal one, and of no other.
    pub fn state(&self, cache: &Cache, state: &Rc<SessionState>) -> u64 {
        let mut states = self.states.borrow_mut();
        if let Some((_, number)) = states.get(&Rc::as_ptr(state)) {
            return *number;
        }
        if states.len() >= STATES_MAX {
            states.clear();
        }
        // No two values look the same so.
        let number = cache.name(format!("{state:?}").as_bytes());
        states.insert(Rc::as_ptr(state), (state.clone(), number));
        number
    }
}

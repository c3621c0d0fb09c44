//! A value for each server, also for servers that are found later. Knows nothing of the values.

use std::fmt;
use std::sync::OnceLock;

use millrace_topology::SERVERS_EVER;

/// A value for each server, shared by all threads. The values of the first servers lie next to each
/// other; those of servers that were found later are made when they are first asked for.
pub struct PerServer<T> {
    first: Box<[T]>,
    later: Box<[OnceLock<Box<T>>]>,
}

impl<T: Default> PerServer<T> {
    /// For so many servers to begin with.
    pub fn new(first: usize) -> Self {
        PerServer {
            first: (0..first).map(|_| T::default()).collect(),
            later: (first..SERVERS_EVER).map(|_| OnceLock::new()).collect(),
        }
    }

    /// The value of the server with this index; none beyond [`SERVERS_EVER`].
    pub fn get(&self, index: usize) -> Option<&T> {
        if let Some(value) = self.first.get(index) {
            return Some(value);
        }
        let later = self.later.get(index - self.first.len())?;
        Some(later.get_or_init(Box::default))
    }

    /// The value of the server with this index, where it was ever asked for.
    pub fn peek(&self, index: usize) -> Option<&T> {
        if let Some(value) = self.first.get(index) {
            return Some(value);
        }
        let later = self.later.get(index - self.first.len())?;
        later.get().map(|value| &**value)
    }
}

impl<T> PerServer<T> {
    /// Every value that was ever asked for, and those of the first servers.
    pub fn each(&self) -> impl Iterator<Item = &T> {
        let later = self.later.iter().filter_map(OnceLock::get);
        self.first.iter().chain(later.map(|value| &**value))
    }
}

impl<T: fmt::Debug> fmt::Debug for PerServer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let later = self.later.iter().filter_map(OnceLock::get);
        f.debug_list()
            .entries(self.first.iter())
            .entries(later)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn values_are_there_when_they_are_asked_for() {
        let values = PerServer::<AtomicU32>::new(2);
        for index in [0, 1, 2, 77, SERVERS_EVER - 1] {
            let value = values.get(index).expect("within the limit");
            assert_eq!(value.fetch_add(1, Ordering::Relaxed), 0);
            let again = values.get(index).expect("within the limit");
            assert_eq!(again.load(Ordering::Relaxed), 1);
        }
        assert!(values.get(SERVERS_EVER).is_none());
        assert!(values.peek(5).is_none());
        assert!(values.peek(77).is_some());
    }

    #[test]
    fn more_servers_than_the_limit_may_be_there_from_the_start() {
        let values = PerServer::<AtomicU32>::new(SERVERS_EVER + 1);
        assert!(values.get(SERVERS_EVER).is_some());
        assert!(values.get(SERVERS_EVER + 1).is_none());
    }
}

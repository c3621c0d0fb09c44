//! Names of stored code that DDL has touched since it was read: what they mean is not known. Knows no SQL: a
//! name is whatever bytes it is looked up by.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Names, each with the number of the change that it was touched by.
#[derive(Debug, Default)]
pub struct Touched {
    /// Changes so far.
    changes: AtomicU64,
    /// DDL under way.
    open: AtomicU32,
    /// Stored code could be read the last time.
    readable: AtomicBool,
    names: Mutex<Vec<Entry>>,
    changed: Notify,
}

#[derive(Debug)]
struct Entry {
    /// `u64::MAX` while its DDL is under way.
    change: u64,
    /// Of its [`Touching`].
    id: u64,
    name: Box<[u8]>,
}

/// So many names are kept; of more, the oldest are given up.
const NAMES_MAX: usize = 4096;

/// DDL under way, from before it is sent until it is answered.
#[derive(Debug)]
pub struct Touching {
    touched: Arc<Touched>,
    id: u64,
}

impl Drop for Touching {
    fn drop(&mut self) {
        let change = self.touched.change();
        for entry in self.touched.names().iter_mut() {
            if entry.id == self.id {
                entry.change = change;
            }
        }
        self.touched.open.fetch_sub(1, Ordering::SeqCst);
        self.touched.changed.notify_one();
    }
}

impl Touched {
    fn names(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// These names are about to be touched.
    pub fn begin(self: &Arc<Self>, names: Vec<Box<[u8]>>) -> Touching {
        self.open.fetch_add(1, Ordering::SeqCst);
        let id = self.change();
        let mut list = self.names();
        let surplus = (list.len() + names.len()).saturating_sub(NAMES_MAX);
        let surplus = surplus.min(list.len());
        list.drain(..surplus);
        let entry = |name| Entry {
            change: u64::MAX,
            id,
            name,
        };
        list.extend(names.into_iter().map(entry));
        drop(list);
        Touching {
            touched: self.clone(),
            id,
        }
    }

    /// Whether something was touched that was not there when the catalogue was read at `read`.
    pub fn is_beyond(&self, read: u64) -> bool {
        self.changes.load(Ordering::Relaxed) != read || self.open.load(Ordering::Relaxed) != 0
    }

    /// Whether one of the names that were touched since the catalogue was read at `read` is one that `is`
    /// says.
    pub fn any(&self, read: u64, is: impl Fn(&[u8]) -> bool) -> bool {
        let mut names = self.names();
        if names.len() > NAMES_MAX / 4 {
            names.retain(|entry| entry.change > read);
        }
        let mut since = names.iter().filter(|entry| entry.change > read);
        since.any(|entry| is(&entry.name))
    }

    /// Whether the catalogue can be read, so that a wait for it is worth it.
    pub fn is_readable(&self) -> bool {
        self.readable.load(Ordering::Relaxed)
    }

    pub(crate) fn set_readable(&self, readable: bool) {
        self.readable.store(readable, Ordering::Relaxed);
    }

    /// What is read from now on has all changes up to this one.
    pub(crate) fn mark(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Waits until something was touched.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_unknown_until_it_was_read_after_its_change() {
        let touched = Arc::new(Touched::default());
        assert!(!touched.is_beyond(0));
        let knows = |read, name: &str| !touched.any(read, |other| other == name.as_bytes());
        let touching = touched.begin(vec![b"v".as_slice().into()]);
        let before = touched.mark();
        assert!(
            touched.is_beyond(before) && !knows(before, "v"),
            "under way"
        );
        drop(touching);
        assert!(
            touched.is_beyond(before) && !knows(before, "v"),
            "read too early"
        );
        assert!(knows(before, "w"));
        let read = touched.mark();
        assert!(!touched.is_beyond(read) && knows(read, "v"));
    }
}

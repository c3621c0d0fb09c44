//! Who is connected, over all workers: for KILL and for the limits. Holds no session.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::strangers::Strangers;

/// Client connection numbers start here, so that they are not mistaken for a server's own.
pub const FIRST_ID: u32 = 0x4000_0000;

/// What is known of a client without asking its worker.
#[derive(Debug)]
struct Entry {
    worker: usize,
    uid: u64,
}

impl Entry {
    fn client(&self, id: u32) -> Client {
        Client {
            id,
            worker: self.worker,
            uid: self.uid,
        }
    }
}

/// All clients of the process.
#[derive(Debug)]
pub struct Registry {
    next_id: AtomicU32,
    next_uid: AtomicU64,
    count: AtomicUsize,
    clients: Mutex<HashMap<u32, Entry>>,
    addresses: Mutex<HashMap<IpAddr, usize>>,
    /// Of clients that speak another protocol.
    pub strangers: Strangers,
}

impl Default for Registry {
    fn default() -> Self {
        Registry {
            next_id: AtomicU32::new(FIRST_ID),
            next_uid: AtomicU64::new(1),
            count: AtomicUsize::new(0),
            clients: Mutex::default(),
            addresses: Mutex::default(),
            strangers: Strangers::default(),
        }
    }
}

/// A client as the registry has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// Its connection number.
    pub id: u32,
    /// The worker that serves it.
    pub worker: usize,
    /// Its session's identity.
    pub uid: u64,
}

impl Registry {
    /// All clients, by their numbers. Those that are still logging in are among them.
    pub fn list(&self) -> Vec<Client> {
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list: Vec<Client> = clients
            .iter()
            .map(|(id, entry)| entry.client(*id))
            .collect();
        drop(clients);
        list.sort_unstable_by_key(|client| client.id);
        list
    }

    /// The client with this number.
    pub fn client(&self, id: u32) -> Option<Client> {
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.get(&id).map(|entry| entry.client(id))
    }

    /// Clients connected now.
    pub fn clients(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// A number that no other client has, and an identity for the session.
    pub fn enter(&self, worker: usize) -> (u32, u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let uid = self.next_uid.fetch_add(1, Ordering::Relaxed);
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            if id < FIRST_ID {
                self.next_id.store(FIRST_ID, Ordering::Relaxed);
                continue;
            }
            if let std::collections::hash_map::Entry::Vacant(free) = clients.entry(id) {
                free.insert(Entry { worker, uid });
                return (id, uid);
            }
        }
    }

    /// The client left.
    pub fn leave(&self, id: u32) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.remove(&id);
    }

    /// Counts a client of an address; false where there are `limit` already (0: no limit).
    pub fn enter_address(&self, address: IpAddr, limit: usize) -> bool {
        if limit == 0 {
            return true;
        }
        let mut addresses = self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let count = addresses.entry(address).or_default();
        if *count >= limit {
            return false;
        }
        *count += 1;
        true
    }

    /// A client of an address left.
    pub fn leave_address(&self, address: IpAddr, limit: usize) {
        if limit == 0 {
            return;
        }
        let mut addresses = self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = addresses.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                addresses.remove(&address);
            }
        }
    }
}

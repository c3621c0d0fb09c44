//! What a client is counted in, from its first byte to its end. Undone when it is dropped, so also
//! for a session that panics.

use std::net::IpAddr;
use std::rc::Rc;

use tracing::error;

use crate::handle::Handle;
use crate::worker::{ClientService, Worker};

/// A client's place in the process's books.
pub struct Admission<S: ClientService> {
    worker: Rc<Worker<S>>,
    /// The client's address and the limit of clients by which it was counted there.
    address: Option<(IpAddr, usize)>,
    refused: bool,
    id: Option<u32>,
    handle: Option<Rc<Handle>>,
}

impl<S: ClientService> Admission<S> {
    /// Counts a client that has just connected.
    pub fn new(worker: Rc<Worker<S>>, address: Option<IpAddr>) -> Self {
        worker.metrics().client_opened();
        let limit = worker.options().clients_per_address;
        let registry = &worker.shared.registry;
        let refused = address.is_some_and(|address| !registry.enter_address(address, limit));
        let address = address.filter(|_| !refused);
        Admission {
            worker,
            address: address.map(|address| (address, limit)),
            refused,
            id: None,
            handle: None,
        }
    }

    /// The worker that serves it.
    pub fn worker(&self) -> &Rc<Worker<S>> {
        &self.worker
    }

    /// Its address has as many clients as it may have.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Gives it a number and its session an identity.
    pub fn register(&mut self) -> (u32, u64) {
        let (id, uid) = self.worker.shared.registry.enter(self.worker.index);
        self.id = Some(id);
        (id, uid)
    }

    /// It is logged in.
    pub fn enter(&mut self, handle: &Rc<Handle>) {
        self.handle = Some(handle.clone());
        self.worker.enter(handle);
    }
}

impl<S: ClientService> Drop for Admission<S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let id = self.id;
            error!(
                id,
                "a session has panicked, which is a defect of Millrace; it ends, others go on"
            );
        }
        if let Some(handle) = &self.handle {
            // Others may yet have the handle; the client's socket is closed now.
            handle.forget_socket();
            self.worker.leave(handle.uid());
        }
        let registry = &self.worker.shared.registry;
        if let Some(id) = self.id {
            registry.leave(id);
        }
        self.worker.metrics().client_closed();
        if let Some((address, limit)) = self.address {
            registry.leave_address(address, limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::tests::shared;
    use crate::worker::tests::NoService;

    #[test]
    fn a_client_whose_session_panics_is_counted_no_longer() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let local = tokio::task::LocalSet::new();
        let shared = shared();
        let worker = Worker::<NoService>::new(0, shared.clone());
        let address = Some(IpAddr::from([127, 0, 0, 1]));
        let ended = local.block_on(&runtime, {
            let worker = worker.clone();
            async move {
                tokio::task::spawn_local(async move {
                    let mut admission = Admission::new(worker.clone(), address);
                    let (_, uid) = admission.register();
                    let handle = Handle::new(uid, None, 1);
                    admission.enter(&Rc::new(handle));
                    assert!(Admission::new(worker.clone(), address).is_refused());
                    assert_eq!(worker.shared.registry.clients(), 1);
                    assert_eq!(worker.shared.metrics.clients_of(0), 1);
                    panic!("as a session may");
                })
                .await
            }
        });
        assert!(ended.is_err_and(|error| error.is_panic()));
        assert_eq!(shared.registry.clients(), 0);
        assert_eq!(shared.registry.list(), []);
        assert_eq!(shared.metrics.clients_of(0), 0);
        assert!(worker.is_deserted());
        assert!(!Admission::new(worker, address).is_refused());
    }
}

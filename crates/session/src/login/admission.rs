//! What a client is counted in, from its first byte to its end. Undone when it is dropped, so also
//! for a session that panics.

use std::net::IpAddr;
use std::rc::Rc;

use tracing::error;

use crate::worker::{Handle, Worker};

/// A client's place in the process's books.
pub(crate) struct Admission {
    worker: Rc<Worker>,
    /// The client's address and the limit of clients by which it was counted there.
    address: Option<(IpAddr, usize)>,
    refused: bool,
    id: Option<u32>,
    handle: Option<Rc<Handle>>,
}

impl Admission {
    /// Counts a client that has just connected.
    pub(crate) fn new(worker: Rc<Worker>, address: Option<IpAddr>) -> Self {
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
    pub(super) fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }

    /// Its address has as many clients as it may have.
    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Gives it a number and its session an identity.
    pub(super) fn register(&mut self) -> (u32, u64) {
        let (id, uid) = self.worker.shared.registry.enter(self.worker.index);
        self.id = Some(id);
        (id, uid)
    }

    /// It is logged in.
    pub(crate) fn enter(&mut self, handle: &Rc<Handle>) {
        self.handle = Some(handle.clone());
        self.worker.enter(handle);
    }
}

impl Drop for Admission {
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
            handle.socket.take();
            self.worker.leave(handle.uid);
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
pub(crate) mod tests {
    use std::sync::Arc;

    use millrace_backend::connect::Network;
    use millrace_backend::monitor::{Monitor, MonitorOptions};
    use millrace_backend::secret::Secret;
    use millrace_backend::tcp::TcpOptions;
    use millrace_backend::tls::{ServerTls, ServerTlsFiles, ServerTlsMode};
    use millrace_metrics::{Metrics, PerServer};
    use tokio::sync::mpsc;

    use super::*;
    use crate::login::accounts::Accounts;
    use crate::options::{Options, ServerKey};
    use crate::settings::SessionSettings;
    use crate::worker::Shared;
    use crate::worker::registry::Registry;
    use crate::worker::wait_queue::Held;
    use crate::worker::written::Written;

    /// What workers share that have no server.
    pub(crate) fn shared() -> Shared {
        let second = std::time::Duration::from_secs(1);
        let asked = MonitorOptions {
            user: String::new(),
            password: Secret::new(Vec::new()),
            interval: second,
            urgent_interval: second,
            timeout: second,
            connect_timeout: second,
            position_interval: second,
            catalogue_interval: second,
            catalogue_queries: |_| ["", "", ""],
            topology: millrace_topology::Options::default(),
            commit_stall: second,
            max_login_age: second,
            traffic: None,
        };
        let tls = ServerTls::new(ServerTlsMode::Disabled, &ServerTlsFiles::default());
        let options = Options {
            clients_per_address: 1,
            ..Options::default()
        };
        let (mailbox, _) = mpsc::unbounded_channel();
        Shared {
            held: Arc::new(Held::new(&options.failover)),
            settings: SessionSettings {
                options: Arc::new(options),
                ..SessionSettings::default()
            },
            counts: Arc::new(PerServer::new(0)),
            accounts: Arc::new(Accounts::default()),
            registry: Arc::new(Registry::default()),
            key: Arc::new(ServerKey::generate().unwrap()),
            tls: None,
            fingerprint: [0; 32],
            network: Arc::new(Network {
                tls: tls.unwrap(),
                tcp: TcpOptions::default(),
                resolver: millrace_backend::names::Resolver::default(),
            }),
            metrics: Arc::new(Metrics::new(1, Vec::new())),
            monitor: Monitor::new(&asked, Vec::new(), &[]),
            written: Arc::new(Written::new(1)),
            mailboxes: Arc::new(vec![mailbox]),
        }
    }

    #[test]
    fn a_client_whose_session_panics_is_counted_no_longer() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let local = tokio::task::LocalSet::new();
        let shared = shared();
        let worker = Worker::new(0, shared.clone());
        let address = Some(IpAddr::from([127, 0, 0, 1]));
        let ended = local.block_on(&runtime, {
            let worker = worker.clone();
            async move {
                tokio::task::spawn_local(async move {
                    let mut admission = Admission::new(worker.clone(), address);
                    let (_, uid) = admission.register();
                    let handle = Handle {
                        uid,
                        ..Handle::default()
                    };
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

//! The admin listener: a thread of its own, and what it may look at.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use millrace_admin::{Listener, OperatorsOptions, Sources, serve_operators};
use millrace_backend::account::Account;
use millrace_config::{Address, Admin, Settings};
use millrace_worker::{ListenerTls, Shared};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{oneshot, watch};
use tracing::{info, warn};

/// The admin listener's thread: it listens, and serves nobody before it is told to. It ends where it is
/// dropped before that.
pub(crate) struct AdminThread {
    begin: oneshot::Sender<()>,
}

impl AdminThread {
    /// Starts it, and waits until it listens.
    pub(crate) async fn bind(
        admin: &Admin,
        settings: watch::Receiver<Arc<Settings>>,
        shared: &Shared,
    ) -> anyhow::Result<AdminThread> {
        let (options, sources) = (options(admin, shared), sources(settings, shared));
        let address = admin.address.to_string();
        let (listens, listening) = oneshot::channel();
        let (begin, begins) = oneshot::channel();
        let run = async move || match Listener::bind(&address).await {
            Ok(listener) => {
                // Whoever waits for this may be gone: then nobody says that it begins either.
                let _ = listens.send(Ok(()));
                if begins.await.is_ok() {
                    serve_operators(listener, options, sources).await;
                }
            }
            Err(error) => drop(listens.send(Err(error))),
        };
        std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || {
                let runtime = Builder::new_current_thread()
                    .enable_all()
                    .build_local(LocalOptions::default());
                match runtime {
                    Ok(runtime) => runtime.block_on(run()),
                    Err(error) => warn!(%error, "the admin listener's thread cannot start"),
                }
            })
            .context("cannot start the admin listener's thread")?;
        listening
            .await
            .context("the admin listener's thread has ended")?
            .with_context(|| format!("cannot listen on {} for operators", admin.address))?;
        info!(address = %admin.address, "listening for operators");
        Ok(AdminThread { begin })
    }

    /// Has it serve, until the process ends.
    pub(crate) fn serve(self) {
        // It waits for this.
        let _ = self.begin.send(());
    }
}

fn options(admin: &Admin, shared: &Shared) -> OperatorsOptions {
    let tls = match admin.address {
        Address::Unix(_) => ListenerTls::Off,
        Address::Tcp { .. } => admin.tls,
    };
    OperatorsOptions {
        account: Account::new(0, admin.user.as_bytes(), admin.password.clone()),
        tls,
        acceptor: shared.tls.clone(),
        connections_max: admin.max_connections as usize,
        login_timeout: shared.settings.options.login_timeout,
        slowing: shared.settings.options.clone(),
    }
}

fn sources(settings: watch::Receiver<Arc<Settings>>, shared: &Shared) -> Sources {
    Sources {
        monitor: shared.monitor.clone(),
        mailboxes: shared.mailboxes.clone(),
        registry: shared.registry.clone(),
        held: Arc::clone(&shared.held),
        cache: shared.cache.clone(),
        metrics: shared.metrics.clone(),
        settings,
        started: Instant::now(),
    }
}

//! Starts the admin listener on a thread of its own, with what it may look at.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use millrace_admin::{Listener, OperatorsOptions, Sources, serve_operators};
use millrace_backend::account::Account;
use millrace_config::{Address, Admin, Config};
use millrace_session::{ListenerTls, Shared};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::oneshot;
use tracing::info;

/// Starts it, where the configuration wants it. Whoever waits for this knows that it listens.
pub(crate) async fn start(config: &Config, shared: &Shared) -> anyhow::Result<()> {
    let Some(admin) = &config.admin else {
        return Ok(());
    };
    let (options, sources) = (options(admin, shared), sources(config, shared));
    let address = admin.address.to_string();
    let (listens, listening) = oneshot::channel();
    std::thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || {
            let runtime = Builder::new_current_thread()
                .enable_all()
                .build_local(LocalOptions::default());
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(listens.send(Err(error))),
            };
            runtime.block_on(async {
                match Listener::bind(&address).await {
                    Ok(listener) => {
                        let _ = listens.send(Ok(()));
                        serve_operators(listener, options, sources).await;
                    }
                    Err(error) => drop(listens.send(Err(error))),
                }
            });
        })
        .context("cannot start the admin listener's thread")?;
    listening
        .await
        .context("the admin listener's thread has ended")?
        .with_context(|| format!("cannot listen on {} for operators", admin.address))?;
    info!(address = %admin.address, "listening for operators");
    Ok(())
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
        login_timeout: shared.options.login_timeout,
        slowing: shared.options.clone(),
    }
}

fn sources(config: &Config, shared: &Shared) -> Sources {
    Sources {
        monitor: shared.monitor.clone(),
        mailboxes: shared.mailboxes.clone(),
        registry: shared.registry.clone(),
        held: Arc::clone(&shared.held),
        metrics: shared.metrics.clone(),
        connections_max: shared.pool.max_connections,
        waiting_max: shared.pool.max_waiting,
        settings: config.settings(),
        rules: config.rule_texts(),
        started: Instant::now(),
    }
}

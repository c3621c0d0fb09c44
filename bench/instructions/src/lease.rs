//! A pool's connection lent and given back, without a session around it.

use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_backend::account::Account;
use millrace_backend::connect::BASE;
use millrace_backend::fresh::Fresh;
use millrace_backend::opener::Logins;
use millrace_backend::pool::{
    CheckoutRequest, PoolKey, PoolOptions, ServerCount, ServerFacts, ServerPool,
};
use millrace_backend::secret::Secret;
use millrace_engine::state::Begins;
use millrace_metrics::Metrics;
use millrace_sql::Family;
use millrace_topology::ServerId;

use crate::counted::repeat;
use crate::server::{CLIENT, COLLATION};
use crate::stage::{Stage, plain_network};

/// Idle connections; the session's own last one is not among them.
const IDLE: u64 = 8;

pub(crate) fn lease(count: u32) -> anyhow::Result<()> {
    let mut stage = Stage::new()?;
    let address = stage.addresses().swap_remove(0);
    let facts = ServerFacts {
        id: ServerId(0),
        address: address.clone(),
        family: Family::MySql,
        track: "time_zone".into(),
        begins: Arc::new(Begins::unknown()),
        tracked_by_default: "".into(),
        in_cluster: false,
        fresh: Fresh::new(Duration::from_secs(3600)),
    };
    let opener = Logins {
        network: plain_network()?,
        timeout: PoolOptions::default().connect_timeout,
        states: Rc::default(),
        buffers: Rc::default(),
        hosts_count: true,
        successors: Box::new(|_| Vec::new()),
    };
    let server = ServerPool::new(
        Arc::new(facts),
        Arc::new(PoolOptions::default()),
        Rc::new(opener),
        Arc::new(ServerCount::default()),
        0,
        1,
        Arc::new(|_, _| {}),
        Arc::new(Metrics::new(1, vec![address.to_string()])),
    );
    let pool = server.pool(&PoolKey {
        account: Arc::new(Account::new(0, b"app", Secret::new(Vec::new()))),
        shape: CLIENT.difference(BASE),
        tls: false,
        has_database: false,
        collation: COLLATION,
    });
    let mut leases = Vec::new();
    for other in 2..2 + IDLE {
        let (pool, state) = (pool.clone(), Rc::default());
        let mut lease = stage
            .finish(async move { pool.take(other, &state, 0).await })?
            .context("no connection")?;
        lease.books.mark(other, 0);
        leases.push(lease);
    }
    let state = leases
        .first()
        .map(|lease| lease.state.clone())
        .context("no lease")?;
    ensure!(
        leases.iter().all(|lease| Rc::ptr_eq(&lease.state, &state)),
        "the connections differ in their states"
    );
    leases.into_iter().for_each(|lease| lease.give_back());
    let wanted = CheckoutRequest {
        uid: 1,
        state: &state,
        version: 0,
        own: false,
        prepared: None,
        unused: None,
        changes: false,
    };
    repeat(count, |_| {
        if let Some(mut lease) = black_box(&pool).try_take(black_box(&wanted)) {
            // The next time somebody else has used it again.
            lease.books.mark(2, 0);
            lease.give_back();
        }
    });
    ensure!(server.idle_here() as u64 == IDLE, "a connection was lost");
    Ok(())
}

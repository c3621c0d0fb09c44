//! SHOW POOLS: the server connections of each account, over all workers.

use std::collections::BTreeMap;

use millrace_topology::ServerId;
use millrace_worker::{Message, PoolLine};

use crate::operators::answer::Answer;
use crate::operators::cell::{Cell, Trouble};
use crate::operators::listing::{Listing, Show, int, text};
use crate::operators::sources::Sources;

pub(crate) const LISTING: Listing = Listing {
    show: Show::Pools,
    name: "POOLS",
    also: &["POOL"],
    statement: "SHOW POOLS",
    help: "each server's connections by account: in use, idle, waited for, limits, reuse",
    columns: &[
        text("server", "its address"),
        text("account", "whose connections they are"),
        int("in_use", "connections on loan"),
        int("idle", "connections in no use"),
        int("opening", "connections that are being opened"),
        int("waiting", "sessions that wait for one"),
        int("opened", "connections opened so far"),
        int("lent", "how often one was lent so far"),
        int("reused", "how often that was one that was there already"),
        int("server_open", "connections to the server, of all accounts"),
        int("server_max", "as many as it may be: `pool.max_connections`"),
        int(
            "concurrency",
            "statements that the server runs at once, before others wait: `pool.concurrency`; NULL: no limit",
        ),
        int(
            "waiting_max",
            "sessions that may wait for the server: `pool.max_waiting`",
        ),
    ],
    like: 0,
};

/// Pools that are asked for, of each worker: they are counted together in memory.
const POOLS_MAX: usize = 10_000;

#[derive(Default)]
struct Sum {
    leased: u64,
    idle: usize,
    opening: usize,
    waiting: usize,
    opened: u64,
    lent: u64,
}

impl Sum {
    fn add(&mut self, line: &PoolLine) {
        self.leased += line.leased;
        self.idle += line.idle;
        self.opening += line.opening;
        self.waiting += line.waiting;
        self.opened += line.opened;
        self.lent += line.lent;
    }
}

pub(crate) async fn rows(sources: &Sources, answer: &mut Answer<'_>) -> Result<(), Trouble> {
    let world = sources.world();
    let servers = sources.server_lines().await?;
    let settings = sources.settings();
    let limits = &settings.config.pool;
    let ask = |reply| Message::Pools {
        max: POOLS_MAX,
        reply,
    };
    let mut sums: BTreeMap<(ServerId, Box<[u8]>), Sum> = BTreeMap::new();
    for lines in sources.ask_all(ask).await? {
        for line in &lines {
            let key = (line.server, line.account.user.clone());
            sums.entry(key).or_default().add(line);
        }
    }
    for ((server, account), sum) in sums {
        let open = servers.get(server.index()).map(|server| server.open);
        let row = [
            Sources::address(&world, server),
            Cell::bytes(&account),
            sum.leased.into(),
            sum.idle.into(),
            sum.opening.into(),
            sum.waiting.into(),
            sum.opened.into(),
            sum.lent.into(),
            sum.lent.saturating_sub(sum.opened).into(),
            open.into(),
            limits.max_connections.into(),
            concurrency(sources, server),
            limits.max_waiting.into(),
        ];
        answer.row(&row).await?;
    }
    Ok(())
}

fn concurrency(sources: &Sources, server: ServerId) -> Cell {
    match sources.metrics.concurrency(server.index()) {
        0 => Cell::Null,
        limit => limit.into(),
    }
}

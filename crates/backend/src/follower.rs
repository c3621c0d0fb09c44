//! Follows the primary's binary log as a replica does, and tells the cache's store of every transaction. Keeps no row,
//! acknowledges nothing, and writes nothing to the servers.

mod catalogue;
mod gate;
mod history;
mod mapped;
mod meaning;
mod primary;
mod server;
mod session;
mod state;
mod stream;
mod touched;
mod transactions;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};

use crate::cache::{Cache, Following};
use crate::connect::SharedNetwork;
use crate::monitor::run::keep;
use crate::monitor::{Monitor, MonitorOptions, World};

use primary::Target;
use session::Session;
use state::{Over, State};

/// A log that does not do is looked at again after this.
const LOOKED_AT_AGAIN: Duration = Duration::from_secs(3);

/// After a connection has ended it is tried again after this, and after twice as long each time.
const FIRST_BACKOFF: Duration = Duration::from_millis(20);

/// The longest of these pauses.
const LAST_BACKOFF: Duration = Duration::from_secs(1);

/// Does all that the cache needs beside sessions, until the process ends: follows the log, and places what was read. To
/// be called on a current-thread runtime that allows local tasks.
pub async fn run(
    cache: Arc<Cache>,
    monitor: Arc<Monitor>,
    options: Arc<MonitorOptions>,
    network: SharedNetwork,
) {
    let (placing, watched) = (cache.clone(), monitor.clone());
    let place = move || placing.clone().place(watched.clone());
    let follow = move || {
        // Whatever was known before is not known to be whole.
        cache.store().gap();
        let (options, network) = (options.clone(), network.clone());
        follow(cache.clone(), monitor.clone(), options, network)
    };
    tokio::join!(
        keep("what places results in the log", place),
        keep("the follower of the binary log", follow),
    );
}

/// Follows the log of whichever server is the primary, until the process ends. With the monitor's account, which needs
/// REPLICATION SLAVE for it. To be called on a current-thread runtime; it is best alone there, for the store is no
/// newer than it is.
pub async fn follow(
    cache: Arc<Cache>,
    monitor: Arc<Monitor>,
    options: Arc<MonitorOptions>,
    network: SharedNetwork,
) {
    let mut world = monitor.watch();
    let mut state = State::new(cache.clone(), options, network);
    let mut backoff = FIRST_BACKOFF;
    loop {
        let seen = world.borrow_and_update().clone();
        let over = match target(&state, &seen) {
            Ok(target) => follow_one(&mut state, &target, &seen, &mut world).await,
            Err(why) => Over::Unfit(why),
        };
        // Rule 6: nothing is served until the log is followed again.
        cache.store().gap();
        let pause = match over {
            Over::Moved => continue,
            Over::Unfit(why) => {
                backoff = FIRST_BACKOFF;
                let has_primary = seen.snapshot.primary.is_some();
                say(&cache, Following::Off(why.into()), has_primary);
                LOOKED_AT_AGAIN
            }
            Over::Lost(why) => {
                warn!(%why, "the primary's binary log is lost; it is followed again");
                if state.has_heard() {
                    backoff = FIRST_BACKOFF;
                }
                let pause = backoff;
                backoff = (2 * backoff).min(LAST_BACKOFF);
                pause
            }
        };
        wait(pause, &mut world, &seen).await;
    }
}

fn target(state: &State, world: &World) -> Result<Target, String> {
    if state.options.user.is_empty() {
        return Err("there is no account to follow the binary log with: set monitor.user".into());
    }
    Target::of(world)
}

/// Says what the follower does, where that is news.
fn say(cache: &Cache, now: Following, has_primary: bool) {
    if cache.following() == now {
        return;
    }
    match &now {
        Following::NotYet => {}
        Following::Log(address) => info!(%address, "the primary's binary log is followed"),
        // Which the topology's own lines say; at the beginning not all servers have been asked yet.
        Following::Off(why) if !has_primary => {
            info!(%why, "the primary's binary log is not followed yet");
        }
        Following::Off(why) => warn!(%why, "the primary's binary log is not followed"),
    }
    cache.set_following(now);
}

/// Follows one server's log until that ends, or another is to be followed.
async fn follow_one(
    state: &mut State,
    target: &Target,
    seen: &World,
    world: &mut watch::Receiver<Arc<World>>,
) -> Over {
    let following = async {
        let session = match Session::begin(state, target, seen).await {
            Ok(session) => session,
            Err(over) => return over,
        };
        let address = target.facts.address.to_string();
        say(&state.cache, Following::Log(address.into()), true);
        session.run(state).await
    };
    tokio::select! {
        over = following => over,
        () = moved(target, world) => Over::Moved,
    }
}

/// Waits until the primary is no longer the one whose log is followed.
async fn moved(target: &Target, world: &mut watch::Receiver<Arc<World>>) {
    loop {
        let now = Target::of(&world.borrow_and_update());
        if !now.is_ok_and(|now| now.is_same(target)) || world.changed().await.is_err() {
            return;
        }
    }
}

/// Waits for so long, or until another server is to be followed.
async fn wait(pause: Duration, world: &mut watch::Receiver<Arc<World>>, seen: &World) {
    let before = Target::of(seen);
    let changed = async {
        while world.changed().await.is_ok() {
            match (&before, Target::of(&world.borrow_and_update())) {
                (Ok(before), Ok(now)) if before.is_same(&now) => {}
                (Err(before), Err(now)) if *before == now => {}
                _ => return,
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        () = tokio::time::sleep(pause) => {}
        () = changed => {}
    }
}

//! The threads that serve: one for each worker, and one that asks the servers. Makes them and ends them;
//! knows no configuration.

use std::pin::pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use millrace_backend::cache::Cache;
use millrace_backend::connect::SharedNetwork;
use millrace_backend::follower;
use millrace_backend::monitor::{Monitor, MonitorOptions};
use millrace_backend::questions::Questions;
use millrace_session::Worker;
use millrace_worker::{Message, Shared};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use crate::coalesce::{Coalescer, Rest};

/// So long what watches goes on, once it is to end, for the answers to what it has asked.
const ANSWERED_WITHIN: Duration = Duration::from_millis(500);

/// A thread that watches servers: the monitor's, and the cache's.
pub(crate) struct WatchThread {
    thread: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl WatchThread {
    /// Has it end, so that its connections take their leave of the servers.
    pub(crate) async fn end(self) {
        drop(self.stop);
        let joining = tokio::task::spawn_blocking(move || self.thread.join());
        // A name that is being looked up would hold it up.
        let _ = tokio::time::timeout(Duration::from_secs(1), joining).await;
    }
}

pub(crate) fn start_monitor(
    monitor: &Arc<Monitor>,
    options: Arc<MonitorOptions>,
    network: SharedNetwork,
) -> anyhow::Result<WatchThread> {
    let monitor = monitor.clone();
    let questions = network.questions.clone();
    start("monitor", questions, move || monitor.run(options, network))
}

/// Follows the log that keeps the cache true, and places what was read for it.
pub(crate) fn start_cache(
    cache: &Arc<Cache>,
    monitor: &Arc<Monitor>,
    options: Arc<MonitorOptions>,
    network: SharedNetwork,
) -> anyhow::Result<WatchThread> {
    let (cache, monitor) = (cache.clone(), monitor.clone());
    let questions = network.questions.clone();
    start("cache", questions, move || {
        follower::run(cache, monitor, options, network)
    })
}

/// `questions`: what it asks of servers; it is ended between two of them, if that comes soon.
fn start(
    name: &str,
    questions: Questions,
    watch: impl AsyncFnOnce() + Send + 'static,
) -> anyhow::Result<WatchThread> {
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            if let Ok(runtime) = Builder::new_current_thread()
                .enable_all()
                .build_local(LocalOptions::default())
            {
                runtime.block_on(async {
                    let mut watching = pin!(watch());
                    tokio::select! {
                        () = &mut watching => return,
                        _ = stopped => {}
                    }
                    let answered = async {
                        while !questions.are_answered() {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                    };
                    tokio::select! {
                        () = &mut watching => {}
                        _ = tokio::time::timeout(ANSWERED_WITHIN, answered) => {}
                    }
                });
            }
        })
        .with_context(|| format!("cannot start the thread `{name}`"))?;
    Ok(WatchThread { thread, stop })
}

pub(crate) fn start_workers(
    shared: &Shared,
    receivers: Vec<mpsc::UnboundedReceiver<Message>>,
    rests: Vec<Arc<Rest>>,
    accept: impl AsyncFnOnce() + Send + 'static,
) -> anyhow::Result<Vec<JoinHandle<()>>> {
    // On the first worker's thread.
    let mut accept = Some(accept);
    receivers
        .into_iter()
        .zip(rests)
        .enumerate()
        .map(|(index, (mailbox, rest))| {
            let shared = shared.clone();
            let accept = accept.take();
            std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || {
                    rest.prepare_thread();
                    let runtime = Builder::new_current_thread()
                        .enable_all()
                        .on_thread_park(move || rest.take())
                        .build_local(LocalOptions::default());
                    match runtime {
                        Ok(runtime) => {
                            runtime.block_on(async {
                                if let Some(accept) = accept {
                                    tokio::task::spawn_local(async move { accept().await });
                                }
                                Worker::new(index, shared).run(mailbox).await;
                            });
                        }
                        Err(error) => warn!(%error, "a worker cannot start"),
                    }
                })
                .context("cannot start a worker's thread")
        })
        .collect()
}

/// Tells the workers that a second has passed, and four times in it how long to rest. A timer of their
/// own would be set and cancelled by the system each time they sleep, which is for every statement where
/// clients are few.
pub(crate) async fn tell_time(
    mailboxes: Arc<Vec<mpsc::UnboundedSender<Message>>>,
    mut coalescer: Coalescer,
) {
    let mut quarter = tokio::time::interval(Duration::from_millis(250));
    quarter.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for number in 0_u64.. {
        quarter.tick().await;
        coalescer.adjust();
        if !number.is_multiple_of(4) {
            continue;
        }
        for mailbox in mailboxes.iter() {
            // A closed mailbox is a worker that ends.
            let _ = mailbox.send(Message::Second);
        }
    }
}

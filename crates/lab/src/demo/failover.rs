//! `millrace-lab demo --failover`: the primary is killed under load, a replica is promoted as an
//! orchestrator would, and it is shown what Millrace saw, and what clients noticed. Tells; the
//! clients are `steady`'s.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use millrace_sandbox::{Cluster, ServerInfo};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Row};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::ports::Ports;
use super::proxy::ADMIN_PASSWORD;
use super::steady::{self, Book, Deed, Shared};
use super::view::say;

/// Before the fault, and after the new primary takes writes.
const CALM: Duration = Duration::from_secs(3);
/// What an orchestrator takes to be sure.
const REACTION: Duration = Duration::from_secs(1);
/// Clients finish what they are at; none may take longer.
const STOP_LIMIT: Duration = Duration::from_secs(60);
const CATCH_UP_LIMIT: Duration = Duration::from_secs(60);

/// Moments after the fault.
struct Moves {
    killed: ServerInfo,
    promoted: ServerInfo,
    promotion_began: Duration,
    promotion_ended: Duration,
}

/// Runs the story from a cluster with its tables to a cluster that is whole again. True when
/// clients saw nothing but what is documented, and the servers have what was acknowledged.
///
/// # Errors
/// When a server or Millrace does not do what it is told to.
pub(super) async fn play(
    cluster: &Cluster,
    ports: Ports,
    opts: &Opts,
    clients: u64,
    json: bool,
) -> Result<bool> {
    let primary = cluster.primary();
    counters(cluster, clients).await?;
    let tell = |text: String| {
        if !json {
            say(&text);
        }
    };
    tell(format!(
        "{clients} clients read, write and run transactions, and check every answer. In {} s the \
         primary is killed.\n",
        CALM.as_secs()
    ));
    let work = Work::start(clients, opts);
    sleep(CALM).await;
    let moves = fail_over(cluster, &work.book, primary, &tell).await?;
    sleep(CALM).await;
    let book = work.stop().await?;
    tell(format!(
        "\n{} comes back: it has what nobody else has, if anything, and is rebuilt as a replica.",
        moves.killed.name
    ));
    cluster.rebuild(&moves.killed.name).await?;
    cluster.wait_replicas_caught_up(CATCH_UP_LIMIT).await?;
    let wrong = compare(cluster, &book).await?;
    let timeline = timeline(ports).await?;
    let right = wrong.is_empty() && book.wrong.is_empty() && book.errors.is_empty();
    if json {
        say(&in_json(&moves, &book, &timeline, &wrong, right).to_string());
    } else {
        say(&in_words(&moves, &book, &timeline, &wrong, right));
    }
    Ok(right)
}

/// A counter for each client.
async fn counters(cluster: &Cluster, clients: u64) -> Result<()> {
    let mut control = cluster.control(&cluster.primary().name).await?;
    let rows: Vec<String> = (1..=clients)
        .map(|client| format!("({client}, 0)"))
        .collect();
    for sql in [
        "CREATE TABLE app.demo_count (client INT PRIMARY KEY, n INT NOT NULL)".to_owned(),
        format!("INSERT INTO app.demo_count VALUES {}", rows.join(", ")),
    ] {
        control.run(&sql).await?;
    }
    control.close().await;
    cluster.wait_replicas_caught_up(CATCH_UP_LIMIT).await
}

async fn fail_over(
    cluster: &Cluster,
    book: &Shared,
    killed: ServerInfo,
    tell: &impl Fn(String),
) -> Result<Moves> {
    let struck = Instant::now();
    steady::locked(book).struck = Some(struck);
    cluster.kill(&killed.name).await?;
    let at = |time: Duration| format!("{:>7.3} s  ", time.as_secs_f64());
    tell(format!(
        "{}{} ({}), the primary, is killed",
        at(Duration::ZERO),
        killed.name,
        killed.addr()
    ));
    sleep(REACTION).await;
    let promotion_began = struck.elapsed();
    let name = cluster.promote_best().await?;
    let promotion_ended = struck.elapsed();
    let promoted = cluster.primary();
    tell(format!(
        "{}the orchestrator promotes {name}, which has every acknowledged write",
        at(promotion_began)
    ));
    tell(format!("{}{name} takes writes", at(promotion_ended)));
    Ok(Moves {
        killed,
        promoted,
        promotion_began,
        promotion_ended,
    })
}

/// The clients at work.
struct Work {
    book: Shared,
    stop: watch::Sender<bool>,
    clients: JoinSet<()>,
}

impl Work {
    fn start(count: u64, opts: &Opts) -> Self {
        let (stop, stopped) = watch::channel(false);
        let book = Shared::default();
        let mut clients = JoinSet::new();
        for number in 1..=count {
            clients.spawn(steady::live(
                number,
                opts.clone(),
                book.clone(),
                stopped.clone(),
            ));
        }
        Work {
            book,
            stop,
            clients,
        }
    }

    async fn stop(mut self) -> Result<Book> {
        self.stop.send_replace(true);
        let all = async {
            while let Some(ended) = self.clients.join_next().await {
                ended.context("a client failed")?;
            }
            anyhow::Ok(())
        };
        timeout(STOP_LIMIT, all).await.context("a client hangs")??;
        Ok(std::mem::take(&mut *steady::locked(&self.book)))
    }
}

/// Asks every server, directly, whether it has what clients were told; gives what is not so.
async fn compare(cluster: &Cluster, book: &Book) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for server in cluster.servers() {
        let mut control = cluster.control(&server.name).await?;
        for (client, (done, unknown)) in &book.written {
            let sql = format!("SELECT n FROM app.demo_count WHERE client = {client}");
            let n: u64 = control.value(&sql).await?.unwrap_or_default().parse()?;
            if !(*done..=done + unknown).contains(&n) {
                wrong.push(format!(
                    "on {} client {client} counts {n}: {done} acknowledged, {unknown} unknown",
                    server.name
                ));
            }
        }
        control.close().await;
    }
    Ok(wrong)
}

/// Millrace's own account of the change of primary: SHOW FAILOVERS' names and values.
async fn timeline(ports: Ports) -> Result<Vec<(String, String)>> {
    let opts = OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(ports.admin)
        .user(Some("admin"))
        .pass(Some(ADMIN_PASSWORD))
        .prefer_socket(false)
        .max_allowed_packet(Some(1 << 20))
        .wait_timeout(Some(3_600));
    let mut conn = Conn::new(opts).await.context("the admin listener")?;
    let row: Option<Row> = conn.query_first("SHOW FAILOVERS LIMIT 1").await?;
    conn.disconnect().await?;
    let row = row.context("Millrace tells of no change of primary")?;
    let columns = row.columns_ref().iter().enumerate();
    Ok(columns
        .map(|(index, column)| {
            let value = match row.as_ref(index) {
                Some(mysql_async::Value::Bytes(text)) => String::from_utf8_lossy(text).into_owned(),
                Some(mysql_async::Value::NULL) | None => "–".to_owned(),
                Some(other) => other.as_sql(true),
            };
            (column.name_str().into_owned(), value)
        })
        .collect())
}

fn in_words(
    moves: &Moves,
    book: &Book,
    timeline: &[(String, String)],
    wrong: &[String],
    right: bool,
) -> String {
    let mut text =
        String::from("\nWhat Millrace saw (SHOW FAILOVERS; times from the last good answer):\n\n");
    for (name, value) in timeline {
        let _ = writeln!(text, "  {name:>15}: {value}");
    }
    text += "\nWhat clients saw:\n\n  ";
    let _ = writeln!(
        text,
        "{:<18} {:>8} {:>10} {:>16} {:>7}   {:>22}   {:>10}",
        "", "done", "to rerun", "outcome unknown", "errors", "under way at the kill", "longest"
    );
    for deed in Deed::ALL {
        let sums = book.sums.get(&deed).cloned().unwrap_or_default();
        let _ = writeln!(
            text,
            "  {:<18} {:>8} {:>10} {:>16} {:>7}   {:>10} of {:>4} done   {:>7} ms",
            deed.name(),
            sums.done,
            sums.retriable,
            sums.unknown,
            sums.errors,
            sums.met_done,
            sums.met,
            sums.longest.as_millis()
        );
    }
    let _ = writeln!(
        text,
        "\n  {} took writes {} ms after {} was killed; {} ms of these are the promotion itself.",
        moves.promoted.name,
        moves.promotion_ended.as_millis(),
        moves.killed.name,
        (moves.promotion_ended - moves.promotion_began).as_millis()
    );
    for line in wrong.iter().chain(&book.wrong).chain(&book.errors).take(5) {
        let _ = writeln!(text, "  ! {line}");
    }
    text += if right {
        "  Every server has every acknowledged write, and none twice."
    } else {
        "  NOT everything came out right."
    };
    text
}

fn in_json(
    moves: &Moves,
    book: &Book,
    timeline: &[(String, String)],
    wrong: &[String],
    right: bool,
) -> Value {
    let deeds: Vec<Value> = Deed::ALL
        .iter()
        .map(|deed| {
            let sums = book.sums.get(deed).cloned().unwrap_or_default();
            json!({
                "deed": deed.name(),
                "done": sums.done,
                "retriable": sums.retriable,
                "unknown_outcome": sums.unknown,
                "errors": sums.errors,
                "under_way": sums.met,
                "under_way_done": sums.met_done,
                "longest_ms": sums.longest.as_millis() as u64,
            })
        })
        .collect();
    let seen: serde_json::Map<String, Value> = timeline
        .iter()
        .map(|(name, value)| (name.clone(), Value::from(value.as_str())))
        .collect();
    json!({
        "right": right,
        "killed": moves.killed.addr(),
        "promoted": moves.promoted.addr(),
        "promotion_began_ms": moves.promotion_began.as_millis() as u64,
        "promotion_ended_ms": moves.promotion_ended.as_millis() as u64,
        "clients": deeds,
        "seen": seen,
        "wrong": wrong.iter().chain(&book.wrong).chain(&book.errors).collect::<Vec<_>>(),
    })
}

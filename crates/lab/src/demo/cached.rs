//! `millrace-lab demo --cached`: the same load without the cache and with it, while somebody writes past Millrace.
//! Every answer is checked, and it is shown what the cache saved. Tells; the clients are `readers`'.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millrace_sandbox::{APP, Cluster};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::observer::Observer;
use super::ports::Ports;
use super::proxy::ADMIN_PASSWORD;
use super::readers::{self, Book, STOCK, Shared};
use super::view::say;

/// How long each of the two loads runs.
pub(super) const LOAD: Duration = Duration::from_secs(8);
/// Clients finish what they are at; none may take longer.
const STOP_LIMIT: Duration = Duration::from_secs(30);
const CATCH_UP_LIMIT: Duration = Duration::from_secs(60);
const FOLLOWS_LIMIT: Duration = Duration::from_secs(15);
/// So many rows of SHOW CACHE STATEMENTS are shown.
const SHOWN: usize = 4;

/// What one load came to.
pub(super) struct Part {
    seconds: f64,
    clients: u64,
    reads: u64,
    writes: u64,
    written_beside: u64,
    p50: Duration,
    p95: Duration,
    /// SELECTs by the servers' own counts.
    selects: u64,
    /// Rows of SHOW CACHE.
    cache: Vec<(String, String)>,
    /// Statements with hits and misses.
    statements: Vec<(String, u64, u64)>,
    checked: u64,
    stale: u64,
    late: u64,
    wrong: Vec<String>,
}

impl Part {
    fn told(&self, name: &str) -> Option<&str> {
        let row = self.cache.iter().find(|(about, _)| about == name);
        row.map(|(_, value)| value.as_str())
    }

    fn hits(&self) -> u64 {
        let hits = self.told("hits").and_then(|text| text.parse().ok());
        hits.unwrap_or_default()
    }

    fn share(&self) -> f64 {
        self.hits() as f64 / self.reads.max(1) as f64
    }

    fn is_right(&self) -> bool {
        self.checked > 0 && self.stale == 0 && self.wrong.is_empty()
    }
}

/// Rows that grow, each at 0.
pub(super) async fn prepare(cluster: &Cluster) -> Result<Shared> {
    let mut control = cluster.control(&cluster.primary().name).await?;
    let rows: Vec<String> = (1..=STOCK).map(|id| format!("({id}, 0)")).collect();
    for sql in [
        "CREATE TABLE app.demo_stock (id INT PRIMARY KEY, n BIGINT NOT NULL)".to_owned(),
        format!("INSERT INTO app.demo_stock VALUES {}", rows.join(", ")),
    ] {
        control.run(&sql).await?;
    }
    control.close().await;
    cluster.wait_replicas_caught_up(CATCH_UP_LIMIT).await?;
    let book = Shared::default();
    readers::locked(&book)
        .stock
        .resize_with(STOCK as usize, Default::default);
    Ok(book)
}

/// Runs the load once.
///
/// # Errors
/// When Millrace does not answer, or a client hangs.
pub(super) async fn load(
    cluster: &Cluster,
    ports: Ports,
    opts: &Opts,
    clients: u64,
    book: &Shared,
) -> Result<Part> {
    let mut observer = Observer::new(ports.http, cluster.servers()).await?;
    let (stop, stopped) = watch::channel(false);
    let mut all = JoinSet::new();
    for number in 1..=clients {
        let (opts, book, stopped) = (opts.clone(), book.clone(), stopped.clone());
        all.spawn(readers::live(number, clients, opts, book, stopped));
    }
    let primary = local(cluster.primary().port, APP.user, APP.password).db_name(Some("app"));
    all.spawn(readers::write_beside(
        primary.into(),
        book.clone(),
        stopped.clone(),
    ));
    let began = Instant::now();
    sleep(LOAD).await;
    stop.send_replace(true);
    let ended = async {
        while let Some(one) = all.join_next().await {
            one.context("a client failed")?;
        }
        anyhow::Ok(())
    };
    timeout(STOP_LIMIT, ended)
        .await
        .context("a client hangs")??;
    let seconds = began.elapsed().as_secs_f64();
    let look = observer.look().await?;
    let (cache, statements) = told(ports).await?;
    let mut book = readers::locked(book);
    // What rows must show stays for the next load.
    let stock = book.stock.clone();
    let mut seen = std::mem::replace(
        &mut *book,
        Book {
            stock,
            ..Book::default()
        },
    );
    seen.times.sort_unstable();
    let at = |share: f64| {
        let index = (seen.times.len() as f64 * share) as usize;
        seen.times.get(index).copied().unwrap_or_default()
    };
    Ok(Part {
        seconds,
        clients,
        reads: seen.times.len() as u64,
        writes: seen.writes,
        written_beside: seen.written_beside,
        p50: at(0.5),
        p95: at(0.95),
        selects: look.servers.iter().map(|server| server.own_selects).sum(),
        cache,
        statements,
        checked: seen.checked,
        stale: seen.stale,
        late: seen.late,
        wrong: seen.wrong.into_iter().chain(seen.errors).collect(),
    })
}

/// Waits until the cache can serve.
///
/// # Errors
/// With Millrace's reason, when it does not within 15 seconds.
pub(super) async fn until_serving(ports: Ports) -> Result<()> {
    let begun = Instant::now();
    loop {
        let (rows, _) = told(ports).await?;
        let value = |name: &str| {
            let row = rows.iter().find(|(about, _)| about == name);
            row.map_or("", |(_, value)| value.as_str())
        };
        if value("state") == "serving" {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < FOLLOWS_LIMIT,
            "the cache is {}: {}",
            value("state"),
            value("reason")
        );
        sleep(Duration::from_millis(50)).await;
    }
}

type Told = (Vec<(String, String)>, Vec<(String, u64, u64)>);

/// SHOW CACHE, and the first of SHOW CACHE STATEMENTS.
async fn told(ports: Ports) -> Result<Told> {
    let opts = local(ports.admin, "admin", ADMIN_PASSWORD);
    let mut conn = Conn::new(opts).await.context("the admin listener")?;
    let rows = conn.query("SHOW CACHE").await?;
    let statements: Vec<mysql_async::Row> = conn.query("SHOW CACHE STATEMENTS").await?;
    conn.disconnect().await?;
    let of = |row: &mysql_async::Row| {
        Some((row.get("statement")?, row.get("hits")?, row.get("misses")?))
    };
    Ok((rows, statements.iter().take(SHOWN).filter_map(of).collect()))
}

/// Known values spare the driver its questions.
fn local(port: u16, user: &str, password: &str) -> OptsBuilder {
    OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(port)
        .user(Some(user))
        .pass(Some(password))
        .prefer_socket(false)
        .max_allowed_packet(Some(1 << 20))
        .wait_timeout(Some(3_600))
}

/// Asks every server, directly, whether it has what was acknowledged; gives what is not so.
pub(super) async fn compare(cluster: &Cluster, book: &Shared) -> Result<Vec<String>> {
    cluster.wait_replicas_caught_up(CATCH_UP_LIMIT).await?;
    let due: u64 = {
        let book = readers::locked(book);
        book.stock.iter().map(readers::Stock::last).sum()
    };
    let mut wrong = Vec::new();
    for server in cluster.servers() {
        let mut control = cluster.control(&server.name).await?;
        let sum = control.value("SELECT SUM(n) FROM app.demo_stock").await?;
        let sum: u64 = sum.unwrap_or_default().parse()?;
        if sum != due {
            wrong.push(format!(
                "{} counts {sum}, acknowledged is {due}",
                server.name
            ));
        }
        control.close().await;
    }
    Ok(wrong)
}

/// True when every answer was what it must be, and some came out of memory.
pub(super) fn is_right(off: &Part, on: &Part, wrong: &[String]) -> bool {
    off.is_right() && on.is_right() && on.hits() > 0 && wrong.is_empty()
}

pub(super) fn report(off: &Part, on: &Part, wrong: &[String], as_json: bool) {
    if as_json {
        say(&in_json(off, on, wrong).to_string());
    } else {
        say(&in_words(off, on, wrong));
    }
}

fn in_words(off: &Part, on: &Part, wrong: &[String]) -> String {
    let mut text = format!("\n  {:<38} {:>12} {:>12}\n", "", "cache off", "cache on");
    let mut row = |what: &str, cell: &dyn Fn(&Part) -> String| {
        let _ = writeln!(text, "  {what:<38} {:>12} {:>12}", cell(off), cell(on));
    };
    row("statements", &|part| (part.reads + part.writes).to_string());
    row("  of these writes", &|part| part.writes.to_string());
    row("writes past Millrace", &|part| {
        part.written_beside.to_string()
    });
    row("answers out of memory", &|part| match part.told("hits") {
        Some(hits) => hits.to_owned(),
        None => "–".to_owned(),
    });
    row("  of all reads", &|part| match part.told("hits") {
        Some(_) => format!("{:.1} %", part.share() * 100.0),
        None => "–".to_owned(),
    });
    row("reads, p50", &|part| millis(part.p50));
    row("reads, p95", &|part| millis(part.p95));
    row("SELECTs by the servers' own count", &|part| {
        part.selects.to_string()
    });
    row("answers checked", &|part| part.checked.to_string());
    row("  stale", &|part| part.stale.to_string());
    if off.late + on.late > 0 {
        row("  late, because a replica lagged", &|part| {
            part.late.to_string()
        });
    }
    let _ = writeln!(
        text,
        "\n  {} statements did not reach a server. {} clients had {:.0} s each time.",
        on.hits(),
        on.clients,
        off.seconds
    );
    text += "\nSHOW CACHE on the admin listener, but for what is 0:\n\n";
    for (name, value) in on.cache.iter().filter(|(_, value)| value != "0") {
        let _ = writeln!(text, "  {name:>45}: {value}");
    }
    text += "\nSHOW CACHE STATEMENTS says it by statement, and why one is not kept:\n\n";
    for (statement, hits, misses) in &on.statements {
        let _ = writeln!(text, "  {hits:>7} hits, {misses:>6} misses  {statement}");
    }
    text += "\nSHOW ROUTE in a session says whether its last answer was out of memory, and EXPLAIN ROUTE SELECT … \
             whether one\ncould be. FLUSH CACHE empties it.\n\n";
    let all = off.wrong.iter().chain(&on.wrong).chain(wrong);
    for line in all.take(5) {
        let _ = writeln!(text, "  ! {line}");
    }
    text += match is_right(off, on, wrong) {
        true => "  No answer was stale.",
        false if on.hits() == 0 => "  NOT everything came out right: nothing was out of memory.",
        false => "  NOT everything came out right.",
    };
    text
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

fn in_json(off: &Part, on: &Part, wrong: &[String]) -> Value {
    let part = |part: &Part| {
        json!({
            "seconds": part.seconds,
            "statements": part.reads + part.writes,
            "reads": part.reads,
            "writes": part.writes,
            "written_past_millrace": part.written_beside,
            "hits": part.hits(),
            "p50_ms": part.p50.as_secs_f64() * 1000.0,
            "p95_ms": part.p95.as_secs_f64() * 1000.0,
            "servers_selects": part.selects,
            "answers_checked": part.checked,
            "stale": part.stale,
            "late": part.late,
        })
    };
    json!({
        "right": is_right(off, on, wrong),
        "off": part(off),
        "on": part(on),
        "hits_share": on.share(),
        "wrong": off.wrong.iter().chain(&on.wrong).chain(wrong).collect::<Vec<_>>(),
    })
}

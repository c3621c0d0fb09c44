//! The examples of docs/consistency.md and docs/routing.md, run as they stand there.

use std::process::Command;

use anyhow::{Context, ensure};
use millrace_sandbox::{Cluster, MONITOR};
use millrace_tests::harness::{Launch, program};
use millrace_tests::wire::Connection;

use crate::ground::{READY, app};

const CONSISTENCY: &str = include_str!("../../../docs/consistency.md");
const ROUTING: &str = include_str!("../../../docs/routing.md");

/// The configuration that shows rules.
fn configuration() -> anyhow::Result<&'static str> {
    let blocks = ROUTING.split("```toml\n").skip(1);
    let mut blocks = blocks.filter_map(|block| Some(block.split_once("```")?.0));
    blocks
        .find(|block| block.contains("[[rule]]"))
        .context("no rules in docs/routing.md")
}

/// What is indented, from the first line that `begins` says to the line before the next that is not.
fn indented(text: &str, begins: impl Fn(&str) -> bool) -> Vec<&str> {
    let lines = text.lines().skip_while(|line| !begins(line));
    lines.map_while(|line| line.strip_prefix("    ")).collect()
}

/// The statements in the texts: indented ones, and those between backquotes.
fn statements() -> Vec<String> {
    let mut found = Vec::new();
    for text in [CONSISTENCY, ROUTING] {
        let indented = text
            .lines()
            .filter_map(|line| line.strip_prefix("    "))
            .map(|line| line.strip_prefix("mysql> ").unwrap_or(line));
        let quoted = text.split('`').skip(1).step_by(2);
        for sql in indented.chain(quoted) {
            let begins = [
                "SELECT /*",
                "SELECT @@",
                "SET @@",
                "EXPLAIN ROUTE ",
                "SHOW ROUTE",
            ];
            if begins.iter().any(|begin| sql.starts_with(begin)) && !sql.contains('<') {
                found.push(sql.replace('…', "1"));
            }
        }
    }
    found
}

/// On the cluster, with the configuration for rules.
pub(crate) async fn statements_run(cluster: &Cluster) -> anyhow::Result<()> {
    let launch = Launch::new()?;
    let mut text = configuration()?
        .replace("127.0.0.1:6033", &format!("127.0.0.1:{}", launch.port))
        .replace("millrace_monitor", MONITOR.user);
    for (name, server) in ["db1:3306", "db2:3306", "db3:3306"]
        .into_iter()
        .zip(cluster.servers())
    {
        text = text.replace(name, &format!("127.0.0.1:{}", server.port));
    }
    text.push_str(&format!(
        "[http]\nlisten = \"127.0.0.1:{}\"\n",
        launch.http_port
    ));
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(READY).await?;
    let mut connection = Connection::open(&app(proxy.address())).await?;
    connection
        .expect("CREATE TABLE IF NOT EXISTS app.orders (id INT PRIMARY KEY)")
        .await?;
    let statements = statements();
    ensure!(statements.len() >= 8, "but {statements:?} in the documents");
    for sql in &statements {
        connection
            .expect(sql)
            .await
            .with_context(|| format!("docs: {sql}"))?;
    }
    let shown = indented(ROUTING, |line| line.starts_with("    mysql> EXPLAIN ROUTE"));
    let sql = shown[0].trim_start_matches("mysql> ");
    let rows = connection.expect(sql).await?.rows();
    let really: Vec<_> = rows.iter().filter_map(|row| row[0].as_deref()).collect();
    for line in &shown[4..] {
        let Some((_, rest)) = line.split_once("| ") else {
            continue;
        };
        let about = rest.split('|').next().unwrap_or_default().trim();
        ensure!(
            really.contains(&about),
            "no line about `{about}` in {rows:?}"
        );
    }
    connection.quit().await;
    Ok(())
}

/// `millrace explain` answers what the document shows.
pub(crate) fn commands_run() -> anyhow::Result<()> {
    let folder = std::env::temp_dir().join(format!("millrace-examples-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("millrace.toml"), configuration()?)?;
    let section = ROUTING
        .split_once("## Trying rules without servers")
        .context("no section about `millrace explain`")?
        .1;
    let mut world = String::new();
    for line in indented(section, |line| line.starts_with("    [[server]]")) {
        world.push_str(line);
        world.push('\n');
    }
    std::fs::write(folder.join("world.toml"), world)?;
    let commands: Vec<_> = section
        .lines()
        .filter(|line| line.starts_with("    $ millrace "))
        .collect();
    ensure!(commands.len() == 2, "{commands:?}");
    for command in commands {
        let shown = indented(section, |line| line == command);
        let arguments = shown[0].trim_start_matches("$ millrace");
        let ran = Command::new("sh")
            .arg("-c")
            .arg(format!("\"$0\" {arguments}"))
            .arg(program()?)
            .current_dir(&folder)
            .env("MILLRACE_MONITOR_PASSWORD", "x")
            .output()?;
        let answer = String::from_utf8_lossy(&ran.stdout);
        ensure!(
            answer.lines().eq(shown[1..].iter().copied()),
            "`{command}` answers\n{answer}{}",
            String::from_utf8_lossy(&ran.stderr)
        );
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

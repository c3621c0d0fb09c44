//! What rules and hints say about results in memory.

use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_sandbox::APP;
use millrace_tests::harness::{self, Proxy};
use millrace_tests::wire::{Connection, Login};

use crate::ground::{Ground, addresses, options, told_by, until_serving};

const RULES: &str = "[[rule]]\nname = \"out\"\ntag = \"out\"\ncache = \"never\"\n\
                     [[rule]]\nname = \"sent\"\ntag = \"sent\"\nto = \"replicas\"\n\
                     [[rule]]\nname = \"sent and kept\"\ntag = \"sent_and_kept\"\nto = \"replicas\"\ncache = \"exact\"\n\
                     [[rule]]\nname = \"kept\"\ntag = \"kept\"\ncache = \"exact\"\n\
                     [[rule]]\nname = \"level\"\ntag = \"level\"\nconsistency = \"session\"\n";

/// Each statement's comment; whether it is kept where everything is that can be, and where only rules say so; and a
/// part of what EXPLAIN ROUTE says with rules only, where it is not.
const CASES: &[(&str, bool, bool, &str)] = &[
    ("kept", true, true, ""),
    ("sent_and_kept", true, true, ""),
    ("level", true, false, "no rule says cache"),
    ("nothing of it", true, false, "no rule says cache"),
    ("out", false, false, "a rule or a hint says so"),
    ("sent", false, false, "no rule says cache"),
    (
        "millrace: cache=off, tag=kept",
        false,
        false,
        "a hint says so",
    ),
    ("millrace: no_cache", false, false, "a hint says so"),
    (
        "millrace: replica, tag=kept",
        false,
        false,
        "a hint says so",
    ),
    (
        "millrace: consistency=session",
        true,
        false,
        "no rule says cache",
    ),
];

/// Another proxy before the same servers, and a client of it.
async fn proxy(ground: &Ground, mode: &str) -> anyhow::Result<(Proxy, u16, Connection)> {
    let admin_port = harness::free_port()?;
    let mut options = options(admin_port);
    options.extra = options
        .extra
        .replace("mode = \"auto\"", &format!("mode = \"{mode}\""));
    options.extra.push_str(RULES);
    let proxy = Proxy::start(&addresses(&ground.cluster), &options).await?;
    until_serving(admin_port).await?;
    let login = Login::new(proxy.address(), APP.user, APP.password).database("app");
    let client = Connection::open(&login).await?;
    Ok((proxy, admin_port, client))
}

/// Whether a statement's answer comes out of memory, which SHOW ROUTE tells; asked up to so many times.
async fn is_kept(client: &mut Connection, sql: &str, rounds: usize) -> anyhow::Result<bool> {
    for _ in 0..rounds {
        client.expect(sql).await?;
        let route = client.expect("SHOW ROUTE").await?.rows();
        if (route.iter().flatten().flatten()).any(|it| it.starts_with("memory")) {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    Ok(false)
}

/// What rules and hints keep out of memory is never served from it, what they want there is.
pub(crate) async fn obeyed(ground: &Ground) -> anyhow::Result<()> {
    for mode in ["auto", "rules"] {
        let (_proxy, admin_port, mut client) = proxy(ground, mode).await?;
        for (comment, auto, rules, why) in CASES {
            let wanted = if mode == "auto" { *auto } else { *rules };
            let sql = format!("SELECT /* {comment} */ v FROM c_plain WHERE id = 1");
            let kept = is_kept(&mut client, &sql, if wanted { 200 } else { 4 }).await?;
            ensure!(
                kept == wanted,
                "mode {mode}, {sql}: kept: {kept}; hits {}",
                told_by(admin_port, "hits").await?
            );
            let said = client.expect(&format!("EXPLAIN ROUTE {sql}")).await?.rows();
            let about = said.iter().find(|row| row[0].as_deref() == Some("cache"));
            let about = about.and_then(|row| row[1].clone()).context("no cache")?;
            let is_right = match wanted {
                true => !about.starts_with("no"),
                false => about.starts_with("no: ") && (mode == "auto" || about.contains(why)),
            };
            ensure!(is_right, "mode {mode}, EXPLAIN ROUTE {sql}: {about}");
        }
    }
    Ok(())
}

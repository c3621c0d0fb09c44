//! A network of a test's own, where packets can be dropped without a word: the test's program runs once
//! more, for this one test, in a network namespace. It ends with the test, and with it all its rules.

use std::io::Write;
use std::process::Command;

use anyhow::{Context, ensure};

/// Set inside the namespace.
const INSIDE: &str = "MILLRACE_TESTS_NETNS";

/// Why there is none here; none where there may be one.
fn missing() -> Option<String> {
    let script = "ip link set lo up && nft add table ip t";
    let tried = Command::new("unshare")
        .args(["-n", "sh", "-c", script])
        .output();
    match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

/// True inside the namespace. Outside, runs the named test there and answers false; where there can be
/// no namespace, or no packet filter in it, says that the test is skipped.
///
/// # Errors
/// Where the test failed there.
pub fn enter(test: &str) -> anyhow::Result<bool> {
    if std::env::var_os(INSIDE).is_some() {
        let rules = "add table ip t; \
                     add chain ip t i { type filter hook input priority 0; }";
        nft(rules)?;
        return Ok(true);
    }
    if let Some(why) = missing() {
        let told = format!("SKIPPED: {test}: no network namespace with nftables: {why}\n");
        std::io::stderr().write_all(told.as_bytes())?;
        return Ok(false);
    }
    let program = std::env::current_exe()?;
    let status = Command::new("unshare")
        .args(["-n", "sh", "-c", r#"ip link set lo up && exec "$0" "$@""#])
        .arg(program)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .status()?;
    ensure!(status.success(), "{test} failed in its network namespace");
    Ok(false)
}

fn nft(rules: &str) -> anyhow::Result<()> {
    let status = Command::new("nft").arg(rules).status().context("nft")?;
    ensure!(status.success(), "nft {rules}");
    Ok(())
}

/// Drops every packet between a port and these ports, in both directions.
///
/// # Errors
/// Where the rule is refused.
pub fn drop_flows(port: u16, others: &[u16]) -> anyhow::Result<()> {
    let list: Vec<String> = others.iter().map(ToString::to_string).collect();
    let list = list.join(",");
    nft(&format!(
        "add rule ip t i tcp dport {port} tcp sport {{ {list} }} drop; \
         add rule ip t i tcp sport {port} tcp dport {{ {list} }} drop"
    ))
}

/// Drops every packet from and to an address.
///
/// # Errors
/// Where the rule is refused.
pub fn drop_host(address: &str) -> anyhow::Result<()> {
    nft(&format!(
        "add rule ip t i ip saddr {address} drop; add rule ip t i ip daddr {address} drop"
    ))
}

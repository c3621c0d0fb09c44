//! A network of a test's own, where packets can be dropped without a word and names mean what the test says: its
//! program runs once more, for this one test, in a namespace of network and mounts. They end with the test.

use std::io::Write;
use std::path::{Path, PathBuf};
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
    enter_with(test, &[])
}

/// [`enter`], with variables that its environment has there.
///
/// # Errors
/// Where the test failed there.
pub fn enter_with(test: &str, variables: &[(&str, &Path)]) -> anyhow::Result<bool> {
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
        .args([
            "-n",
            "-m",
            "sh",
            "-c",
            r#"ip link set lo up && exec "$0" "$@""#,
        ])
        .arg(program)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .envs(variables.iter().copied())
        .status()?;
    ensure!(status.success(), "{test} failed in its network namespace");
    Ok(false)
}

/// Names addresses in this namespace, instead of `/etc/hosts`. `file` is where the names are written.
///
/// # Errors
/// Where that cannot be.
pub fn name_hosts(file: &Path, lines: &str) -> anyhow::Result<()> {
    std::fs::write(file, format!("127.0.0.1 localhost\n{lines}"))?;
    let status = Command::new("mount")
        .arg("--bind")
        .args([file, Path::new("/etc/hosts")])
        .status()
        .context("mount")?;
    ensure!(status.success(), "mount --bind {}", file.display());
    std::fs::remove_file(file)?;
    Ok(())
}

/// Has packets to this IPv6 address go nowhere, without a word.
///
/// # Errors
/// Where there can be no such address here.
pub fn swallow_ipv6(address: &str) -> anyhow::Result<()> {
    let status = Command::new("ip")
        .args(["-6", "addr", "add", &format!("{address}/128"), "dev", "lo"])
        .status()
        .context("ip")?;
    ensure!(status.success(), "ip addr add {address}");
    nft(&format!(
        "add table ip6 t; add chain ip6 t i {{ type filter hook input priority 0; }}; \
         add rule ip6 t i ip6 daddr {address} drop"
    ))
}

fn nft(rules: &str) -> anyhow::Result<()> {
    let status = Command::new("nft").arg(rules).status().context("nft")?;
    ensure!(status.success(), "nft {rules}");
    Ok(())
}

/// Names and what they mean, in place of the machine's own: `/etc/hosts` in this namespace.
#[derive(Debug)]
pub struct Hosts {
    file: PathBuf,
}

impl Hosts {
    /// Puts a file of its own in the place of `/etc/hosts`.
    ///
    /// # Errors
    /// Where that is not allowed.
    pub fn new(names: &[(&str, &str)]) -> anyhow::Result<Self> {
        let file = std::env::temp_dir().join(format!("millrace-hosts-{}", std::process::id()));
        let hosts = Hosts { file };
        hosts.set(names)?;
        replace("/etc/hosts", &hosts.file)?;
        Ok(hosts)
    }

    /// These names mean these addresses from now on; all others mean nothing.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn set(&self, names: &[(&str, &str)]) -> anyhow::Result<()> {
        let lines: String = names
            .iter()
            .map(|(name, address)| format!("{address} {name}\n"))
            .collect();
        // In place: what is mounted is this very file.
        std::fs::write(&self.file, format!("127.0.0.1 localhost\n{lines}"))?;
        Ok(())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

/// Puts a file in the place of another, in this namespace.
///
/// # Errors
/// Where that is not allowed.
pub fn replace(path: &str, by: &Path) -> anyhow::Result<()> {
    let status = Command::new("mount")
        .arg("--bind")
        .args([by, Path::new(path)])
        .status()
        .context("mount")?;
    ensure!(status.success(), "{path} cannot be replaced");
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

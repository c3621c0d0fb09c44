//! A cluster's folder and its `cluster.json`: what later command-line calls need to know. Process
//! numbers are not in it; they are in each server's `pid` file.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::accounts::{ACCOUNTS, Account};
use crate::server::Server;
use crate::spec::{ClusterSpec, Family, Role, Topology};

/// `sun_path` has 108 bytes with the closing zero (unix(7)).
const SOCKET_PATH_MAX: usize = 107;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) spec: ClusterSpec,
    /// As the server program says it.
    pub(crate) version: String,
    pub(crate) servers: Vec<Server>,
}

impl State {
    fn file(dir: &Path) -> PathBuf {
        dir.join("cluster.json")
    }

    pub(crate) fn load(dir: &Path) -> Result<State> {
        let file = State::file(dir);
        let text = fs::read_to_string(&file).with_context(|| {
            format!(
                "no sandbox cluster in {} ({})",
                dir.display(),
                file.display()
            )
        })?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not a cluster of this version", file.display()))
    }

    /// Written beside and renamed, so that a reader never sees half of it.
    pub(crate) fn save(&self) -> Result<()> {
        let file = State::file(&self.spec.dir);
        let fresh = file.with_extension("json.new");
        fs::write(&fresh, serde_json::to_vec_pretty(self)?)
            .and_then(|()| fs::rename(&fresh, &file))
            .with_context(|| format!("cannot write {}", file.display()))
    }

    pub(crate) fn server(&self, name: &str) -> Result<&Server> {
        let names = || {
            self.servers
                .iter()
                .map(|s| s.name.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        };
        self.servers
            .iter()
            .find(|server| server.name == name)
            .with_context(|| format!("no server {name:?} in this cluster; it has {}", names()))
    }

    pub(crate) fn primary(&self) -> Option<&Server> {
        self.servers
            .iter()
            .find(|server| server.role == Role::Primary)
    }

    /// Gives a server an id that none has had.
    pub(crate) fn renumber(&mut self, name: &str) {
        let used = self.servers.iter().map(|server| server.server_id).max();
        for server in self.servers.iter_mut().filter(|s| s.name == name) {
            server.server_id = used.unwrap_or(0) + 1;
        }
    }

    pub(crate) fn set_primary(&mut self, name: &str) {
        for server in &mut self.servers {
            server.role = if server.name == name {
                Role::Primary
            } else {
                Role::Replica
            };
        }
    }
}

/// Makes the cluster's folder this cluster's own. Nothing that is there already is taken over,
/// because the whole folder is removed in the end.
pub(crate) fn claim_dir(dir: &Path) -> Result<()> {
    let longest = dir.join("s99").join("sock");
    if longest.as_os_str().len() > SOCKET_PATH_MAX {
        bail!(
            "{} is too long a path for Unix sockets inside it: use a shorter --dir",
            dir.display()
        );
    }
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => claim_existing(dir),
        result => result.with_context(|| format!("cannot make {}", dir.display())),
    }
}

fn claim_existing(dir: &Path) -> Result<()> {
    if State::file(dir).exists() {
        bail!(
            "{0} holds a cluster already: `millrace-lab sandbox down --dir {0}` removes it",
            dir.display()
        );
    }
    let mut entries =
        fs::read_dir(dir).with_context(|| format!("cannot use {} as the folder", dir.display()))?;
    if entries.next().is_some() {
        bail!(
            "{} is not empty: name a folder that does not exist yet",
            dir.display()
        );
    }
    Ok(())
}

/// One server, for people and scripts.
#[derive(Clone, Debug, Serialize)]
pub struct ServerInfo {
    /// `s1`, `s2`, …: stays the same when roles change.
    pub name: String,
    /// What the cluster's last `up` or `promote` made of it.
    pub role: Role,
    /// Always 127.0.0.1.
    pub host: &'static str,
    /// Its TCP port.
    pub port: u16,
    /// Its Unix socket.
    pub socket: PathBuf,
    /// None while it does not run.
    pub pid: Option<u32>,
    /// Where its data is.
    pub datadir: PathBuf,
    /// The server's error log.
    pub log: PathBuf,
}

impl ServerInfo {
    /// `host:port`.
    pub fn addr(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// A cluster, for people and scripts.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterInfo {
    /// The servers' family.
    pub family: Family,
    /// How the servers are connected.
    pub topology: Topology,
    /// What the servers say of their version.
    pub version: String,
    /// The folder with everything of the cluster.
    pub dir: PathBuf,
    /// The servers, `s1` first.
    pub servers: Vec<ServerInfo>,
    /// The accounts that every server has.
    pub accounts: Vec<Account>,
    /// The databases that every server has.
    pub databases: [&'static str; 2],
    /// The CA of the servers' certificates, for verifying clients.
    pub tls_ca: Option<PathBuf>,
}

impl ClusterInfo {
    pub(crate) fn new(state: &State, tls_ca: Option<PathBuf>) -> ClusterInfo {
        ClusterInfo {
            family: state.spec.family(),
            topology: state.spec.topology,
            version: state.version.clone(),
            dir: state.spec.dir.clone(),
            servers: state.servers.iter().map(Server::info).collect(),
            accounts: ACCOUNTS.to_vec(),
            databases: ["app", "test"],
            tls_ca,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("millrace-state-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_folder_with_something_in_it_is_never_claimed() {
        let dir = scratch("full");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("thesis.txt"), "mine").unwrap();
        let error = claim_dir(&dir).unwrap_err().to_string();
        assert!(error.contains("not empty"), "{error}");
        fs::write(dir.join("cluster.json"), "{}").unwrap();
        let error = claim_dir(&dir).unwrap_err().to_string();
        assert!(error.contains("sandbox down"), "{error}");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_new_or_empty_folder_is_claimed() {
        let dir = scratch("new");
        claim_dir(&dir).unwrap();
        claim_dir(&dir).unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_path_too_long_for_sockets_is_refused_before_anything_is_made() {
        let dir = scratch(&"long".repeat(30));
        let error = claim_dir(&dir).unwrap_err().to_string();
        assert!(error.contains("shorter --dir"), "{error}");
        assert!(!dir.exists());
    }
}

//! Data folders, made once per server version and copied for each server. They hold the accounts
//! and databases, but no history: every server starts with an empty set of GTIDs.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use tokio::process::Command;

use crate::accounts::bootstrap_sql;
use crate::binaries::{Binaries, cache_dir};
use crate::spec::Family;

/// Raised when what is put into data folders changes otherwise than by the bootstrap SQL.
const LAYOUT: u32 = 1;

/// InnoDB's redo log, in MiB; MariaDB makes it when the data folder is made.
pub(crate) const MARIADB_REDO_MIB: u32 = 48;

/// A data folder to copy.
pub(crate) struct Template {
    dir: PathBuf,
    /// What `--version` says.
    pub(crate) version: String,
}

impl Template {
    /// Finds this version's folder, or makes it, which takes 1 (MariaDB) to 7 (MySQL) seconds.
    /// Other processes that want it meanwhile wait.
    ///
    /// # Errors
    /// When the server program fails; its own words are in the text.
    pub(crate) async fn ensure(family: Family, binaries: &Binaries) -> Result<Template> {
        let version = version(binaries).await?;
        let templates = cache_dir().join("templates");
        let dir = templates.join(format!("{family}-{:016x}", fingerprint(family, &version)));
        if !dir.is_dir() {
            fs::create_dir_all(&templates)
                .with_context(|| format!("cannot make {}", templates.display()))?;
            let _lock = lock(templates.join("lock")).await?;
            if !dir.is_dir() {
                make(family, binaries, &dir).await?;
            }
        }
        Ok(Template { dir, version })
    }

    /// Copies the folder to `datadir`, sharing blocks where the file system can.
    pub(crate) async fn copy_to(&self, datadir: &Path) -> Result<()> {
        let mut cp = Command::new("cp");
        cp.args(["-a", "--reflink=auto"])
            .arg(&self.dir)
            .arg(datadir);
        run(cp, "cannot copy a data folder").await
    }
}

async fn version(binaries: &Binaries) -> Result<String> {
    let output = Command::new(&binaries.server)
        .args(["--no-defaults", "--version"])
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("cannot run {}", binaries.server.display()))?;
    let line = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match line.split_once("Ver ") {
        Some((_, version)) => Ok(version.trim().to_owned()),
        None => bail!("{} --version says {line:?}", binaries.server.display()),
    }
}

fn fingerprint(family: Family, version: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (LAYOUT, version, bootstrap_sql(family), MARIADB_REDO_MIB).hash(&mut hasher);
    hasher.finish()
}

/// Released when the file is closed, also by the process's end.
async fn lock(path: PathBuf) -> Result<File> {
    let take = move || -> Result<File> {
        let file = File::create(&path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    };
    tokio::task::spawn_blocking(take)
        .await?
        .context("cannot lock the folder of templates")
}

/// Builds beside and renames, so that the folder is whole or absent. Called under the lock:
/// half-built folders that are there belong to nobody any more.
async fn make(family: Family, binaries: &Binaries, dir: &Path) -> Result<()> {
    let work = dir.with_extension("new");
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    }
    let sql = dir.with_extension("sql");
    fs::write(&sql, bootstrap_sql(family))?;
    run(
        initialise(family, binaries, &work, &sql),
        "cannot make a data folder",
    )
    .await?;
    // Each copy is to give itself a uuid of its own.
    let _ = fs::remove_file(work.join("auto.cnf"));
    let _ = fs::remove_file(&sql);
    fs::rename(&work, dir).with_context(|| format!("cannot make {}", dir.display()))
}

fn initialise(family: Family, binaries: &Binaries, work: &Path, sql: &Path) -> Command {
    let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
    let mut command = Command::new(&binaries.install);
    command.arg("--no-defaults").arg(option("datadir", work));
    if geteuid().is_root() {
        command.arg("--user=root");
    }
    match family {
        Family::MySql => {
            command.args(["--initialize-insecure", "--innodb-doublewrite=OFF"]);
            command.arg(option("init-file", sql));
            command.args(
                binaries
                    .messages_dir
                    .iter()
                    .map(|dir| option("lc-messages-dir", dir)),
            );
        }
        Family::MariaDb => {
            command.args(["--auth-root-authentication-method=normal", "--skip-test-db"]);
            command.arg(format!("--innodb-log-file-size={MARIADB_REDO_MIB}M"));
            command.arg(option("extra-file", sql));
        }
    }
    command
}

async fn run(mut command: Command, what: &str) -> Result<()> {
    let output = command.kill_on_drop(true).output().await.with_context(|| {
        format!(
            "{what}: {:?} does not start",
            command.as_std().get_program()
        )
    })?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    if !output.status.success() {
        bail!(
            "{what}: {:?} failed ({}):\n{said}",
            command.as_std().get_program(),
            output.status
        );
    }
    // mariadb-install-db goes on past an error in the bootstrap statements.
    match said.lines().find(|line| line.contains("ERROR")) {
        Some(line) => bail!("{what}: {line}"),
        None => Ok(()),
    }
}

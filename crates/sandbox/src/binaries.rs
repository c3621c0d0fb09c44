//! Finds the servers' programs. Installs nothing: that is `scripts/install-deps.sh`.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::group::galera_provider;
use crate::{Release, Topology};

/// Programs of one family.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// `mariadbd` or `mysqld` (for an unpacked MySQL, the wrapper that starts it).
    pub server: PathBuf,
    /// `mariadb` or `mysql`, where there is one.
    pub client: Option<PathBuf>,
    /// What makes a data folder: `mariadb-install-db`, or the server itself.
    pub install: PathBuf,
    /// `--lc-messages-dir` for a server that is not where it was built to be.
    pub messages_dir: Option<PathBuf>,
}

/// A family's server is not on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{program} not found: run scripts/install-deps.sh {group}, or set {variable}")]
pub struct NotInstalled {
    /// What was looked for.
    pub program: &'static str,
    /// What `install-deps.sh` is asked for.
    group: &'static str,
    /// The environment variable that names the program or its folder.
    pub variable: &'static str,
}

impl Binaries {
    /// Looks where the release's environment variable says (`MILLRACE_MARIADBD`: the program;
    /// `MILLRACE_MYSQL_DIR`, `MILLRACE_MARIADB_11_8_DIR`: the folder with `bin` in it), then where
    /// `install-deps.sh` puts it. What is not unpacked is looked for on the path.
    ///
    /// # Errors
    /// [`NotInstalled`] when there is none.
    pub fn find(which: impl Into<Release>) -> Result<Binaries, NotInstalled> {
        match which.into() {
            Release::MariaDb => find_mariadb(),
            Release::MariaDb11_8 => find_mariadb_11_8(),
            Release::MySql => find_mysql(),
        }
    }
}

/// What a Galera cluster needs beside MariaDB: the provider, and rsync, by which its nodes copy
/// their data.
///
/// # Errors
/// [`NotInstalled`] for the first that is missing.
pub(crate) fn galera_needs() -> Result<(), NotInstalled> {
    let missing = |program| NotInstalled {
        program,
        group: "servers",
        variable: "MILLRACE_GALERA",
    };
    galera_provider().ok_or_else(|| missing("libgalera_smm.so"))?;
    on_path("rsync").ok_or_else(|| missing("rsync"))?;
    Ok(())
}

/// As [`skip_unless`], for a topology.
pub fn skip_unless_topology(which: impl Into<Release>, topology: Topology, what: &str) -> bool {
    if !skip_unless(which, what) {
        return false;
    }
    let missing = match topology {
        Topology::Galera => galera_needs().err(),
        Topology::Async | Topology::Group => None,
    };
    if let Some(missing) = &missing {
        // A closed stderr leaves nobody to tell.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: {what} on {topology}: {missing}"
        );
    }
    missing.is_none()
}

/// For tests: true when the server is there; otherwise says loudly, past the test harness's
/// capture, that `what` is skipped.
pub fn skip_unless(which: impl Into<Release>, what: &str) -> bool {
    let release = which.into();
    match Binaries::find(release) {
        Ok(_) => true,
        Err(missing) => {
            // A closed stderr leaves nobody to tell.
            let _ = writeln!(std::io::stderr(), "SKIPPED: {what} on {release}: {missing}");
            false
        }
    }
}

/// The cache folder: `MILLRACE_CACHE`, else `~/.cache/millrace`.
pub(crate) fn cache_dir() -> PathBuf {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache/millrace"));
    env::var_os("MILLRACE_CACHE")
        .map(PathBuf::from)
        .or_else(home)
        .unwrap_or_else(|| env::temp_dir().join("millrace-cache"))
}

fn find_mariadb() -> Result<Binaries, NotInstalled> {
    let missing = |program| NotInstalled {
        program,
        group: "servers",
        variable: "MILLRACE_MARIADBD",
    };
    let server =
        named_or_on_path("MILLRACE_MARIADBD", "mariadbd").ok_or_else(|| missing("mariadbd"))?;
    let install = beside_or_on_path(&server, "mariadb-install-db")
        .ok_or_else(|| missing("mariadb-install-db"))?;
    let client = beside_or_on_path(&server, "mariadb");
    Ok(Binaries {
        server,
        client,
        install,
        messages_dir: None,
    })
}

/// In a folder of its own only: on the path is the usual one.
fn find_mariadb_11_8() -> Result<Binaries, NotInstalled> {
    let variable = "MILLRACE_MARIADB_11_8_DIR";
    let bin = env::var_os(variable)
        .map_or_else(|| cache_dir().join("mariadb-11.8"), PathBuf::from)
        .join("bin");
    let server = bin.join("mariadbd");
    if !is_file(&server) {
        return Err(NotInstalled {
            program: "mariadbd 11.8",
            group: "test",
            variable,
        });
    }
    Ok(Binaries {
        server,
        client: Some(bin.join("mariadb")),
        install: bin.join("mariadb-install-db"),
        // Its wrapper says that.
        messages_dir: None,
    })
}

fn find_mysql() -> Result<Binaries, NotInstalled> {
    let folder =
        env::var_os("MILLRACE_MYSQL_DIR").map_or_else(|| cache_dir().join("mysql"), PathBuf::from);
    let server = folder.join("bin/mysqld");
    if is_file(&server) {
        let messages = folder.join("root/usr/share/mysql");
        return Ok(Binaries {
            client: Some(folder.join("bin/mysql")).filter(|path| is_file(path)),
            install: server.clone(),
            messages_dir: messages.is_dir().then_some(messages),
            server,
        });
    }
    let server = on_path("mysqld")
        .filter(|path| !is_mariadb(path))
        .ok_or(NotInstalled {
            program: "mysqld",
            group: "servers",
            variable: "MILLRACE_MYSQL_DIR",
        })?;
    let client = beside_or_on_path(&server, "mysql");
    Ok(Binaries {
        client,
        install: server.clone(),
        messages_dir: None,
        server,
    })
}

/// MariaDB's packages install `mysqld` as a link to `mariadbd`.
fn is_mariadb(program: &Path) -> bool {
    program
        .canonicalize()
        .is_ok_and(|real| real.ends_with("mariadbd"))
}

fn named_or_on_path(variable: &str, program: &str) -> Option<PathBuf> {
    match env::var_os(variable) {
        Some(named) => Some(PathBuf::from(named)).filter(|path| is_file(path)),
        None => on_path(program),
    }
}

fn beside_or_on_path(server: &Path, program: &str) -> Option<PathBuf> {
    server
        .parent()
        .into_iter()
        .flat_map(|dir| {
            [
                dir.join(program),
                dir.join("../bin").join(program),
                dir.join("../scripts").join(program),
            ]
        })
        .find(|path| is_file(path))
        .or_else(|| on_path(program))
}

/// Servers live in `sbin`, which a user's path often lacks.
fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/usr/libexec"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|path| is_file(path))
}

fn is_file(path: &Path) -> bool {
    path.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_server_says_what_to_do() {
        let missing = NotInstalled {
            program: "mariadbd",
            group: "servers",
            variable: "MILLRACE_MARIADBD",
        };
        let text = missing.to_string();
        assert!(text.contains("scripts/install-deps.sh servers"), "{text}");
        assert!(text.contains("MILLRACE_MARIADBD"), "{text}");
    }

    #[test]
    fn programs_in_sbin_are_found() {
        assert_eq!(on_path("no-such-program-anywhere"), None);
        let shell = on_path("sh").expect("a shell is on the path");
        assert!(shell.is_file());
    }
}

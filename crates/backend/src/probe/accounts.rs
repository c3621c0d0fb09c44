//! What the servers say of accounts and global variables: whether they have changed, and the rows of a name.

use std::time::Duration;

use millrace_engine::books::ByLogin;
use millrace_topology::Family;

use crate::conn::{Conn, Row};
use crate::connect::{Login, SharedNetwork, open};
use crate::error::BackendError;
use crate::facts::ServerFacts;
use crate::fresh::Look;
use crate::probe::followed::Followed;
use crate::probe::followed::is_on;
use crate::probe::followed::text;
use crate::user_rows::{self, Name, Proxies, UserRows};

/// How often accounts were changed: the server counts statements when they begin, also a replica's
/// applier (observed). On MariaDB it counts SET DEFAULT ROLE and SET PASSWORD among all SETs.
const ACCOUNT_CHANGES: &str = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Com_grant',\
    'Com_grant_role','Com_grant_roles','Com_revoke','Com_revoke_all','Com_revoke_role',\
    'Com_revoke_roles','Com_create_user','Com_create_role','Com_drop_user','Com_drop_role',\
    'Com_alter_user','Com_alter_user_default_role','Com_rename_user','Com_set_password',\
    'Com_flush','Com_install_plugin','Com_uninstall_plugin')";

/// MariaDB's accounts with their default roles.
const ACCOUNTS: &str = "SELECT COUNT(*),SUM(CRC32(CONCAT_WS('|',Host,User,Priv))) \
    FROM mysql.global_priv";

/// Global variables by which no session begins, and which change by themselves.
const NO_SESSIONS: &[&str] = &[
    "admin_",
    "aria_",
    "group_replication_",
    "gtid",
    "have_",
    "log_",
    "mysqlx_",
    "performance_schema",
    "read_only",
    "relay_",
    "replica_",
    "rpl_",
    "server_",
    "slave_",
    "ssl_",
    "super_read_only",
    "tls_",
    "version",
];

/// InnoDB's and Galera's that a session begins with.
const SESSIONS: &[&str] = &[
    "innodb_compression_default",
    "innodb_ft_enable_stopword",
    "innodb_ft_user_stopword_table",
    "innodb_lock_wait_timeout",
    "innodb_snapshot_isolation",
    "innodb_strict_mode",
    "innodb_table_locks",
    "innodb_tmpdir",
    "wsrep_causal_reads",
    "wsrep_on",
    "wsrep_osu_method",
    "wsrep_retry_autocommit",
    "wsrep_sync_wait",
    "wsrep_trx_fragment_size",
    "wsrep_trx_fragment_unit",
];

pub(super) fn begins_sessions(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let apart = name.starts_with("innodb_") || name.starts_with("wsrep_");
    name.bytes().all(is_plain)
        && match apart {
            true => SESSIONS.contains(&&*name.to_ascii_lowercase()),
            false => !NO_SESSIONS.iter().any(|start| name.starts_with(start)),
        }
}

/// The rows by which a name may log in. None where the account may not read them.
pub(crate) async fn user_rows(
    server: &ServerFacts,
    login: &Login<'_>,
    network: &SharedNetwork,
    timeout: Duration,
    name: Name<'_>,
) -> Result<Option<UserRows>, BackendError> {
    let opened = open(&server.address, login, network, timeout).await?;
    let mut conn = Conn::new(opened, server.id, server.family, None);
    let asking = async {
        let charset = match user_rows::is_in_utf8(name) {
            true => None,
            false => {
                let question = user_rows::charset_question(name.collation);
                let rows = conn.query(&question).await?;
                Some(text(rows.first().and_then(|row| row.first())))
            }
        };
        let charset = charset.as_deref();
        let question = user_rows::question(server.family, name.user, charset);
        let Some(rows) = readable(conn.query(&question).await)? else {
            return Ok(None);
        };
        let question = user_rows::proxies_question(server.family, name.user, charset);
        let proxies = readable(conn.query(&question).await)?.map(Proxies::read);
        Ok(Some(
            UserRows::read(server.family, rows).with_proxies(proxies),
        ))
    };
    match tokio::time::timeout(timeout, asking).await {
        Ok(asked) => asked,
        Err(_) => Err(BackendError::Timeout("monitor.timeout")),
    }
}

/// None where the monitor's account may not read a table, or there is none.
fn readable(asked: Result<Vec<Row>, BackendError>) -> Result<Option<Vec<Row>>, BackendError> {
    match asked {
        Ok(rows) => Ok(Some(rows)),
        // 1142, 1143: SELECT was not granted; 1044: nothing in that database was; 1146: MariaDB before 10.4.
        Err(BackendError::Server(error)) if matches!(error.code, 1044 | 1142 | 1143 | 1146) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Asks whether accounts or global variables have changed.
pub(crate) async fn look(followed: &mut Followed) -> Result<Look, BackendError> {
    let conn = &mut followed.conn;
    if followed.looking.is_empty() {
        let rows = conn.query("SHOW GLOBAL VARIABLES").await?;
        let names = rows.iter().map(|row| text(row.first()));
        let columns: Vec<String> = names
            .filter(|name| begins_sessions(name))
            .map(|name| format!("@@GLOBAL.{name}"))
            .collect();
        // No server changes it while it runs.
        followed.keeps_foreign_keys = rows.iter().any(|row| {
            text(row.first()) == "innodb_native_foreign_keys" && !is_on(&text(row.get(1)))
        });
        followed.looking.push(ACCOUNT_CHANGES.to_owned());
        followed.looking.push(format!(
            "SELECT SHA2(CONCAT_WS('|',{}),256),@@GLOBAL.init_connect,@@GLOBAL.autocommit",
            columns.join(",")
        ));
        if conn.family == Family::MariaDb {
            followed.looking.push(ACCOUNTS.to_owned());
        }
    }
    let mut out = Vec::new();
    for question in &followed.looking {
        conn.frame_query(&mut out, question.as_bytes());
    }
    conn.send(&out, followed.looking.len()).await?;
    let mut look = Look {
        complete: true,
        // Unless it can be read.
        by_login: ByLogin::Variables,
        ..Look::default()
    };
    let mut variables_read = true;
    for at in 0..followed.looking.len() {
        let rows = match conn.read_rows().await {
            Ok(rows) => rows,
            // A variable that has gone, or a table that may not be read.
            Err(BackendError::Server(_)) => {
                look.complete = false;
                variables_read &= at != 1;
                continue;
            }
            Err(error) => return Err(error),
        };
        if at == 1 {
            let row = rows.first();
            let cell = |index: usize| text(row.and_then(|row| row.get(index)));
            look.complete &= !cell(0).is_empty();
            look.init_connect = !cell(1).is_empty();
            look.by_login = if names_user_variables(&cell(1)) {
                ByLogin::Variables
            } else if followed.keeps_foreign_keys {
                ByLogin::ForeignKeys
            } else {
                ByLogin::Nothing
            };
            look.autocommit_off = !is_on(&cell(2));
        }
        if at == 0 {
            look.drops = Some(drops(&rows));
        }
        let cells = rows.into_iter().flatten().flatten();
        look.fingerprint.extend(cells);
    }
    if !variables_read {
        // Their names are asked for again.
        followed.looking.clear();
    }
    Ok(look)
}

/// Whether a text names user variables: an `@` of its own, not that of `@@name`. What is in a string may count, too.
fn names_user_variables(text: &str) -> bool {
    let system = text.matches("@@").count();
    text.matches('@').count() > 2 * system
}

/// How many accounts may have become others' since the server was started, from its counts of statements.
/// MariaDB's CREATE OR REPLACE USER counts as a change of the account: it is counted with those that only make one.
pub(super) fn drops(rows: &[Row]) -> u64 {
    let counts = |row: &&Row| matches!(&*text(row.first()), "Com_drop_user" | "Com_rename_user");
    let counted = rows.iter().filter(counts);
    counted
        .map(|row| text(row.get(1)).parse::<u64>().unwrap_or_default())
        .sum()
}

/// The same, asked now by any account.
pub(crate) async fn ask_drops(conn: &mut Conn) -> Result<u64, BackendError> {
    let rows = conn.query(ACCOUNT_CHANGES).await?;
    Ok(drops(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_variables_are_told_from_system_variables() {
        for text in [
            "",
            "SET NAMES utf8mb4",
            "SET @@sql_mode=''",
            "SET @@a=1, @@session.b=2",
        ] {
            assert!(!names_user_variables(text), "{text}");
        }
        for text in ["SET @a=1", "SET @@a=1, @b=2", "SELECT 1 INTO @c"] {
            assert!(names_user_variables(text), "{text}");
        }
    }
}

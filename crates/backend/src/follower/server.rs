//! What the server whose log is to be followed is asked before: whether its log tells everything, and where it is.

use std::sync::Arc;
use std::time::Duration;

use millrace_topology::{Family, GtidSet};

use crate::conn::{Conn, Row};
use crate::error::BackendError;
use crate::probe::followed::{is_on, text};
use crate::probe::positions::{parsed, without_owners};

use super::catalogue::{Catalogue, SchemaRows};
use super::gate::Reading;
use super::transactions::Place;

/// What a server says of its log.
#[derive(Debug)]
pub(super) struct Log {
    /// Which server it is: MySQL's server_uuid; MariaDB has none, so what tells one machine's server from another's.
    pub(super) identity: String,
    /// Events end in checksums.
    pub(super) checksum: bool,
    /// lower_case_table_names is not 0.
    pub(super) lower: bool,
    /// All that is in the log, or was.
    pub(super) executed: GtidSet,
}

/// Why a log does not do, which says what to do.
pub(super) type Unfit = String;

/// Asks a server about its log. `replicates`: whether it has a source of its own.
pub(super) async fn ask(
    conn: &mut Conn,
    version: u32,
    replicates: bool,
) -> Result<Result<Log, Unfit>, BackendError> {
    const VARIABLES: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_uuid', 'server_id', \
         'hostname', 'port', 'datadir', 'binlog_checksum', 'lower_case_table_names', 'log_bin', \
         'gtid_mode', 'log_replica_updates', 'log_slave_updates')";
    let rows = conn.query(VARIABLES).await?;
    let value = |name: &str| {
        let row = rows.iter().find(|row| text(row.first()) == name);
        text(row.and_then(|row| row.get(1)))
    };
    if !is_on(&value("log_bin")) {
        return Ok(Err("the primary writes no binary log: set log_bin".into()));
    }
    let is_mysql = conn.family == Family::MySql;
    if is_mysql && value("gtid_mode") != "ON" {
        return Ok(Err("the primary's gtid_mode is not ON: set it".into()));
    }
    let logs_updates = ["log_replica_updates", "log_slave_updates"];
    if replicates && !logs_updates.iter().any(|name| is_on(&value(name))) {
        let name = logs_updates[usize::from(!is_mysql)];
        return Ok(Err(format!(
            "the primary replicates from another server and does not log that: set {name}"
        )));
    }
    if let Some(unfit) = filtered(conn, version).await? {
        return Ok(Err(unfit));
    }
    let machine = ["server_id", "hostname", "port", "datadir"].map(value);
    Ok(Ok(Log {
        identity: match is_mysql {
            true => value("server_uuid"),
            false => machine.join(" "),
        },
        checksum: !matches!(value("binlog_checksum").as_str(), "NONE" | ""),
        lower: value("lower_case_table_names") != "0",
        executed: logged(conn).await?,
    }))
}

/// Why the log does not tell of all databases; none where it does.
async fn filtered(conn: &mut Conn, version: u32) -> Result<Option<Unfit>, BackendError> {
    // MySQL 8.2 renamed the statement; 8.4 dropped the old one.
    let renamed = conn.family == Family::MySql && version >= 80_200;
    let statement = match renamed {
        true => "SHOW BINARY LOG STATUS",
        false => "SHOW MASTER STATUS",
    };
    let status = match conn.query_named(statement).await {
        Ok(Some(status)) => status,
        Ok(None) => return Err(BackendError::Protocol("the state of the log is no result")),
        Err(BackendError::Server(error)) => {
            let right = match conn.family {
                Family::MySql => "REPLICATION CLIENT",
                Family::MariaDb => "BINLOG MONITOR",
            };
            return Ok(Some(format!(
                "the monitor's account may not ask for the state of the log ({error}): grant it {right} ON *.*"
            )));
        }
        Err(error) => return Err(error),
    };
    for name in ["Binlog_Do_DB", "Binlog_Ignore_DB"] {
        let is_named = |column: &[u8]| column.eq_ignore_ascii_case(name.as_bytes());
        let at = status.columns.iter().position(|c| is_named(&c.name));
        let row = status.rows.first();
        let filter = text(row.and_then(|row| row.get(at?)));
        if !filter.is_empty() {
            return Ok(Some(format!(
                "the primary does not log all databases: take {} out of its configuration",
                name.to_ascii_lowercase()
            )));
        }
    }
    Ok(None)
}

/// All that is in the log. A MariaDB server has a transaction there before it is visible; MySQL has it visible a moment
/// before it is in here.
async fn logged(conn: &mut Conn) -> Result<GtidSet, BackendError> {
    let variable = match conn.family {
        Family::MySql => "gtid_executed",
        Family::MariaDb => "gtid_binlog_pos",
    };
    let rows = conn.query(&format!("SELECT @@GLOBAL.{variable}")).await?;
    parsed(conn.family, &text(rows.first().and_then(|row| row.first())))
}

/// All that can be visible on the server: on MySQL a transaction owns its GTID until that is counted as executed, so who
/// owns one is asked first.
async fn visible(conn: &mut Conn) -> Result<GtidSet, BackendError> {
    if conn.family == Family::MariaDb {
        return logged(conn).await;
    }
    let owners = conn.query("SELECT @@GLOBAL.gtid_owned").await?;
    let owned = text(owners.first().and_then(|row| row.first()));
    let mut visible = logged(conn).await?;
    visible.union(&parsed(Family::MySql, &without_owners(&owned))?);
    Ok(visible)
}

/// Whether the server's log still has this place. After RESET it begins with its first file again.
pub(super) async fn has_place(conn: &mut Conn, place: &Place) -> Result<bool, BackendError> {
    let rows = match conn.query("SHOW BINARY LOGS").await {
        Ok(rows) => rows,
        Err(BackendError::Server(_)) => return Ok(false),
        Err(error) => return Err(error),
    };
    let is_file = |row: &&Row| matches!(row.first(), Some(Some(name)) if *name == place.file);
    let size = rows.iter().find(is_file).map(|row| text(row.get(1)));
    let size = size.and_then(|size| size.parse::<u64>().ok());
    Ok(size.is_some_and(|size| size >= u64::from(place.offset)))
}

/// Reads what tables are, once the server has executed `needed`: so that all changes of definitions in there were made
/// before.
///
/// A MariaDB server has those in its log before the statement has ended, but only then gives up its lock on the table, for
/// which the information schema waits.
pub(super) async fn read(
    conn: &mut Conn,
    lower_names: bool,
    needed: &GtidSet,
) -> Result<Reading, BackendError> {
    const PAUSE: Duration = Duration::from_millis(2);
    let lower = loop {
        let logged = logged(conn).await?;
        if logged.contains(needed) {
            break logged;
        }
        tokio::time::sleep(PAUSE).await;
    };
    let rows = schema_rows(conn, lower_names).await?;
    let catalogue = Arc::new(Catalogue::new(&rows));
    Ok(Reading {
        catalogue,
        lower,
        upper: visible(conn).await?,
    })
}

async fn schema_rows(conn: &mut Conn, lower: bool) -> Result<SchemaRows, BackendError> {
    const LOGGED: &str = "NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema')";
    // Each of one table of the information schema: MariaDB makes those up anew for each row of a join.
    let tables = format!(
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES \
         WHERE TABLE_TYPE = 'BASE TABLE' AND ENGINE = 'InnoDB' AND TABLE_SCHEMA {LOGGED}"
    );
    // MariaDB's virtual columns may call any function, of the clock and of chance as well, and its columns of type TIME are
    // completed with the current date where they are compared with a string that has a date (observed on 10.11).
    let any_value = match conn.family {
        Family::MySql => "0",
        Family::MariaDb => "SUM(EXTRA LIKE '%VIRTUAL%' OR DATA_TYPE = 'time')",
    };
    // All that a result's columns are made of.
    const SHAPE: &str = "BIT_XOR(CRC32(CONCAT_WS(' ', ORDINAL_POSITION, COLUMN_NAME, COLUMN_TYPE, \
         IFNULL(COLLATION_NAME, ''), EXTRA, IS_NULLABLE, COLUMN_KEY, COLUMN_DEFAULT IS NULL, \
         IFNULL(GENERATION_EXPRESSION, ''))))";
    let columns = format!(
        "SELECT TABLE_SCHEMA, TABLE_NAME, COUNT(*), MAX(ORDINAL_POSITION), SUM(DATA_TYPE = 'time'), {any_value}, {SHAPE} \
         FROM information_schema.COLUMNS WHERE TABLE_SCHEMA {LOGGED} GROUP BY 1, 2"
    );
    let key_columns = format!(
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, ORDINAL_POSITION, DATA_TYPE, COLUMN_TYPE, \
         CHARACTER_OCTET_LENGTH, EXTRA FROM information_schema.COLUMNS \
         WHERE COLUMN_KEY = 'PRI' AND TABLE_SCHEMA {LOGGED}"
    );
    let primary_keys = format!(
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, SUB_PART FROM information_schema.STATISTICS \
         WHERE INDEX_NAME = 'PRIMARY' AND TABLE_SCHEMA {LOGGED} \
         ORDER BY TABLE_SCHEMA, TABLE_NAME, SEQ_IN_INDEX"
    );
    const FOREIGN_KEYS: &str = "SELECT CONSTRAINT_SCHEMA, TABLE_NAME, UNIQUE_CONSTRAINT_SCHEMA, \
         REFERENCED_TABLE_NAME, UPDATE_RULE, DELETE_RULE FROM information_schema.REFERENTIAL_CONSTRAINTS";
    const TRIGGERS: &str =
        "SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE FROM information_schema.TRIGGERS";
    // Triggers of tables without this right are not shown.
    const SEES_TRIGGERS: &str = "SELECT 1 FROM information_schema.USER_PRIVILEGES \
         WHERE PRIVILEGE_TYPE = 'TRIGGER' AND GRANTEE = CONCAT('''', \
         SUBSTRING_INDEX(CURRENT_USER(), '@', 1), '''@''', SUBSTRING_INDEX(CURRENT_USER(), '@', -1), '''')";
    let sees_triggers = !conn.query(SEES_TRIGGERS).await?.is_empty();
    Ok(SchemaRows {
        tables: conn.query(&tables).await?,
        columns: conn.query(&columns).await?,
        key_columns: conn.query(&key_columns).await?,
        primary_keys: conn.query(&primary_keys).await?,
        foreign_keys: conn.query(FOREIGN_KEYS).await?,
        triggers: match sees_triggers {
            true => Some(conn.query(TRIGGERS).await?),
            false => None,
        },
        lower,
    })
}

//! How far a server is: asked so that nothing visible is missing from the answer.

use std::time::{Duration, Instant};

use millrace_topology::{Family, GtidSet};
use tracing::warn;

use crate::conn::{Conn, Row};
use crate::connect::SharedNetwork;
use crate::error::{BackendError, ServerError};
use crate::facts::ServerFacts;
use crate::monitor::MonitorOptions;
use crate::probe::followed::connect;
use crate::probe::followed::is_on;
use crate::probe::followed::text;
use crate::probe::replication::Columns;
use crate::unshown::Told;

/// What a server says of its position.
pub(crate) struct ToldPosition {
    pub(crate) executed: GtidSet,
    /// What may be visible there.
    pub(crate) visible: GtidSet,
    pub(crate) read_only: bool,
}

/// How a server is asked how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// By GTIDs.
    Gtids,
    /// By the coordinates of its own binary log: it is the primary. With the server's version.
    OwnLog(u32),
    /// By those of the log that it replicates.
    SourcesLog(u32),
}

/// Asks a server how far it is.
pub(crate) async fn ask_position(
    slot: &mut Option<Conn>,
    facts: &ServerFacts,
    asked: Asked,
    options: &MonitorOptions,
    network: &SharedNetwork,
) -> Result<ToldPosition, BackendError> {
    let mut conn = match slot.take() {
        Some(conn) if conn.login.at == facts.address.at => conn,
        _ => connect(facts.id, &facts.address, options, network).await?.0,
    };
    let told = match (asked, conn.family) {
        (Asked::OwnLog(version), _) => own_log(&mut conn, version).await?,
        (Asked::SourcesLog(version), _) => sources_log(&mut conn, version).await?,
        (Asked::Gtids, Family::MySql) => position_mysql(&mut conn).await?,
        (Asked::Gtids, Family::MariaDb) => position_mariadb(&mut conn).await?,
    };
    *slot = Some(conn);
    Ok(told)
}

/// A server that lets no connection of the monitor's in is not asked again before this.
const ASKED_AGAIN: Duration = Duration::from_secs(1);

/// A primary's connection for [`ask_unshown`].
#[derive(Default)]
pub(crate) struct Commits {
    conn: Option<Conn>,
    /// MariaDB: everything up to here is visible.
    shown: Option<GtidSet>,
    /// When the server has said that it does not say.
    refused: Option<Instant>,
}

/// Asks a primary what it has logged and may not show yet. `group`: it is a group's member. What it refuses to tell is nothing.
pub(crate) async fn ask_unshown(
    commits: &mut Commits,
    facts: &ServerFacts,
    group: bool,
    options: &MonitorOptions,
    network: &SharedNetwork,
) -> Result<Told, BackendError> {
    // Whatever goes wrong from here on, nothing of before counts.
    let before = std::mem::take(commits);
    let refused = before.refused;
    if before.conn.is_none() && refused.is_some_and(|at| at.elapsed() < ASKED_AGAIN) {
        commits.refused = refused;
        return Ok(Told::Nothing);
    }
    let (mut conn, shown) = match before.conn {
        Some(conn) if conn.login.at == facts.address.at => (conn, before.shown),
        _ => match connect(facts.id, &facts.address, options, network).await {
            Ok((conn, _)) => (conn, None),
            // It is there, and lets no more of the monitor's connections in.
            Err(BackendError::Server(error) | BackendError::MonitorRefused(error)) => {
                commits.refused_with(facts, refused, &error);
                return Ok(Told::Nothing);
            }
            Err(error) => return Err(error),
        },
    };
    let told = match conn.family {
        Family::MySql => unshown_mysql(&mut conn, group).await,
        Family::MariaDb => unshown_mariadb(&mut conn, shown).await,
    };
    let told = match told {
        Err(BackendError::Server(error)) => {
            commits.refused_with(facts, refused, &error);
            Told::Nothing
        }
        told => told?,
    };
    commits.conn = Some(conn);
    if let Told::Log { shown, .. } = &told {
        commits.shown = Some(shown.clone());
    }
    Ok(told)
}

impl Commits {
    /// The server does not say. `before`: it had not said the last time either, which was told then.
    fn refused_with(&mut self, facts: &ServerFacts, before: Option<Instant>, error: &ServerError) {
        self.refused = Some(Instant::now());
        if before.is_none() {
            warn!(
                server = %facts.address,
                %error,
                "the monitor's account is not told what the primary has committed and not shown yet: a session that comes \
                 to it from a replica may find less there"
            );
        }
    }
}

/// Of a group's member it counts what it has executed; of any other, who owns a GTID, and one statement will do.
async fn unshown_mysql(conn: &mut Conn, group: bool) -> Result<Told, BackendError> {
    let asked = match group {
        true => "SELECT '', @@GLOBAL.gtid_executed",
        false => "SELECT @@GLOBAL.gtid_owned, ''",
    };
    let rows = conn.query(asked).await?;
    let of = |index: usize| text(rows.first().and_then(|row| row.get(index)));
    Ok(Told::Gtids {
        owned: parsed(Family::MySql, &without_owners(&of(0)))?,
        executed: parsed(Family::MySql, &of(1))?,
    })
}

/// The end of the log is read under the lock under which transactions are written to it, and how far these are
/// committed under that of their commits in order: what the status variables name is visible (tried on 10.11 and
/// 11.8, with a replica that does not acknowledge). The end comes first; where it is `before`, all is visible that there
/// is. The variables cost the server seven times as much.
async fn unshown_mariadb(conn: &mut Conn, before: Option<GtidSet>) -> Result<Told, BackendError> {
    let of = |row: Option<&Row>, index: usize| text(row.and_then(|row| row.get(index)));
    let log = conn.query("SHOW MASTER STATUS").await?;
    let log = log.first();
    let Ok(logged) = coordinates("log", &of(log, 0), &of(log, 1)) else {
        // It keeps none.
        return Ok(Told::Nothing);
    };
    if let Some(shown) = before.filter(|before| *before == logged) {
        return Ok(Told::Log { logged, shown });
    }
    let status = conn
        .query("SHOW SESSION STATUS LIKE 'Binlog_snapshot_%'")
        .await?;
    let named = |name: &str| {
        let row = status
            .iter()
            .find(|row| of(Some(row), 0).eq_ignore_ascii_case(name));
        of(row, 1)
    };
    let file = named("Binlog_snapshot_file");
    let shown = coordinates("log", &file, &named("Binlog_snapshot_position"));
    Ok(shown.map_or(Told::Nothing, |shown| Told::Log { logged, shown }))
}

pub(crate) fn parsed(family: Family, answer: &str) -> Result<GtidSet, BackendError> {
    GtidSet::parse(family, answer.as_bytes())
        .map_err(|_| BackendError::Protocol("a server's position is not understood"))
}

/// A transaction owns its GTID until that is counted as executed, and is visible before: so who owns
/// one is asked first, lest it be counted between the two questions. Whether it takes writes comes
/// after both: as long as it does nobody else does.
async fn position_mysql(conn: &mut Conn) -> Result<ToldPosition, BackendError> {
    let [owners, rows] = conn
        .query_each([
            "SELECT @@GLOBAL.gtid_owned",
            "SELECT @@GLOBAL.gtid_executed, @@GLOBAL.read_only",
        ])
        .await?;
    let owned = text(owners.first().and_then(|row| row.first()));
    let at = |index: usize| text(rows.first().and_then(|row| row.get(index)));
    let executed = parsed(Family::MySql, &at(0))?;
    let mut visible = executed.clone();
    visible.union(&parsed(Family::MySql, &without_owners(&owned))?);
    Ok(ToldPosition {
        executed,
        visible,
        read_only: is_on(&at(1)),
    })
}

/// A transaction is in the binary log before it is visible. Whether the server takes writes comes after, as
/// for GTIDs.
async fn own_log(conn: &mut Conn, version: u32) -> Result<ToldPosition, BackendError> {
    // 8.2 renamed the statement; 8.4 dropped the old one.
    let statement = match version >= 80_200 {
        true => "SHOW BINARY LOG STATUS",
        false => "SHOW MASTER STATUS",
    };
    let [log, rows] = conn
        .query_each([statement, "SELECT @@server_uuid, @@GLOBAL.read_only"])
        .await?;
    let of = |rows: &[Row], index: usize| text(rows.first().and_then(|row| row.get(index)));
    let position = coordinates(&of(&rows, 0), &of(&log, 0), &of(&log, 1))?;
    Ok(ToldPosition {
        executed: position.clone(),
        visible: position,
        read_only: is_on(&of(&rows, 1)),
    })
}

/// What a replica has applied, and what it has received: what lies between may be visible. With several
/// channels nobody can tell which of them a wait is about.
async fn sources_log(conn: &mut Conn, version: u32) -> Result<ToldPosition, BackendError> {
    let statement = match version >= 80_022 {
        true => "SHOW REPLICA STATUS",
        false => "SHOW SLAVE STATUS",
    };
    let status = conn.query_named(statement).await?;
    let rows = conn.query("SELECT @@GLOBAL.read_only").await?;
    let read_only = is_on(&text(rows.first().and_then(|row| row.first())));
    let mut channels = status.iter().flat_map(|rows| &rows.rows);
    let (Some(status), Some(row), None) = (&status, channels.next(), channels.next()) else {
        return Err(BackendError::Protocol("a replica without one source"));
    };
    let columns = Columns(status);
    let at = |names: [&str; 2]| text(columns.find(names).and_then(|at| row.get(at)));
    let source = at(["Source_UUID", "Master_UUID"]);
    let executed = coordinates(
        &source,
        &at(["Relay_Source_Log_File", "Relay_Master_Log_File"]),
        &at(["Exec_Source_Log_Pos", "Exec_Master_Log_Pos"]),
    )?;
    let mut visible = coordinates(
        &source,
        &at(["Source_Log_File", "Master_Log_File"]),
        &at(["Read_Source_Log_Pos", "Read_Master_Log_Pos"]),
    )?;
    visible.union(&executed);
    Ok(ToldPosition {
        executed,
        visible,
        read_only,
    })
}

fn coordinates(server: &str, file: &str, offset: &str) -> Result<GtidSet, BackendError> {
    let position = offset.parse().ok();
    let position = position.and_then(|offset| GtidSet::log(server, file, offset));
    position.ok_or(BackendError::Protocol(
        "a server's binary-log coordinates are not understood",
    ))
}

/// `gtid_owned` names the thread that owns each: `uuid:7#23:8#24`.
pub(crate) fn without_owners(owned: &str) -> String {
    let mut owner = false;
    owned
        .chars()
        .filter(|letter| {
            owner = *letter == '#' || (owner && letter.is_ascii_digit());
            !owner
        })
        .collect()
}

/// A transaction is in the binary log before it is visible; a replica that keeps none has received it
/// before.
async fn position_mariadb(conn: &mut Conn) -> Result<ToldPosition, BackendError> {
    let rows = conn
        .query(
            "SELECT @@GLOBAL.gtid_current_pos, @@GLOBAL.gtid_binlog_pos, @@GLOBAL.read_only, \
             @@GLOBAL.log_bin AND @@GLOBAL.log_slave_updates",
        )
        .await?;
    let row = rows.first();
    let at = |index: usize| text(row.and_then(|row| row.get(index)));
    let executed = parsed(Family::MariaDb, &at(0))?;
    let mut visible = executed.clone();
    visible.union(&parsed(Family::MariaDb, &at(1))?);
    if at(3) != "1"
        && let Some(channels) = conn.query_named("SHOW ALL SLAVES STATUS").await?
    {
        let received = channels
            .columns
            .iter()
            .position(|column| column.name.eq_ignore_ascii_case(b"Gtid_IO_Pos"));
        for channel in &channels.rows {
            let answer = text(received.and_then(|index| channel.get(index)));
            visible.union(&parsed(Family::MariaDb, &answer)?);
        }
    }
    Ok(ToldPosition {
        executed,
        visible,
        read_only: is_on(&at(2)),
    })
}

//! How each family spells what an orchestrator does: who replicates from whom, who may write,
//! where the applier is. Only the SQL; nothing is sent from here.

use std::collections::BTreeMap;

use crate::Family;
use crate::accounts::REPLICATION;

/// A fresh connection to the primary, from wherever this server's own history ends. The receiver
/// retries once a second for a day.
pub(crate) fn attach(family: Family, primary_port: u16) -> Vec<String> {
    let (user, password) = (REPLICATION.user, REPLICATION.password);
    match family {
        Family::MySql => vec![
            "STOP REPLICA".into(),
            format!(
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={primary_port}, \
                 SOURCE_USER='{user}', SOURCE_PASSWORD='{password}', SOURCE_AUTO_POSITION=1, \
                 GET_SOURCE_PUBLIC_KEY=1, SOURCE_CONNECT_RETRY=1, SOURCE_RETRY_COUNT=86400, \
                 SOURCE_HEARTBEAT_PERIOD=1, SOURCE_DELAY=0"
            ),
            "START REPLICA".into(),
        ],
        // slave_pos knows what came by replication; what a former primary wrote itself is in
        // current_pos only.
        Family::MariaDb => vec![
            "STOP SLAVE".into(),
            "SET GLOBAL gtid_slave_pos = @@GLOBAL.gtid_current_pos".into(),
            format!(
                "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={primary_port}, \
                 MASTER_USER='{user}', MASTER_PASSWORD='{password}', MASTER_USE_GTID=slave_pos, \
                 MASTER_CONNECT_RETRY=1, MASTER_HEARTBEAT_PERIOD=1, MASTER_DELAY=0"
            ),
            "START SLAVE".into(),
        ],
    }
}

/// The primary's binary log from here on, without GTIDs: file and offset as SHOW BINARY LOG STATUS tells them.
pub(crate) fn attach_at(primary_port: u16, file: &str, offset: &str) -> Vec<String> {
    let (user, password) = (REPLICATION.user, REPLICATION.password);
    vec![
        "STOP REPLICA".into(),
        format!(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={primary_port}, \
             SOURCE_USER='{user}', SOURCE_PASSWORD='{password}', SOURCE_LOG_FILE='{file}', \
             SOURCE_LOG_POS={offset}, GET_SOURCE_PUBLIC_KEY=1, SOURCE_CONNECT_RETRY=1, \
             SOURCE_RETRY_COUNT=86400, SOURCE_HEARTBEAT_PERIOD=1, SOURCE_DELAY=0"
        ),
        "START REPLICA".into(),
    ]
}

/// Where the primary's binary log ends.
pub(crate) const LOG_STATUS: &str = "SHOW BINARY LOG STATUS";

/// Waits on a replica until it has applied its source's log up to there; gives 0 when it has.
pub(crate) fn wait_for_log(file: &str, offset: &str, seconds: u64) -> String {
    format!("SELECT IF(SOURCE_POS_WAIT('{file}', {offset}, {seconds}) >= 0, 0, 1)")
}

/// Ends replication and forgets its source.
pub(crate) const DETACH: [&str; 2] = ["STOP REPLICA", "RESET REPLICA ALL"];
pub(crate) const STATUS: &str = "SHOW REPLICA STATUS";
pub(crate) const STOP_RECEIVER: &str = "STOP REPLICA IO_THREAD";
pub(crate) const STOP_APPLIER: &str = "STOP REPLICA SQL_THREAD";
pub(crate) const START_APPLIER: &str = "START REPLICA SQL_THREAD";

pub(crate) fn allow_writes(family: Family) -> &'static [&'static str] {
    match family {
        Family::MySql => &[
            "SET GLOBAL super_read_only = OFF",
            "SET GLOBAL read_only = OFF",
        ],
        Family::MariaDb => &["SET GLOBAL read_only = OFF"],
    }
}

pub(crate) fn forbid_writes(family: Family) -> &'static [&'static str] {
    match family {
        Family::MySql => &[
            "SET GLOBAL read_only = ON",
            "SET GLOBAL super_read_only = ON",
        ],
        Family::MariaDb => &["SET GLOBAL read_only = ON"],
    }
}

/// Applies each transaction this many seconds after the primary committed it. MariaDB wants both
/// threads stopped for that, MySQL the applier.
pub(crate) fn delay(family: Family, seconds: u32) -> [String; 3] {
    match family {
        Family::MySql => [
            STOP_APPLIER.into(),
            format!("CHANGE REPLICATION SOURCE TO SOURCE_DELAY={seconds}"),
            START_APPLIER.into(),
        ],
        Family::MariaDb => [
            "STOP SLAVE".into(),
            format!("CHANGE MASTER TO MASTER_DELAY={seconds}"),
            "START SLAVE".into(),
        ],
    }
}

/// What the server has executed.
pub(crate) fn position(family: Family) -> &'static str {
    match family {
        Family::MySql => "SELECT REPLACE(@@GLOBAL.gtid_executed, '\\n', '')",
        Family::MariaDb => "SELECT @@GLOBAL.gtid_current_pos",
    }
}

/// Waits on the server until it has executed `position`; gives 0 when it has.
pub(crate) fn wait_for(family: Family, position: &str, seconds: u64) -> String {
    match family {
        Family::MySql => format!("SELECT WAIT_FOR_EXECUTED_GTID_SET('{position}', {seconds})"),
        Family::MariaDb => format!("SELECT MASTER_GTID_WAIT('{position}', {seconds})"),
    }
}

/// A row of SHOW REPLICA STATUS, read by the names of either family.
pub(crate) struct StatusRow<'a>(pub(crate) &'a BTreeMap<String, String>);

impl StatusRow<'_> {
    fn get(&self, mysql: &str, mariadb: &str) -> Option<&str> {
        self.0
            .get(mysql)
            .or_else(|| self.0.get(mariadb))
            .map(String::as_str)
    }

    pub(crate) fn source_port(&self) -> Option<u16> {
        self.get("Source_Port", "Master_Port")?.parse().ok()
    }

    /// `Yes`, `No`, or `Connecting` (MariaDB: also `Preparing`).
    pub(crate) fn receiver(&self) -> &str {
        self.get("Replica_IO_Running", "Slave_IO_Running")
            .unwrap_or("No")
    }

    pub(crate) fn applier_runs(&self) -> bool {
        self.get("Replica_SQL_Running", "Slave_SQL_Running") == Some("Yes")
    }

    pub(crate) fn delay_s(&self) -> u32 {
        self.get("SQL_Delay", "SQL_Delay")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }

    pub(crate) fn lag_s(&self) -> Option<u64> {
        self.get("Seconds_Behind_Source", "Seconds_Behind_Master")?
            .parse()
            .ok()
    }

    /// What the receiver has fetched.
    pub(crate) fn received(&self) -> String {
        self.get("Retrieved_Gtid_Set", "Gtid_IO_Pos")
            .unwrap_or_default()
            .replace('\n', "")
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        ["Last_IO_Error", "Last_SQL_Error"]
            .iter()
            .filter_map(|name| self.0.get(*name))
            .find(|text| !text.is_empty())
            .cloned()
    }
}

//! The accounts and databases that every server is born with. They are part of the data folder
//! that all servers are copied from, so they are on every server and in no binary log.

use serde::Serialize;

use crate::Family;

/// An account that can log in from anywhere. The passwords are for private servers on 127.0.0.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Its name, without a host.
    pub user: &'static str,
    /// Its password, in clear: the servers are private.
    pub password: &'static str,
    /// What the account is for.
    pub purpose: &'static str,
}

/// For an application: everything on the databases `app` and `test`.
pub const APP: Account = Account {
    user: "app",
    password: "app-secret",
    purpose: "application: all on databases app and test",
};

/// All privileges, may grant them.
pub const ADMIN: Account = Account {
    user: "admin",
    password: "admin-secret",
    purpose: "administration: all privileges",
};

/// What the proxy needs to watch servers, and no more.
pub const MONITOR: Account = Account {
    user: "millrace_monitor",
    password: "monitor-secret",
    purpose: "the proxy's monitor: reads status and definitions",
};

/// What replicas log in to their primary with.
pub(crate) const REPLICATION: Account = Account {
    user: "replicator",
    password: "replicator-secret",
    purpose: "the replicas' receivers",
};

/// The accounts for users, in the order in which they are shown.
pub const ACCOUNTS: [Account; 3] = [APP, ADMIN, MONITOR];

/// The statements that make databases and accounts, one a line: both servers' bootstrap modes
/// read files line by line.
pub(crate) fn bootstrap_sql(family: Family) -> String {
    let mut lines = Vec::new();
    if family == Family::MariaDb {
        lines.extend(MARIADB_PREPARE.map(String::from));
    }
    lines.extend(["app", "test"].map(|db| format!("CREATE DATABASE IF NOT EXISTS {db};")));
    for account in [APP, ADMIN, MONITOR, REPLICATION] {
        lines.push(create_user(family, account));
    }
    lines.extend(grants(family).iter().map(|grant| format!("{grant};")));
    lines.join("\n") + "\n"
}

/// MariaDB's bootstrap runs without grant tables until told to load them, and makes accounts
/// that would shadow ours for local clients.
const MARIADB_PREPARE: [&str; 3] = [
    "DELETE FROM mysql.global_priv WHERE User = '' OR (User = 'root' AND Host <> 'localhost');",
    "DELETE FROM mysql.db WHERE User = '';",
    "FLUSH PRIVILEGES;",
];

fn create_user(family: Family, account: Account) -> String {
    let Account { user, password, .. } = account;
    let how = match family {
        Family::MySql => format!("WITH caching_sha2_password BY '{password}'"),
        Family::MariaDb => format!("VIA mysql_native_password USING PASSWORD('{password}')"),
    };
    format!("CREATE USER '{user}'@'%' IDENTIFIED {how};")
}

fn grants(family: Family) -> &'static [&'static str] {
    match family {
        Family::MySql => &[
            "GRANT ALL ON app.* TO 'app'@'%'",
            "GRANT ALL ON test.* TO 'app'@'%'",
            "GRANT PROCESS ON *.* TO 'app'@'%'",
            "GRANT ALL ON *.* TO 'admin'@'%' WITH GRANT OPTION",
            "GRANT SELECT, SHOW VIEW, TRIGGER, REPLICATION CLIENT ON *.* TO 'millrace_monitor'@'%'",
            "GRANT SHOW_ROUTINE ON *.* TO 'millrace_monitor'@'%'",
            // To list a server's replicas, and to follow the binary log, for the cache.
            "GRANT REPLICATION SLAVE ON *.* TO 'millrace_monitor'@'%'",
            "GRANT REPLICATION SLAVE ON *.* TO 'replicator'@'%'",
        ],
        // SHOW CREATE ROUTINE exists from 11.3 on; before it, SELECT on mysql.proc does.
        Family::MariaDb => &[
            "GRANT ALL ON app.* TO 'app'@'%'",
            "GRANT ALL ON test.* TO 'app'@'%'",
            "GRANT PROCESS ON *.* TO 'app'@'%'",
            "GRANT ALL ON *.* TO 'admin'@'%' WITH GRANT OPTION",
            "GRANT SELECT, SHOW VIEW, TRIGGER, BINLOG MONITOR, REPLICA MONITOR \
             /*M!110301 , SHOW CREATE ROUTINE */ ON *.* TO 'millrace_monitor'@'%'",
            "GRANT REPLICATION MASTER ADMIN ON *.* TO 'millrace_monitor'@'%'",
            // To follow the binary log, for the cache.
            "GRANT REPLICATION SLAVE ON *.* TO 'millrace_monitor'@'%'",
            "GRANT REPLICATION SLAVE ON *.* TO 'replicator'@'%'",
        ],
    }
}

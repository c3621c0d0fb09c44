//! What servers are asked, and how their answers are read. Decides nothing, and writes nothing to them.

pub(crate) mod accounts;
pub(crate) mod followed;
pub(crate) mod positions;
pub(crate) mod replication;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_engine::state::{BASIS, Begins, TRACKED_BY_FIRST_NAME};
use millrace_protocol::Capabilities;
use millrace_protocol::handshake::{Greeting, HandshakeResponse, ServerAuthPacket};
use millrace_topology::{Cause, Family, GtidSet, ProbeReport, ServerId};

use crate::conn::Conn;
use crate::connect::{
    Address, LOGIN_PACKET_MAX, MAX_PACKET, SharedNetwork, UNRESOLVED, agreed, dial,
};
use crate::error::BackendError;
use crate::facts::ServerFacts;
use crate::monitor::{CatalogueRows, MonitorOptions};
use crate::packet_io::{read_packet, write_packet};
use crate::probe::followed::{connect, is_on, text, unless_refused};
use crate::probe::replication::{galera, galera_name, group, replicas, replication, sources};
use crate::stream::Stream;

pub(crate) use crate::probe::followed::Followed;

/// What a probe learnt besides the report.
pub(crate) struct Probed {
    pub(crate) report: ProbeReport,
    pub(crate) greeting: Greeting,
    pub(crate) track: Arc<str>,
    pub(crate) tracked_by_default: Arc<str>,
    pub(crate) begins: Arc<Begins>,
    /// The machine that answered, where the server is known by a name.
    pub(crate) at: Option<IpAddr>,
}

/// The machine lacks something, not the server: ports, files, memory.
pub(crate) fn is_own_fault(error: &BackendError) -> bool {
    use rustix::io::Errno;
    let BackendError::Io(error) = error else {
        return false;
    };
    let own = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::ADDRNOTAVAIL,
        Errno::NOBUFS,
        Errno::NOMEM,
    ];
    Errno::from_io_error(error).is_some_and(|errno| own.contains(&errno))
}

/// In which way a probe failed.
pub(crate) fn cause(error: &BackendError) -> Cause {
    match error {
        BackendError::Io(error) => match error.kind() {
            std::io::ErrorKind::ConnectionRefused => Cause::Refused,
            std::io::ErrorKind::TimedOut => Cause::TimedOut,
            _ if error.to_string().starts_with(UNRESOLVED) => Cause::Resolve,
            _ => Cause::Lost,
        },
        BackendError::Timeout(_) => Cause::TimedOut,
        BackendError::Server(error) => match error.code {
            1040 | 1203 | 1226 => Cause::Busy,
            // 1047: a Galera node that is not ready. 3032, 6400: MySQL's offline_mode, which ends and refuses
            // the connections of all but administrators: to us it is gone.
            1047 | 1053 | 3032 | 6400 => Cause::ShuttingDown,
            _ => Cause::Denied,
        },
        BackendError::Protocol(_)
        | BackendError::Tls(_)
        | BackendError::Limit(_)
        | BackendError::AheadRefused(_)
        | BackendError::MonitorRefused(_) => Cause::Protocol,
    }
}

/// Asks a server everything.
pub(crate) async fn probe(
    followed: &mut Followed,
    options: &MonitorOptions,
) -> Result<Probed, BackendError> {
    if !followed.known {
        followed.galera = galera_name(&mut followed.conn).await?;
        followed.shares_storage = shares_storage(&mut followed.conn).await?;
        followed.track = trackable(&mut followed.conn).await?;
        followed.tracked_by_default = tracked_by_default(&mut followed.conn).await?;
        followed.begins = begins(&mut followed.conn).await?;
        followed.known = true;
    }
    let mut report = match followed.conn.family {
        Family::MySql => report_mysql(followed, options).await?,
        Family::MariaDb => report_mariadb(followed, options).await?,
    };
    let rows = followed
        .conn
        .query("SHOW GLOBAL STATUS LIKE 'Threads_running'")
        .await?;
    let running = text(rows.first().and_then(|row| row.get(1)));
    report.threads_running = running.parse().unwrap_or(0);
    Ok(Probed {
        report,
        greeting: followed.greeting.clone(),
        track: followed.track.clone(),
        tracked_by_default: followed.tracked_by_default.clone(),
        begins: followed.begins.clone(),
        at: followed.conn.login.at,
    })
}

/// Opens a connection for probes.
pub(crate) async fn follow(
    id: ServerId,
    address: &Address,
    options: &MonitorOptions,
    network: &SharedNetwork,
) -> Result<Followed, BackendError> {
    let (conn, greeting) = connect(id, address, options, network).await?;
    Ok(Followed {
        conn,
        greeting,
        track: "*".into(),
        tracked_by_default: "".into(),
        begins: Arc::new(Begins::unknown()),
        galera: None,
        shares_storage: false,
        known: false,
        looking: Vec::new(),
        keeps_foreign_keys: false,
        blind_to_replicas: None,
    })
}

/// What a server has said to somebody who only wants to know whether it can be used.
#[derive(Debug)]
pub struct Sounding {
    /// As it reports it.
    pub version: String,
    /// Why the monitor's account may not list the server's replicas.
    pub blind_to_replicas: Option<String>,
    /// The monitor's account may read the table of accounts.
    pub reads_accounts: bool,
    /// It sees every change of accounts and global variables.
    pub sees_changes: bool,
    /// It is not known to lack the right to follow the binary log.
    pub may_follow: bool,
}

/// A row where the account has the right to follow the binary log, or a role that may have it.
const MAY_FOLLOW: &str = "SELECT 1 FROM information_schema.USER_PRIVILEGES \
     WHERE PRIVILEGE_TYPE IN ('REPLICATION SLAVE', 'REPLICATION REPLICA') AND GRANTEE = CONCAT('''', \
     SUBSTRING_INDEX(CURRENT_USER(), '@', 1), '''@''', SUBSTRING_INDEX(CURRENT_USER(), '@', -1), '''') \
     UNION SELECT 1 FROM DUAL WHERE COALESCE(CURRENT_ROLE(), 'NONE') <> 'NONE'";

/// Asks a server, once, all that the monitor asks.
pub(crate) async fn sound(
    address: &Address,
    options: &MonitorOptions,
    network: &SharedNetwork,
) -> Result<Sounding, BackendError> {
    let mut followed = follow(ServerId(0), address, options, network).await?;
    let asking = async {
        let probed = probe(&mut followed, options).await?;
        let sees_changes = accounts::look(&mut followed).await?.complete;
        let family = followed.conn.family;
        let question = crate::user_rows::question(family, options.user.as_bytes(), None);
        let reads_accounts = match followed.conn.query(&question).await {
            Ok(_) => true,
            Err(BackendError::Server(_)) => false,
            Err(error) => return Err(error),
        };
        let may_follow = match followed.conn.query(MAY_FOLLOW).await {
            Ok(rows) => !rows.is_empty(),
            Err(BackendError::Server(_)) => true,
            Err(error) => return Err(error),
        };
        Ok(Sounding {
            version: probed.report.version.to_string(),
            blind_to_replicas: followed
                .blind_to_replicas
                .take()
                .filter(|_| probed.report.group.is_none()),
            reads_accounts,
            sees_changes,
            may_follow,
        })
    };
    match tokio::time::timeout(options.timeout, asking).await {
        Ok(sounding) => sounding,
        Err(_) => Err(BackendError::Timeout("monitor.timeout")),
    }
}

/// Ends questions that nobody waits for any more, on connections that were given up at these times, and
/// forgets those. Only what the same account has been at since then: the server may have been started
/// again, and the number may be another's.
pub(crate) async fn end(
    followed: &mut Followed,
    threads: &mut Vec<(u32, Instant)>,
) -> Result<(), BackendError> {
    for (thread, since) in threads.iter() {
        let seconds = since.elapsed().as_secs();
        let ours = format!(
            "SELECT ID FROM information_schema.PROCESSLIST WHERE ID = {thread} \
             AND COMMAND <> 'Sleep' AND USER = SUBSTRING_INDEX(USER(), '@', 1) \
             AND TIME >= {seconds}"
        );
        if !unless_refused(&mut followed.conn, &ours).await?.is_empty() {
            // It may just have ended (1094).
            unless_refused(&mut followed.conn, &format!("KILL {thread}")).await?;
        }
    }
    threads.clear();
    Ok(())
}

/// Aurora has a variable that no other server has.
async fn shares_storage(conn: &mut Conn) -> Result<bool, BackendError> {
    if conn.family == Family::MariaDb {
        return Ok(false);
    }
    let rows = conn
        .query("SHOW GLOBAL VARIABLES LIKE 'aurora_version'")
        .await?;
    Ok(!rows.is_empty())
}

/// How many of clients' commits have been under way for at least so long, in whole seconds. MySQL alone
/// holds commits while the disk of its binary log is full, and shows the threads of others without
/// further privileges (in the performance schema; without it none is seen).
pub(crate) async fn stuck_commits(
    followed: &mut Followed,
    stall: Duration,
) -> Result<u32, BackendError> {
    if followed.conn.family != Family::MySql {
        return Ok(0);
    }
    let question = format!(
        "SELECT COUNT(*) FROM performance_schema.threads WHERE PROCESSLIST_COMMAND IN \
         ('Query', 'Execute') AND PROCESSLIST_STATE = 'waiting for handler commit' \
         AND PROCESSLIST_TIME >= {}",
        stall.as_secs().max(1)
    );
    match followed.conn.query(&question).await {
        Ok(rows) => Ok(text(rows.first().and_then(|row| row.first()))
            .parse()
            .unwrap_or(0)),
        Err(BackendError::Server(_)) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Without an account only the greeting can be had: enough for a single server, or for fixed
/// roles. Positions are then not known.
pub(crate) async fn greet(
    address: &Address,
    options: &MonitorOptions,
    network: &SharedNetwork,
) -> Result<Probed, BackendError> {
    let (mut stream, greeting, mut buffer) =
        dial(address, network, options.connect_timeout).await?;
    let version = greeting
        .server_version
        .trim_start_matches("5.5.5-")
        .to_owned();
    let mut report = ProbeReport::new(greeting.family());
    report.version_number = version_number(&version);
    report.version = version.into();
    report.gtid = false;
    let refused = be_refused(&mut stream, &mut buffer, &greeting);
    let _ = tokio::time::timeout(options.connect_timeout, refused).await;
    Ok(Probed {
        report,
        greeting,
        track: "*".into(),
        tracked_by_default: "".into(),
        begins: Arc::new(Begins::unknown()),
        at: address.at,
    })
}

/// Brings a login to its end as nobody that the server knows. One that breaks off, or is no login, counts against
/// Millrace's address, which the server shuts out after max_connect_errors of them; one that is refused does not.
async fn be_refused(
    stream: &mut Stream,
    buffer: &mut Vec<u8>,
    greeting: &Greeting,
) -> Result<(), BackendError> {
    let capabilities = agreed(Capabilities::empty(), greeting);
    let response = HandshakeResponse {
        capabilities,
        max_packet: MAX_PACKET,
        collation: 45,
        user: b"millrace".to_vec(),
        plugin: Some(greeting.auth_plugin.clone().into_bytes()),
        ..HandshakeResponse::default()
    };
    let mut out = Vec::new();
    response.encode(&mut out, 1);
    stream.send(&out).await?;
    loop {
        let (sequence, payload) = read_packet(stream, buffer, LOGIN_PACKET_MAX).await?;
        match ServerAuthPacket::parse(&payload, capabilities)? {
            // There is such an account, without a password.
            ServerAuthPacket::Ok => return Ok(stream.send(&[1, 0, 0, 0, 1]).await?),
            ServerAuthPacket::Err(_) => return Ok(()),
            _ => write_packet(stream, sequence.wrapping_add(1), &[]).await?,
        }
    }
}

/// The variables that this server's sessions have a basis for.
async fn begins(conn: &mut Conn) -> Result<Arc<Begins>, BackendError> {
    let question = format!(
        "SHOW SESSION VARIABLES WHERE Variable_name IN ('{}')",
        BASIS.join("','")
    );
    let rows = conn.query(&question).await?;
    let has = |name: &str| rows.iter().any(|row| text(row.first()) == name);
    let names: Vec<&str> = BASIS.iter().copied().filter(|name| has(name)).collect();
    // From MariaDB 11.1 on both names are one variable.
    let doubled = |name: &str| {
        let newer = name.replacen("tx_", "transaction_", 1);
        newer != name && names.contains(&&*newer)
    };
    let names = names.iter().copied().filter(|name| !doubled(name));
    Ok(Arc::new(Begins::new(names)))
}

/// What sessions begin with in `session_track_system_variables`.
async fn tracked_by_default(conn: &mut Conn) -> Result<Arc<str>, BackendError> {
    let rows = conn
        .query("SELECT @@GLOBAL.session_track_system_variables")
        .await?;
    Ok(text(rows.first().and_then(|row| row.first())).into())
}

/// The value for `session_track_system_variables`. MySQL's `*` would add its `statement_id` to
/// every answer, so all other names are listed there (observed on 9.7).
async fn trackable(conn: &mut Conn) -> Result<Arc<str>, BackendError> {
    if conn.family == Family::MariaDb {
        return Ok(match tells_by_first_name(conn).await? {
            true => TRACKED_BY_FIRST_NAME.into(),
            false => "*".into(),
        });
    }
    let rows = conn.query("SHOW SESSION VARIABLES").await?;
    let names: Vec<String> = rows
        .into_iter()
        .filter_map(|row| String::from_utf8(row.into_iter().next()??).ok())
        .filter(|name| name != "statement_id" && !name.contains('\''))
        .collect();
    Ok(names.join(",").into())
}

/// Whether two switches are one to the tracker: then the list keeps the first of them.
async fn tells_by_first_name(conn: &mut Conn) -> Result<bool, BackendError> {
    conn.query("SET SESSION session_track_system_variables='autocommit,foreign_key_checks'")
        .await?;
    let rows = conn
        .query("SELECT @@SESSION.session_track_system_variables")
        .await?;
    conn.query("SET SESSION session_track_system_variables=DEFAULT")
        .await?;
    Ok(text(rows.first().and_then(|row| row.first())) == "autocommit")
}

/// Whether `init_connect` has sessions begin read only, as far as its text tells.
fn sets_read_only(init_connect: &str) -> bool {
    let text = init_connect.to_ascii_lowercase();
    let words: Vec<&str> = text
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .collect();
    let pairs = || words.windows(2).map(|pair| (pair[0], pair[1]));
    let by_variable = pairs().any(|(name, value)| {
        matches!(name, "transaction_read_only" | "tx_read_only") && !matches!(value, "off" | "0")
    });
    by_variable || (words.contains(&"transaction") && pairs().any(|pair| pair == ("read", "only")))
}

/// `9.7.4`, `10.11.19-MariaDB-log` as `major * 10000 + minor * 100 + patch`.
fn version_number(version: &str) -> u32 {
    let mut parts = version
        .split(|c: char| !c.is_ascii_digit())
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0).min(99);
    next() * 10_000 + next() * 100 + next()
}

async fn report_mysql(
    followed: &mut Followed,
    options: &MonitorOptions,
) -> Result<ProbeReport, BackendError> {
    let conn = &mut followed.conn;
    let rows = conn
        .query(
            "SELECT @@version, @@server_uuid, @@server_id, @@GLOBAL.read_only, \
             @@GLOBAL.super_read_only, @@GLOBAL.offline_mode, @@GLOBAL.gtid_mode, \
             @@GLOBAL.gtid_executed, @@GLOBAL.sql_mode, \
             CONCAT_WS(' ', @@hostname, @@port, @@datadir), @@GLOBAL.log_bin, @@innodb_read_only, \
             @@GLOBAL.transaction_read_only, @@GLOBAL.init_connect",
        )
        .await?;
    let row = rows
        .first()
        .ok_or(BackendError::Protocol("empty answer to a probe"))?;
    let at = |index: usize| text(row.get(index));
    let mut report = ProbeReport::new(Family::MySql);
    report.version = at(0).into();
    report.version_number = version_number(&at(0));
    report.server_uuid = at(1).into();
    report.server_id = at(2).parse().unwrap_or(0);
    report.read_only = is_on(&at(3));
    report.super_read_only = is_on(&at(4));
    report.offline_mode = is_on(&at(5));
    report.gtid = at(6).starts_with("ON");
    report.log = !report.gtid && is_on(&at(10));
    report.innodb_read_only = is_on(&at(11));
    report.begins_read_only = is_on(&at(12)) || sets_read_only(&at(13));
    report.shares_storage = followed.shares_storage;
    report.executed = GtidSet::parse_mysql(at(7).as_bytes())
        .map_err(|_| BackendError::Protocol("gtid_executed is not understood"))?;
    report.sql_mode = at(8).into();
    report.identity = at(9).into();
    // 8.0.22 renamed the statements; 8.4 dropped the old ones.
    let renamed = report.version_number >= 80_022;
    let statement = match renamed {
        true => "SHOW REPLICA STATUS",
        false => "SHOW SLAVE STATUS",
    };
    let channels = conn.query_named(statement).await?;
    report.peers = sources(channels.as_ref());
    report.replication = replication(channels);
    report.log |= !report.gtid && report.replication.is_some();
    group(conn, &mut report).await?;
    if options.discovers() {
        let statement = match renamed {
            true => "SHOW REPLICAS",
            false => "SHOW SLAVE HOSTS",
        };
        replicas(followed, &mut report, statement).await?;
    }
    Ok(report)
}

async fn report_mariadb(
    followed: &mut Followed,
    options: &MonitorOptions,
) -> Result<ProbeReport, BackendError> {
    let conn = &mut followed.conn;
    let rows = conn
        .query(
            "SELECT @@version, @@server_id, @@GLOBAL.read_only, @@GLOBAL.log_bin, \
             @@GLOBAL.gtid_current_pos, @@GLOBAL.sql_mode, \
             CONCAT_WS(' ', @@hostname, @@port, @@datadir), @@innodb_read_only, @@GLOBAL.tx_read_only, \
             @@GLOBAL.init_connect, @@GLOBAL.gtid_binlog_pos",
        )
        .await?;
    let row = rows
        .first()
        .ok_or(BackendError::Protocol("empty answer to a probe"))?;
    let at = |index: usize| text(row.get(index));
    let mut report = ProbeReport::new(Family::MariaDb);
    report.version = at(0).into();
    report.version_number = version_number(&at(0));
    report.server_id = at(1).parse().unwrap_or(0);
    report.read_only = is_on(&at(2));
    report.gtid = is_on(&at(3));
    report.executed = positions::parsed(Family::MariaDb, &at(4))?;
    // The current position leaves out what a session wrote under another `server_id` (observed on 10.11 and 11.8).
    report
        .executed
        .union(&positions::parsed(Family::MariaDb, &at(10))?);
    report.sql_mode = at(5).into();
    report.identity = at(6).into();
    report.innodb_read_only = is_on(&at(7));
    report.begins_read_only = is_on(&at(8)) || sets_read_only(&at(9));
    let channels = conn.query_named("SHOW ALL SLAVES STATUS").await?;
    report.peers = sources(channels.as_ref());
    report.replication = replication(channels);
    // A replica takes positions from what it applied, with or without a binary log.
    report.gtid |= report.replication.is_some();
    if let Some(name) = followed.galera.clone() {
        galera(conn, &mut report, name).await?;
    }
    if options.discovers() && report.galera.is_none() {
        replicas(followed, &mut report, "SHOW SLAVE HOSTS").await?;
    }
    Ok(report)
}

/// Reads the stored routines, views and triggers; in a cluster of Galera also which tables are not replicated.
pub(crate) async fn read_catalogue(
    slot: &mut Option<Conn>,
    facts: &ServerFacts,
    in_galera: bool,
    options: &MonitorOptions,
    network: &SharedNetwork,
) -> Result<CatalogueRows, BackendError> {
    let mut conn = match slot.take() {
        Some(conn) if conn.server == facts.id && conn.login.at == facts.address.at => conn,
        _ => connect(facts.id, &facts.address, options, network).await?.0,
    };
    let mut rows = [const { Vec::new() }; 4];
    let family = conn.family;
    let asked = if in_galera { 4 } else { 3 };
    let queries = (options.catalogue_queries)(family);
    for (query, rows) in queries.iter().zip(&mut rows).take(asked) {
        *rows = conn.query(query).await?;
    }
    *slot = Some(conn);
    Ok(CatalogueRows {
        family: Some(family),
        rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::positions::without_owners;
    use crate::probe::replication::{is_address, named_address, view_id};

    #[test]
    fn a_server_in_offline_mode_is_not_there() {
        use crate::error::ServerError;
        let said = |code| cause(&BackendError::Server(ServerError::new(code, b"HY000", "")));
        assert_eq!([3032, 6400].map(said), [Cause::ShuttingDown; 2]);
        assert!(!said(3032).is_alive());
        assert!(said(1045).is_alive());
    }

    #[test]
    fn init_connect_may_have_sessions_begin_read_only() {
        for (text, expected) in [
            ("", false),
            ("SET NAMES utf8mb4", false),
            ("SET SESSION TRANSACTION READ ONLY", true),
            ("set @@session.transaction_read_only = ON", true),
            ("SET tx_read_only=1, autocommit=1", true),
            ("SET tx_read_only=0", false),
            ("SET SESSION TRANSACTION READ WRITE", false),
            (
                "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ ONLY",
                true,
            ),
        ] {
            assert_eq!(sets_read_only(text), expected, "{text}");
        }
    }

    #[test]
    fn owners_are_left_out() {
        let owned = "3e11fa47-71ca-11e1-9e33-c80aa9429562:23#10:24#111,\n\
                     4e11fa47-71ca-11e1-9e33-c80aa9429562:1#7";
        assert_eq!(
            without_owners(owned),
            "3e11fa47-71ca-11e1-9e33-c80aa9429562:23:24,\n\
             4e11fa47-71ca-11e1-9e33-c80aa9429562:1"
        );
        assert_eq!(without_owners(""), "");
    }

    #[test]
    fn versions_are_numbers() {
        assert_eq!(version_number("9.7.4"), 90_704);
        assert_eq!(version_number("10.11.19-MariaDB-log"), 101_119);
        assert_eq!(version_number("8.0.36-28"), 80_036);
    }

    #[test]
    fn a_group_view_is_made_once_and_counted() {
        assert_eq!(view_id("17953617807104576:3"), (17_953_617_807_104_576, 3));
        assert_eq!(view_id(""), (0, 0));
    }

    #[test]
    fn only_whole_addresses_are_followed() {
        for (text, expected) in [
            ("10.0.0.1:3306", true),
            ("[::1]:3306", true),
            ("AUTO", false),
            ("", false),
            ("10.0.0.1:0", false),
        ] {
            assert_eq!(is_address(text), expected, "{text}");
        }
        assert_eq!(named_address("::1", 3306).as_deref(), Some("[::1]:3306"));
        assert_eq!(named_address("", 3306), None);
    }
}

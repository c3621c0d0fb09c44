//! What servers are asked, and how their answers are read. Decides nothing, and writes nothing to them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_protocol::Capabilities;
use millrace_protocol::handshake::{Greeting, HandshakeResponse, ServerAuthPacket};
use millrace_protocol::resultset::Rows;
use millrace_topology::{
    Cause, Family, GaleraNode, GaleraState, GroupView, GtidSet, Member, MemberState, Peer,
    ProbeReport, Receiver, Relation, ReplicationStatus, ServerId,
};

use crate::conn::{Conn, Row};
use crate::connect::{
    Address, LOGIN_PACKET_MAX, Login, MAX_PACKET, SharedNetwork, UNRESOLVED, agreed, dial, open,
};
use crate::error::BackendError;
use crate::fresh::Look;
use crate::monitor::{CatalogueRows, MonitorOptions};
use crate::packet_io::{read_packet, write_packet};
use crate::pool::ServerFacts;
use crate::state::{BASIS, Begins, TRACKED_BY_FIRST_NAME};
use crate::stream::Stream;
use crate::tls::For;
use crate::user_rows::{self, Name, UserRows};

/// A server's connection for probes, and what is asked once on it.
pub(crate) struct Followed {
    pub(crate) conn: Conn,
    greeting: Greeting,
    /// The value for `session_track_system_variables`.
    track: Arc<str>,
    /// The value that sessions begin with.
    tracked_by_default: Arc<str>,
    /// The variables that sessions have a basis for.
    begins: Arc<Begins>,
    /// The node's name where it is one of a Galera cluster.
    galera: Option<Box<str>>,
    /// It is one of Amazon Aurora's: a cluster's servers have their files in common.
    shares_storage: bool,
    /// What is asked once was asked.
    known: bool,
    /// What asks for changes of accounts and global variables; empty before that is known.
    looking: Vec<String>,
    /// The account may not list the replicas, as the server said.
    pub(crate) blind_to_replicas: Option<String>,
}

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
            // 1047: a Galera node that is not ready. 3032: MySQL's offline_mode, which ends and refuses
            // the connections of all but administrators: to us it is gone.
            1047 | 1053 | 3032 => Cause::ShuttingDown,
            _ => Cause::Denied,
        },
        BackendError::Protocol(_) | BackendError::Tls(_) | BackendError::Limit(_) => {
            Cause::Protocol
        }
    }
}

async fn connect(
    id: ServerId,
    address: &Address,
    options: &MonitorOptions,
    network: &SharedNetwork,
) -> Result<(Conn, Greeting), BackendError> {
    let login = Login {
        user: options.user.as_bytes(),
        password: &options.password,
        database: None,
        collation: 45,
        capabilities: millrace_protocol::Capabilities::DEPRECATE_EOF,
        tls: false,
        whose: For::Own,
    };
    let opened = open(address, &login, network, options.connect_timeout)
        .await
        .map_err(|error| match error {
            BackendError::Timeout(_) => BackendError::Timeout("monitor.connect_timeout"),
            error => error,
        })?;
    let greeting = opened.greeting.clone();
    let mut conn = Conn::new(opened, id, greeting.family(), None);
    conn.at = address.at;
    Ok((conn, greeting))
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
        at: followed.conn.at,
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
        blind_to_replicas: None,
    })
}

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

fn begins_sessions(name: &str) -> bool {
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
        let question = user_rows::question(server.family, name.user, charset.as_deref());
        conn.query(&question).await
    };
    match tokio::time::timeout(timeout, asking).await {
        Ok(Ok(rows)) => Ok(Some(UserRows::read(rows))),
        // 1142, 1143: SELECT was not granted; 1044: nothing in that database was; 1146: MariaDB before 10.4.
        Ok(Err(BackendError::Server(error))) if matches!(error.code, 1044 | 1142 | 1143 | 1146) => {
            Ok(None)
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Err(BackendError::Timeout("monitor.timeout")),
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

/// How many accounts may have become others' since the server was started, from its counts of statements.
/// MariaDB's CREATE OR REPLACE USER counts as a change of the account: it is counted with those that only make one.
fn drops(rows: &[Row]) -> u64 {
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

/// The rows; none where the server answers with an error.
async fn unless_refused(conn: &mut Conn, question: &str) -> Result<Vec<Row>, BackendError> {
    match conn.query(question).await {
        Err(BackendError::Server(_)) => Ok(Vec::new()),
        answer => answer,
    }
}

/// The node's name where the server is one of a Galera cluster. From then on it answers the monitor
/// also while it has no majority, and at once.
async fn galera_name(conn: &mut Conn) -> Result<Option<Box<str>>, BackendError> {
    if conn.family == Family::MySql {
        return Ok(None);
    }
    let rows = conn
        .query("SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wsrep_on', 'wsrep_node_name')")
        .await?;
    let value = |name: &str| {
        let row = rows.iter().find(|row| text(row.first()) == name);
        text(row.and_then(|row| row.get(1)))
    };
    if !is_on(&value("wsrep_on")) {
        return Ok(None);
    }
    conn.query("SET SESSION wsrep_dirty_reads = ON, SESSION wsrep_sync_wait = 0")
        .await?;
    Ok(Some(value("wsrep_node_name").into()))
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

fn text(cell: Option<&Option<Vec<u8>>>) -> String {
    match cell {
        Some(Some(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    }
}

fn is_on(value: &str) -> bool {
    !matches!(value, "" | "0" | "OFF" | "off")
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
             @@GLOBAL.gtid_executed, @@GLOBAL.max_connections, @@GLOBAL.sql_mode, \
             @@lower_case_table_names, CONCAT_WS(' ', @@hostname, @@port, @@datadir), \
             @@GLOBAL.log_bin, @@innodb_read_only, @@GLOBAL.transaction_read_only, \
             @@GLOBAL.init_connect",
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
    report.log = !report.gtid && is_on(&at(12));
    report.innodb_read_only = is_on(&at(13));
    report.begins_read_only = is_on(&at(14)) || sets_read_only(&at(15));
    report.shares_storage = followed.shares_storage;
    report.executed = GtidSet::parse_mysql(at(7).as_bytes())
        .map_err(|_| BackendError::Protocol("gtid_executed is not understood"))?;
    report.max_connections = at(8).parse().unwrap_or(151);
    report.sql_mode = at(9).into();
    report.lower_case_table_names = at(10).parse().unwrap_or(0);
    report.identity = at(11).into();
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
             @@GLOBAL.gtid_current_pos, @@GLOBAL.max_connections, @@GLOBAL.sql_mode, \
             @@lower_case_table_names, CONCAT_WS(' ', @@hostname, @@port, @@datadir), \
             @@innodb_read_only, @@GLOBAL.tx_read_only, @@GLOBAL.init_connect",
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
    report.executed = GtidSet::parse_mariadb(at(4).as_bytes())
        .map_err(|_| BackendError::Protocol("gtid_current_pos is not understood"))?;
    report.max_connections = at(5).parse().unwrap_or(151);
    report.sql_mode = at(6).into();
    report.lower_case_table_names = at(7).parse().unwrap_or(0);
    report.identity = at(8).into();
    report.innodb_read_only = is_on(&at(9));
    report.begins_read_only = is_on(&at(10)) || sets_read_only(&at(11));
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

/// What the server sees of its group, where it is in one.
async fn group(conn: &mut Conn, report: &mut ProbeReport) -> Result<(), BackendError> {
    const MEMBERS: &str = "SELECT MEMBER_ID, MEMBER_HOST, MEMBER_PORT, MEMBER_STATE, \
         MEMBER_ROLE, (SELECT VIEW_ID FROM performance_schema.replication_group_member_stats \
         WHERE MEMBER_ID = @@server_uuid LIMIT 1) \
         FROM performance_schema.replication_group_members WHERE MEMBER_ID <> ''";
    if report.version_number < 80_002 {
        return Ok(());
    }
    let rows = match conn.query(MEMBERS).await {
        Ok(rows) => rows,
        // Without the privilege, or where the performance schema was left out. A member that is taken
        // for an asynchronous server would be judged wrongly.
        Err(BackendError::Server(error)) => {
            const PLUGIN: &str = "SELECT PLUGIN_STATUS FROM information_schema.PLUGINS \
                 WHERE PLUGIN_NAME = 'group_replication'";
            let rows = unless_refused(conn, PLUGIN).await?;
            let status = text(rows.first().and_then(|row| row.first()));
            return match status.as_str() {
                "ACTIVE" => Err(BackendError::Server(error)),
                _ => Ok(()),
            };
        }
        Err(error) => return Err(error),
    };
    let Some(first) = rows.first() else {
        return Ok(());
    };
    let (made, number) = view_id(&text(first.get(5)));
    let mut view = GroupView {
        made,
        number,
        members: Vec::new(),
    };
    for row in &rows {
        let at = |index: usize| text(row.get(index));
        let uuid: Box<str> = at(0).into();
        view.members.push(Member {
            uuid: uuid.clone(),
            state: member_state(&at(3)),
            primary: at(4) == "PRIMARY",
        });
        let port = at(2).parse().unwrap_or(0);
        if uuid != report.server_uuid
            && let Some(address) = named_address(&at(1), port)
        {
            report.peers.push(Peer {
                address,
                uuid,
                server_id: 0,
                relation: Relation::Member,
            });
        }
    }
    report.group = Some(view);
    Ok(())
}

/// `VIEW_ID`: made:number.
fn view_id(text: &str) -> (u64, u64) {
    let (made, number) = text.split_once(':').unwrap_or((text, ""));
    (made.parse().unwrap_or(0), number.parse().unwrap_or(0))
}

fn member_state(text: &str) -> MemberState {
    match text {
        "ONLINE" => MemberState::Online,
        "RECOVERING" => MemberState::Recovering,
        "UNREACHABLE" => MemberState::Unreachable,
        "ERROR" => MemberState::Error,
        _ => MemberState::Offline,
    }
}

/// What a Galera node sees of its cluster. Its positions are not used: a node counts a transaction as
/// executed before it shows it (gtid_binlog_pos), or not at all (gtid_current_pos, observed on
/// 10.11), and no wait for a position works there.
async fn galera(
    conn: &mut Conn,
    report: &mut ProbeReport,
    name: Box<str>,
) -> Result<(), BackendError> {
    const STATUS: &str = "SHOW GLOBAL STATUS WHERE Variable_name IN ('wsrep_cluster_state_uuid', \
         'wsrep_cluster_status', 'wsrep_ready', 'wsrep_local_state', 'wsrep_cluster_size', \
         'wsrep_incoming_addresses', 'wsrep_local_index')";
    let rows = conn.query(STATUS).await?;
    let value = |name: &str| {
        let row = rows.iter().find(|row| text(row.first()) == name);
        text(row.and_then(|row| row.get(1)))
    };
    let state = match value("wsrep_local_state").as_str() {
        "4" => GaleraState::Synced,
        "3" => GaleraState::Joined,
        "2" => GaleraState::Donor,
        _ => GaleraState::Joining,
    };
    let own: usize = value("wsrep_local_index").parse().unwrap_or(usize::MAX);
    let incoming = value("wsrep_incoming_addresses");
    let named = incoming.split(',').enumerate();
    let others = named.filter(|(at, address)| *at != own && is_address(address));
    report.peers.extend(others.map(|(_, address)| Peer {
        address: address.trim().into(),
        uuid: "".into(),
        server_id: 0,
        relation: Relation::Member,
    }));
    report.galera = Some(GaleraNode {
        cluster: value("wsrep_cluster_state_uuid").into(),
        name,
        primary_component: value("wsrep_cluster_status") == "Primary",
        ready: is_on(&value("wsrep_ready")),
        state,
        size: value("wsrep_cluster_size").parse().unwrap_or(0),
    });
    report.gtid = false;
    report.executed = GtidSet::new(Family::MariaDb);
    Ok(())
}

/// A node may name none: empty, `AUTO`, or port 0.
fn is_address(text: &str) -> bool {
    let port = text.trim().rsplit_once(':').map(|(_, port)| port.parse());
    matches!(port, Some(Ok(1..=u16::MAX)))
}

/// `host:port`; none where the server does not say both.
fn named_address(host: &str, port: u16) -> Option<Box<str>> {
    if host.is_empty() || port == 0 {
        return None;
    }
    let host = host.to_owned();
    Some(Address::new(host, port).to_string().into())
}

/// The servers that it replicates from.
fn sources(channels: Option<&Rows>) -> Vec<Peer> {
    let Some(rows) = channels else {
        return Vec::new();
    };
    let columns = Columns(rows);
    let peers = rows.rows.iter().filter_map(|row| {
        let at = |names: [&str; 2]| text(columns.find(names).and_then(|at| row.get(at)));
        if is_groups_own(&at(["Channel_Name", "Channel_Name"])) {
            return None;
        }
        let port = at(["Source_Port", "Master_Port"]).parse().unwrap_or(0);
        Some(Peer {
            address: named_address(&at(["Source_Host", "Master_Host"]), port)?,
            uuid: at(["Source_UUID", "Master_UUID"]).into(),
            server_id: at(["Source_Server_Id", "Master_Server_Id"])
                .parse()
                .unwrap_or(0),
            relation: Relation::Source,
        })
    });
    peers.collect()
}

/// Group Replication's own channels say nothing about asynchronous replication.
fn is_groups_own(channel: &str) -> bool {
    channel.starts_with("group_replication_")
}

/// The servers that replicate from it. An account that may not ask for them is told of once.
async fn replicas(
    followed: &mut Followed,
    report: &mut ProbeReport,
    statement: &str,
) -> Result<(), BackendError> {
    if followed.blind_to_replicas.is_some() {
        return Ok(());
    }
    let rows = match followed.conn.query_named(statement).await {
        Ok(rows) => rows,
        Err(BackendError::Server(error)) => {
            followed.blind_to_replicas = Some(error.to_string());
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let Some(rows) = rows else {
        return Ok(());
    };
    let columns = Columns(&rows);
    let hosts = hosts(followed, &rows).await?;
    for row in &rows.rows {
        let at = |names: [&str; 2]| text(columns.find(names).and_then(|at| row.get(at)));
        let uuid = at(["Replica_UUID", "Slave_UUID"]);
        let mut host = at(["Host", "Host"]);
        if host.is_empty() {
            let known = hosts.iter().find(|(of, _)| *of == uuid);
            host = known.map(|(_, host)| host.clone()).unwrap_or_default();
        }
        let port = at(["Port", "Port"]).parse().unwrap_or(0);
        if let Some(address) = named_address(&host, port) {
            report.peers.push(Peer {
                address,
                uuid: uuid.into(),
                server_id: at(["Server_Id", "Server_id"]).parse().unwrap_or(0),
                relation: Relation::Replica,
            });
        }
    }
    report.replicas_attached = u32::try_from(rows.rows.len()).ok();
    Ok(())
}

/// Where MySQL's replicas without report_host connect from, by their server_uuid: the threads that
/// send them the binary log know both.
async fn hosts(
    followed: &mut Followed,
    replicas: &Rows,
) -> Result<Vec<(String, String)>, BackendError> {
    const THREADS: &str = "SELECT v.VARIABLE_VALUE, t.PROCESSLIST_HOST \
         FROM performance_schema.user_variables_by_thread v \
         JOIN performance_schema.threads t USING (THREAD_ID) \
         WHERE v.VARIABLE_NAME IN ('replica_uuid', 'slave_uuid')";
    let columns = Columns(replicas);
    let host = columns.find(["Host", "Host"]);
    let nameless = |row: &Row| text(host.and_then(|at| row.get(at))).is_empty();
    let mysql = followed.conn.family == Family::MySql;
    if !mysql || !replicas.rows.iter().any(nameless) {
        return Ok(Vec::new());
    }
    match followed.conn.query(THREADS).await {
        Ok(rows) => Ok(rows
            .iter()
            .map(|row| (text(row.first()), text(row.get(1))))
            .collect()),
        Err(BackendError::Server(_)) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Columns by either family's name.
struct Columns<'a>(&'a Rows);

impl Columns<'_> {
    fn find(&self, names: [&str; 2]) -> Option<usize> {
        self.0.columns.iter().position(|column| {
            names
                .iter()
                .any(|name| column.name.eq_ignore_ascii_case(name.as_bytes()))
        })
    }
}

/// The worst of a server's channels; none where it has none.
fn replication(rows: Option<Rows>) -> Option<ReplicationStatus> {
    let rows = rows?;
    let columns = Columns(&rows);
    let column = |names| columns.find(names);
    let host = column(["Source_Host", "Master_Host"]);
    let port = column(["Source_Port", "Master_Port"]);
    let uuid = column(["Source_UUID", "Master_UUID"]);
    let source_id = column(["Source_Server_Id", "Master_Server_Id"]);
    let channel = column(["Channel_Name", "Channel_Name"]);
    let receiver = column(["Replica_IO_Running", "Slave_IO_Running"]);
    let applier = column(["Replica_SQL_Running", "Slave_SQL_Running"]);
    let lag = column(["Seconds_Behind_Source", "Seconds_Behind_Master"]);
    let sql_error = column(["Last_SQL_Error", "Last_SQL_Error"]);
    let io_error = column(["Last_IO_Error", "Last_IO_Error"]);
    rows.rows
        .iter()
        .filter(|row| !is_groups_own(&text(channel.and_then(|at| row.get(at)))))
        .map(|row| {
            let at = |index: Option<usize>| text(index.and_then(|index| row.get(index)));
            let mut last_error = at(sql_error);
            if last_error.is_empty() {
                last_error = at(io_error);
            }
            ReplicationStatus {
                source_host: at(host).into(),
                source_port: at(port).parse().unwrap_or(0),
                source_uuid: at(uuid).into(),
                source_server_id: at(source_id).parse().unwrap_or(0),
                receiver: match at(receiver).as_str() {
                    "Yes" => Receiver::Running,
                    "Connecting" | "Preparing" => Receiver::Connecting,
                    _ => Receiver::Stopped,
                },
                applier_running: at(applier) == "Yes",
                lag_seconds: at(lag).parse().ok(),
                last_error: last_error.into(),
            }
        })
        .max_by_key(|status| {
            (
                !status.applier_running,
                status.receiver == Receiver::Stopped,
                status.receiver == Receiver::Connecting,
                status.lag_seconds.unwrap_or(0),
            )
        })
}

/// What a server says of its position.
pub(crate) struct Told {
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
) -> Result<Told, BackendError> {
    let mut conn = match slot.take() {
        Some(conn) if conn.at == facts.address.at => conn,
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

fn parsed(family: Family, answer: &str) -> Result<GtidSet, BackendError> {
    GtidSet::parse(family, answer.as_bytes())
        .map_err(|_| BackendError::Protocol("a server's position is not understood"))
}

/// A transaction owns its GTID until that is counted as executed, and is visible before: so who owns
/// one is asked first, lest it be counted between the two questions. Whether it takes writes comes
/// after both: as long as it does nobody else does.
async fn position_mysql(conn: &mut Conn) -> Result<Told, BackendError> {
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
    Ok(Told {
        executed,
        visible,
        read_only: is_on(&at(1)),
    })
}

/// A transaction is in the binary log before it is visible. Whether the server takes writes comes after, as
/// for GTIDs.
async fn own_log(conn: &mut Conn, version: u32) -> Result<Told, BackendError> {
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
    Ok(Told {
        executed: position.clone(),
        visible: position,
        read_only: is_on(&of(&rows, 1)),
    })
}

/// What a replica has applied, and what it has received: what lies between may be visible. With several
/// channels nobody can tell which of them a wait is about.
async fn sources_log(conn: &mut Conn, version: u32) -> Result<Told, BackendError> {
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
    Ok(Told {
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
fn without_owners(owned: &str) -> String {
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
async fn position_mariadb(conn: &mut Conn) -> Result<Told, BackendError> {
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
    Ok(Told {
        executed,
        visible,
        read_only: is_on(&at(2)),
    })
}

/// Reads the stored routines, views and triggers.
pub(crate) async fn read_catalogue(
    slot: &mut Option<Conn>,
    facts: &ServerFacts,
    options: &MonitorOptions,
    network: &SharedNetwork,
) -> Result<CatalogueRows, BackendError> {
    let mut conn = match slot.take() {
        Some(conn) if conn.server == facts.id && conn.at == facts.address.at => conn,
        _ => connect(facts.id, &facts.address, options, network).await?.0,
    };
    let mut rows = [const { Vec::new() }; 3];
    let family = conn.family;
    for (query, rows) in (options.catalogue_queries)(family).iter().zip(&mut rows) {
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

    #[test]
    fn a_server_in_offline_mode_is_not_there() {
        use crate::error::ServerError;
        let said = |code| cause(&BackendError::Server(ServerError::new(code, b"HY000", "")));
        assert_eq!(said(3032), Cause::ShuttingDown);
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

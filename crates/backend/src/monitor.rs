//! Asks each server about once a second what it is and where it stands, and publishes what
//! follows from the answers. Writes nothing to the servers and never blocks a worker.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_protocol::handshake::Greeting;
use millrace_protocol::resultset::Rows;
use millrace_topology::{
    Cause, ChangeEvent, Family, GtidSet, Millis, Observation, ObservationKind, Options,
    ProbeReport, Receiver, ReplicationStatus, ServerId, ServerSpec, Snapshot, Topology,
};
use tokio::sync::{Notify, watch};
use tracing::{debug, info, warn};

use crate::conn::{Conn, Row};
use crate::connect::{Address, Login, SharedTls, dial, open};
use crate::error::BackendError;
use crate::pool::ServerFacts;
use crate::positions::{Position, Positions};
use crate::secret::Secret;

/// How the servers are asked.
#[derive(Debug, Clone)]
pub struct MonitorOptions {
    /// The account; it needs the privilege to see the replication's status.
    pub user: String,
    /// Its password.
    pub password: Secret,
    /// Time between two questions to a server.
    pub interval: Duration,
    /// How long one question may take, connecting included.
    pub timeout: Duration,
    /// The least time between two questions to a server how far it is.
    pub position_interval: Duration,
    /// How often the stored routines and views are read again.
    pub catalogue_interval: Duration,
    /// What reads them.
    pub catalogue_queries: CatalogueQueries,
    /// How servers are judged.
    pub topology: Options,
}

/// The statements that read a family's stored routines, views and triggers, in this order.
pub type CatalogueQueries = fn(Family) -> [&'static str; 3];

/// The rows of the three [`CatalogueQueries`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CatalogueRows {
    /// Whose they are; none before they were read.
    pub family: Option<Family>,
    /// In the order of the queries.
    pub rows: [Vec<Row>; 3],
}

/// Everything known of the servers at one moment.
#[derive(Debug, Clone)]
pub struct World {
    /// Roles, health, positions.
    pub snapshot: Arc<Snapshot>,
    /// What is needed to connect, per server; the family is a guess before the first answer.
    pub facts: Vec<Arc<ServerFacts>>,
    /// What clients are to be greeted with; the primary's own greeting.
    pub greeting: Option<Arc<Greeting>>,
    /// Stored routines and views.
    pub catalogue: Arc<CatalogueRows>,
}

/// The monitor's side that others hold.
#[derive(Debug)]
pub struct Monitor {
    topology: Mutex<Topology>,
    world: watch::Sender<Arc<World>>,
    nudges: Vec<Notify>,
    stale_catalogue: Notify,
    positions: Arc<Positions>,
    origin: Instant,
}

/// A server's connection for probes, what it greeted with, and the value for
/// `session_track_system_variables`.
type Followed = (Conn, Greeting, Arc<str>);

/// What a probe learnt besides the report.
struct Probed {
    report: ProbeReport,
    greeting: Greeting,
    track: Arc<str>,
}

impl Monitor {
    /// Prepares to watch `servers`; asks nothing yet.
    pub fn new(
        options: &MonitorOptions,
        servers: Vec<ServerSpec>,
        addresses: &[Address],
    ) -> Arc<Monitor> {
        let topology = Topology::new(options.topology.clone(), servers);
        let facts = (0..)
            .map(ServerId)
            .zip(addresses)
            .map(|(id, address)| {
                Arc::new(ServerFacts {
                    id,
                    address: address.clone(),
                    family: millrace_sql::Family::MySql,
                    track: "*".into(),
                })
            })
            .collect();
        let world = World {
            snapshot: topology.snapshot(),
            facts,
            greeting: None,
            catalogue: Arc::default(),
        };
        Arc::new(Monitor {
            topology: Mutex::new(topology),
            world: watch::channel(Arc::new(world)).0,
            nudges: addresses.iter().map(|_| Notify::new()).collect(),
            stale_catalogue: Notify::new(),
            positions: Arc::new(Positions::new(addresses.len())),
            origin: Instant::now(),
        })
    }

    /// The world now and whenever it changes.
    pub fn watch(&self) -> watch::Receiver<Arc<World>> {
        self.world.subscribe()
    }

    /// How far the servers are, for those who need to know it more often than servers are probed.
    pub fn positions(&self) -> &Arc<Positions> {
        &self.positions
    }

    /// A session met an error on a server: it is taken into account, and the server is asked at
    /// once.
    pub fn observe(&self, server: ServerId, kind: ObservationKind) {
        self.fold(server, kind, |_| {});
        if let Some(nudge) = self.nudges.get(server.index()) {
            nudge.notify_one();
        }
    }

    /// Stored routines or views may have changed: they are read again soon.
    pub fn catalogue_changed(&self) {
        self.stale_catalogue.notify_one();
    }

    fn now(&self) -> Millis {
        Millis(u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn fold(&self, server: ServerId, kind: ObservationKind, with: impl FnOnce(&mut World)) {
        let at = self.now();
        let mut topology = self.topology.lock().unwrap_or_else(PoisonError::into_inner);
        let events = topology.fold(Observation { server, at, kind });
        let snapshot = topology.snapshot();
        // Published under the lock, so that the newest snapshot is published last.
        self.world.send_modify(|world| {
            let mut next = World::clone(world);
            next.snapshot = snapshot.clone();
            with(&mut next);
            *world = Arc::new(next);
        });
        drop(topology);
        for event in &events {
            log(event, &snapshot);
        }
    }

    /// Watches until the process ends: one task per server, and one for the catalogue. To be
    /// called on a current-thread runtime that allows local tasks.
    pub async fn run(self: Arc<Self>, options: Arc<MonitorOptions>, tls: SharedTls) {
        let servers = self.nudges.len();
        for index in 0..servers {
            let id = ServerId(u16::try_from(index).unwrap_or(u16::MAX));
            tokio::task::spawn_local(self.clone().watch_server(id, options.clone(), tls.clone()));
            if !options.user.is_empty() {
                let following = self
                    .clone()
                    .follow_position(id, options.clone(), tls.clone());
                tokio::task::spawn_local(following);
            }
        }
        self.watch_catalogue(options, tls).await;
    }

    async fn watch_server(
        self: Arc<Self>,
        id: ServerId,
        options: Arc<MonitorOptions>,
        tls: SharedTls,
    ) {
        let mut conn: Option<Followed> = None;
        // The last failure, so that it is logged once.
        let mut complaint = None;
        loop {
            let started = Instant::now();
            let address = self.world.borrow().facts[id.index()].address.clone();
            let probing = probe(&mut conn, id, &address, &options, &tls);
            let outcome = match tokio::time::timeout(options.timeout, probing).await {
                Ok(outcome) => outcome,
                Err(_) => Err(BackendError::Timeout("monitor.timeout")),
            };
            match outcome {
                Ok(mut probed) => {
                    let elapsed = started.elapsed().as_micros();
                    probed.report.round_trip_us = u32::try_from(elapsed).unwrap_or(u32::MAX);
                    complaint = None;
                    self.accept(id, &address, probed);
                }
                Err(error) => {
                    conn = None;
                    let text = error.to_string();
                    if complaint.as_ref() != Some(&text) {
                        warn!(server = %address, error = %text, "cannot be asked");
                        complaint = Some(text);
                    }
                    let kind = ObservationKind::ProbeFailed {
                        cause: cause(&error),
                        text: error.to_string().into(),
                    };
                    self.fold(id, kind, |_| {});
                }
            }
            let pause = tokio::time::sleep(options.interval.saturating_sub(started.elapsed()));
            tokio::select! {
                () = pause => {}
                () = self.nudges[id.index()].notified() => {
                    // A burst of errors is one reason to ask, not many.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    /// Asks the server how far it is whenever somebody needs to know, on a connection of its own:
    /// a probe may take longer.
    async fn follow_position(
        self: Arc<Self>,
        id: ServerId,
        options: Arc<MonitorOptions>,
        tls: SharedTls,
    ) {
        let mut conn = None;
        loop {
            self.positions.called(id).await;
            let (facts, incarnation) = {
                let world = self.world.borrow();
                let view = world.snapshot.server(id);
                let usable = view.filter(|view| view.health.is_usable() && view.gtid);
                (
                    world.facts[id.index()].clone(),
                    usable.map(|view| view.incarnation),
                )
            };
            if let Some(incarnation) = incarnation {
                let number = self.positions.begin(id);
                let asking = ask_position(&mut conn, &facts, &options, &tls);
                match tokio::time::timeout(options.timeout, asking).await {
                    Ok(Ok(told)) => {
                        let position = Position {
                            number,
                            executed: Arc::new(told.executed),
                            visible: Arc::new(told.visible),
                            read_only: told.read_only,
                            incarnation,
                        };
                        self.positions.answer(id, position);
                    }
                    // What is wrong with the server, the probe finds out and says.
                    _ => conn = None,
                }
            }
            tokio::select! {
                () = tokio::time::sleep(options.position_interval) => {}
                () = self.positions.urged(id) => {}
            }
        }
    }

    fn accept(&self, id: ServerId, address: &Address, probed: Probed) {
        let family = match probed.report.family {
            Family::MySql => millrace_sql::Family::MySql,
            Family::MariaDb => millrace_sql::Family::MariaDb,
        };
        let facts = ServerFacts {
            id,
            address: address.clone(),
            family,
            track: probed.track,
        };
        let greeting = probed.greeting;
        self.fold(
            id,
            ObservationKind::ProbeOk(Box::new(probed.report)),
            move |world| {
                let old = &world.facts[id.index()];
                if old.family != facts.family || old.track != facts.track {
                    world.facts[id.index()] = Arc::new(facts);
                }
                let first = world.greeting.is_none();
                if first || world.snapshot.primary == Some(id) {
                    world.greeting = Some(Arc::new(greeting));
                }
            },
        );
    }

    async fn watch_catalogue(self: Arc<Self>, options: Arc<MonitorOptions>, tls: SharedTls) {
        let mut conn = None;
        let mut complained = false;
        loop {
            let world = self.world.borrow().clone();
            let mut pause = options.catalogue_interval;
            if let Some(primary) = world.snapshot.primary.filter(|_| !options.user.is_empty()) {
                let facts = world.facts[primary.index()].clone();
                let reading = read_catalogue(&mut conn, &facts, &options, &tls);
                match tokio::time::timeout(options.timeout.max(Duration::from_secs(5)), reading)
                    .await
                {
                    Ok(Ok(catalogue)) => {
                        complained = false;
                        self.publish_catalogue(catalogue);
                    }
                    failed => {
                        conn = None;
                        let error = match failed {
                            Ok(Err(error)) => error.to_string(),
                            _ => "no answer in time".to_owned(),
                        };
                        if !std::mem::replace(&mut complained, true) {
                            warn!(%error, "stored routines and views cannot be read: calls of stored functions go to the primary");
                        }
                    }
                }
            } else {
                pause = options.interval;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stale_catalogue.notified() => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn publish_catalogue(&self, catalogue: CatalogueRows) {
        let _topology = self.topology.lock().unwrap_or_else(PoisonError::into_inner);
        self.world.send_if_modified(|world| {
            if *world.catalogue == catalogue {
                return false;
            }
            let mut next = World::clone(world);
            next.catalogue = Arc::new(catalogue);
            *world = Arc::new(next);
            true
        });
    }
}

fn log(event: &ChangeEvent, snapshot: &Snapshot) {
    let name = |id: ServerId| {
        snapshot
            .server(id)
            .map_or_else(|| id.to_string(), |view| view.address.to_string())
    };
    match event {
        ChangeEvent::Health { server, .. }
        | ChangeEvent::Role { server, .. }
        | ChangeEvent::Fitness { server, .. }
        | ChangeEvent::Identity { server } => {
            info!(server = %name(*server), "{event}");
        }
        ChangeEvent::Suspected { server } => debug!(server = %name(*server), "{event}"),
        ChangeEvent::Primary { to: Some(to), .. } => info!(server = %name(*to), "{event}"),
        ChangeEvent::Primary { to: None, .. } => warn!("{event}"),
        ChangeEvent::Conflict { servers } => {
            let names: Vec<_> = servers.iter().map(|id| name(*id)).collect();
            warn!(servers = names.join(", "), "{event}");
        }
    }
}

/// In which way a probe failed.
fn cause(error: &BackendError) -> Cause {
    match error {
        BackendError::Io(error) => match error.kind() {
            std::io::ErrorKind::ConnectionRefused => Cause::Refused,
            std::io::ErrorKind::TimedOut => Cause::TimedOut,
            _ if error.to_string().contains("failed to lookup") => Cause::Resolve,
            _ => Cause::Lost,
        },
        BackendError::Timeout(_) => Cause::TimedOut,
        BackendError::Server(error) => match error.code {
            1040 | 1203 | 1226 => Cause::Busy,
            1053 => Cause::ShuttingDown,
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
    tls: &SharedTls,
) -> Result<(Conn, Greeting), BackendError> {
    let login = Login {
        user: options.user.as_bytes(),
        password: &options.password,
        database: None,
        collation: 45,
        capabilities: millrace_protocol::Capabilities::DEPRECATE_EOF,
        tls: false,
    };
    let opened = open(address, &login, tls, options.timeout).await?;
    let greeting = opened.greeting.clone();
    let family = match greeting.family() {
        millrace_protocol::handshake::Family::MySql => millrace_sql::Family::MySql,
        millrace_protocol::handshake::Family::MariaDb => millrace_sql::Family::MariaDb,
    };
    Ok((Conn::new(opened, id, family, None), greeting))
}

async fn probe(
    slot: &mut Option<Followed>,
    id: ServerId,
    address: &Address,
    options: &MonitorOptions,
    tls: &SharedTls,
) -> Result<Probed, BackendError> {
    if options.user.is_empty() {
        return greet(address, options).await;
    }
    if slot.is_none() {
        let (mut conn, greeting) = connect(id, address, options, tls).await?;
        let track = trackable(&mut conn).await?;
        *slot = Some((conn, greeting, track));
    }
    let Some((conn, greeting, track)) = slot else {
        return Err(BackendError::Protocol("no connection"));
    };
    let mut report = match conn.family {
        millrace_sql::Family::MySql => report_mysql(conn).await?,
        millrace_sql::Family::MariaDb => report_mariadb(conn).await?,
    };
    let rows = conn
        .query("SHOW GLOBAL STATUS LIKE 'Threads_running'")
        .await?;
    let running = text(rows.first().and_then(|row| row.get(1)));
    report.threads_running = running.parse().unwrap_or(0);
    Ok(Probed {
        report,
        greeting: greeting.clone(),
        track: track.clone(),
    })
}

/// Without an account only the greeting can be had: enough for a single server, or for fixed
/// roles. Positions are then not known.
async fn greet(address: &Address, options: &MonitorOptions) -> Result<Probed, BackendError> {
    let (mut stream, greeting, _) = dial(address, options.timeout).await?;
    let family = match greeting.family() {
        millrace_protocol::handshake::Family::MySql => Family::MySql,
        millrace_protocol::handshake::Family::MariaDb => Family::MariaDb,
    };
    let version = greeting
        .server_version
        .trim_start_matches("5.5.5-")
        .to_owned();
    let mut report = ProbeReport::new(family);
    report.version_number = version_number(&version);
    report.version = version.into();
    report.gtid = false;
    // The server counts a connection that breaks off in its login; it is told that we leave.
    let _ = stream.send(&[1, 0, 0, 1, 1]).await;
    Ok(Probed {
        report,
        greeting,
        track: "*".into(),
    })
}

/// The value for `session_track_system_variables`. MySQL's `*` would add its `statement_id` to
/// every answer, so all other names are listed there (observed on 9.7).
async fn trackable(conn: &mut Conn) -> Result<Arc<str>, BackendError> {
    if conn.family == millrace_sql::Family::MariaDb {
        return Ok("*".into());
    }
    let rows = conn.query("SHOW SESSION VARIABLES").await?;
    let names: Vec<String> = rows
        .into_iter()
        .filter_map(|row| String::from_utf8(row.into_iter().next()??).ok())
        .filter(|name| name != "statement_id" && !name.contains('\''))
        .collect();
    Ok(names.join(",").into())
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

/// `9.7.4`, `10.11.19-MariaDB-log` as `major * 10000 + minor * 100 + patch`.
pub fn version_number(version: &str) -> u32 {
    let mut parts = version
        .split(|c: char| !c.is_ascii_digit())
        .map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0).min(99);
    next() * 10_000 + next() * 100 + next()
}

async fn report_mysql(conn: &mut Conn) -> Result<ProbeReport, BackendError> {
    let rows = conn
        .query(
            "SELECT @@version, @@server_uuid, @@server_id, @@GLOBAL.read_only, \
             @@GLOBAL.super_read_only, @@GLOBAL.offline_mode, @@GLOBAL.gtid_mode, \
             @@GLOBAL.gtid_executed, @@GLOBAL.max_connections, @@GLOBAL.sql_mode, \
             @@lower_case_table_names",
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
    report.executed = GtidSet::parse_mysql(at(7).as_bytes())
        .map_err(|_| BackendError::Protocol("gtid_executed is not understood"))?;
    report.max_connections = at(8).parse().unwrap_or(151);
    report.sql_mode = at(9).into();
    report.lower_case_table_names = at(10).parse().unwrap_or(0);
    // 8.0.22 renamed the statement; 8.4 dropped the old one.
    let statement = if report.version_number >= 80_022 {
        "SHOW REPLICA STATUS"
    } else {
        "SHOW SLAVE STATUS"
    };
    report.replication = replication(conn.query_named(statement).await?);
    Ok(report)
}

async fn report_mariadb(conn: &mut Conn) -> Result<ProbeReport, BackendError> {
    let rows = conn
        .query(
            "SELECT @@version, @@server_id, @@GLOBAL.read_only, @@GLOBAL.log_bin, \
             @@GLOBAL.gtid_current_pos, @@GLOBAL.max_connections, @@GLOBAL.sql_mode, \
             @@lower_case_table_names",
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
    report.replication = replication(conn.query_named("SHOW ALL SLAVES STATUS").await?);
    // A replica takes positions from what it applied, with or without a binary log.
    report.gtid |= report.replication.is_some();
    Ok(report)
}

/// The worst of a server's channels; none where it has none.
fn replication(rows: Option<Rows>) -> Option<ReplicationStatus> {
    let rows = rows?;
    let column = |names: [&str; 2]| {
        rows.columns.iter().position(|column| {
            names
                .iter()
                .any(|name| column.name.eq_ignore_ascii_case(name.as_bytes()))
        })
    };
    let host = column(["Source_Host", "Master_Host"]);
    let port = column(["Source_Port", "Master_Port"]);
    let uuid = column(["Source_UUID", "Master_UUID"]);
    let receiver = column(["Replica_IO_Running", "Slave_IO_Running"]);
    let applier = column(["Replica_SQL_Running", "Slave_SQL_Running"]);
    let lag = column(["Seconds_Behind_Source", "Seconds_Behind_Master"]);
    let sql_error = column(["Last_SQL_Error", "Last_SQL_Error"]);
    let io_error = column(["Last_IO_Error", "Last_IO_Error"]);
    rows.rows
        .iter()
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
struct Told {
    executed: GtidSet,
    /// What may be visible there.
    visible: GtidSet,
    read_only: bool,
}

async fn ask_position(
    slot: &mut Option<Conn>,
    facts: &ServerFacts,
    options: &MonitorOptions,
    tls: &SharedTls,
) -> Result<Told, BackendError> {
    let mut conn = match slot.take() {
        Some(conn) => conn,
        None => connect(facts.id, &facts.address, options, tls).await?.0,
    };
    let told = match conn.family {
        millrace_sql::Family::MySql => position_mysql(&mut conn).await?,
        millrace_sql::Family::MariaDb => position_mariadb(&mut conn).await?,
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
    let rows = conn.query("SELECT @@GLOBAL.gtid_owned").await?;
    let owned = text(rows.first().and_then(|row| row.first()));
    let rows = conn
        .query("SELECT @@GLOBAL.gtid_executed, @@GLOBAL.read_only")
        .await?;
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

async fn read_catalogue(
    slot: &mut Option<Conn>,
    facts: &ServerFacts,
    options: &MonitorOptions,
    tls: &SharedTls,
) -> Result<CatalogueRows, BackendError> {
    let mut conn = match slot.take() {
        Some(conn) if conn.server == facts.id => conn,
        _ => connect(facts.id, &facts.address, options, tls).await?.0,
    };
    let family = match conn.family {
        millrace_sql::Family::MySql => Family::MySql,
        millrace_sql::Family::MariaDb => Family::MariaDb,
    };
    let mut rows = [const { Vec::new() }; 3];
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
}

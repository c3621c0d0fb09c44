//! Clusters of real servers: they do what was asked for, and nothing is left of them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use millrace_sandbox::{
    Binaries, Cluster, ClusterSpec, Family, ProcessState, Role, ServerStatus, Topology,
    skip_unless, skip_unless_topology,
};

const SOON: Duration = Duration::from_secs(20);

fn spec(family: Family, replicas: usize) -> ClusterSpec {
    ClusterSpec {
        replicas,
        ..ClusterSpec::new(family)
    }
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// True when no process names the folder in its arguments and the folder is gone.
fn nothing_left(dir: &Path) -> bool {
    let names_it = |process: std::fs::DirEntry| {
        std::fs::read(process.path().join("cmdline"))
            .is_ok_and(|line| names(&String::from_utf8_lossy(&line), dir))
    };
    !dir.exists() && !std::fs::read_dir("/proc").unwrap().flatten().any(names_it)
}

/// Also as a part of an argument, but not as the start of another folder's name: that of
/// another test's cluster, the tenth, begins like that of the first.
fn names(line: &str, dir: &Path) -> bool {
    let dir = dir.to_str().unwrap();
    line.match_indices(dir).any(|(at, _)| {
        let next = line[at + dir.len()..].chars().next();
        !next.is_some_and(|next| next.is_alphanumeric() || "-_.".contains(next))
    })
}

#[test]
fn a_folder_is_told_from_one_that_begins_like_it() {
    let dir = Path::new("/tmp/sandbox-7-1");
    assert!(names(
        "mysqld\0--defaults-file=/tmp/sandbox-7-1/s1/my.cnf\0",
        dir
    ));
    assert!(names("sh\0/tmp/sandbox-7-1", dir) && names("/tmp/sandbox-7-1\0", dir));
    assert!(!names(
        "mysqld\0--defaults-file=/tmp/sandbox-7-10/s1/my.cnf\0",
        dir
    ));
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

async fn run(cluster: &Cluster, server: &str, sql: &str) {
    let mut control = cluster.control(server).await.unwrap();
    control.run(sql).await.unwrap();
    control.close().await;
}

async fn rows(cluster: &Cluster, server: &str) -> String {
    let mut control = cluster.control(server).await.unwrap();
    let rows = control
        .value("SELECT GROUP_CONCAT(a ORDER BY a) FROM app.t")
        .await
        .unwrap();
    control.close().await;
    rows.unwrap_or_default()
}

async fn wait_rows(cluster: &Cluster, server: &str, wanted: &str) {
    let deadline = Instant::now() + SOON;
    loop {
        let now = rows(cluster, server).await;
        if now == wanted {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{server} has {now}, not {wanted}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn status_of(cluster: &Cluster, server: &str) -> ServerStatus {
    let all = cluster.status().await;
    all.into_iter()
        .find(|status| status.name == server)
        .unwrap()
}

macro_rules! on_both_families {
    ($($test:ident),* $(,)?) => {
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let family = millrace_sandbox::Family::MariaDb;
                if super::skip_unless(family, stringify!($test)) { super::$test(family).await; }
            })*
        }
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let family = millrace_sandbox::Family::MySql;
                if super::skip_unless(family, stringify!($test)) { super::$test(family).await; }
            })*
        }
    };
}

on_both_families!(
    faults_and_recovery,
    promotion_with_and_without_the_old_primary,
    an_acknowledged_write_is_on_a_replica,
    a_full_disk_holds_the_server,
    dropping_leaves_nothing,
    a_failed_start_leaves_nothing,
    interrupted_leaves_nothing,
    interrupted_while_starting_leaves_nothing,
    killed_leaves_nothing,
    detached_and_taken_up_again,
    certificates_verify,
    accounts_can_do_what_they_are_for,
);

async fn faults_and_recovery(family: Family) {
    let cluster = Cluster::up(spec(family, 1)).await.unwrap();
    run(&cluster, "s1", "CREATE TABLE app.t (a INT PRIMARY KEY)").await;
    run(&cluster, "s1", "INSERT INTO app.t VALUES (1)").await;
    cluster.wait_replicas_caught_up(SOON).await.unwrap();
    assert_eq!(rows(&cluster, "s2").await, "1");
    let replica = status_of(&cluster, "s2").await;
    assert_eq!(
        (replica.read_only, replica.role),
        (Some(true), Role::Replica)
    );
    assert_eq!(status_of(&cluster, "s1").await.read_only, Some(false));

    // Killed and started, stopped and started: it catches up by itself.
    for (end, value) in [("kill", 2), ("stop", 3)] {
        match end {
            "kill" => cluster.kill("s2").await.unwrap(),
            _ => cluster.stop("s2").await.unwrap(),
        }
        assert_eq!(
            status_of(&cluster, "s2").await.process,
            ProcessState::Stopped
        );
        assert!(
            cluster
                .kill("s2")
                .await
                .unwrap_err()
                .to_string()
                .contains("does not run")
        );
        run(
            &cluster,
            "s1",
            &format!("INSERT INTO app.t VALUES ({value})"),
        )
        .await;
        cluster.start("s2").await.unwrap();
        assert!(
            cluster
                .start("s2")
                .await
                .unwrap_err()
                .to_string()
                .contains("runs already")
        );
        cluster.wait_replicas_caught_up(SOON).await.unwrap();
    }
    assert_eq!(rows(&cluster, "s2").await, "1,2,3");

    cluster.pause("s2").await.unwrap();
    assert_eq!(
        status_of(&cluster, "s2").await.process,
        ProcessState::Paused
    );
    cluster.resume("s2").await.unwrap();
    let resumed = status_of(&cluster, "s2").await;
    assert_eq!(
        (resumed.process, resumed.read_only),
        (ProcessState::Running, Some(true))
    );

    cluster.delay_applier("s2", 3600).await.unwrap();
    run(&cluster, "s1", "INSERT INTO app.t VALUES (4)").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(rows(&cluster, "s2").await, "1,2,3");
    let delayed = status_of(&cluster, "s2").await.replication.unwrap();
    assert_eq!((delayed.delay_s, delayed.applier), (3600, true));
    cluster.delay_applier("s2", 0).await.unwrap();
    wait_rows(&cluster, "s2", "1,2,3,4").await;

    cluster.stop_applier("s2").await.unwrap();
    run(&cluster, "s1", "INSERT INTO app.t VALUES (5)").await;
    let late = cluster
        .wait_replicas_caught_up(Duration::from_secs(1))
        .await;
    assert!(late.unwrap_err().to_string().contains("s2"));
    assert!(!status_of(&cluster, "s2").await.replication.unwrap().applier);
    cluster.start_applier("s2").await.unwrap();
    wait_rows(&cluster, "s2", "1,2,3,4,5").await;

    let unknown = cluster.kill("s9").await.unwrap_err().to_string();
    assert!(unknown.contains("s1, s2"), "{unknown}");
    let dir = cluster.dir();
    cluster.down().await.unwrap();
    assert!(nothing_left(&dir));
}

async fn promotion_with_and_without_the_old_primary(family: Family) {
    let cluster = Cluster::up(spec(family, 2)).await.unwrap();
    run(&cluster, "s1", "CREATE TABLE app.t (a INT PRIMARY KEY)").await;
    run(&cluster, "s1", "INSERT INTO app.t VALUES (1)").await;
    assert!(
        cluster
            .promote("s1")
            .await
            .unwrap_err()
            .to_string()
            .contains("is the primary")
    );

    // The old primary lives: it becomes a replica and no write is lost, delayed or not.
    cluster.delay_applier("s2", 3600).await.unwrap();
    run(&cluster, "s1", "INSERT INTO app.t VALUES (2)").await;
    cluster.promote("s2").await.unwrap();
    assert_eq!(rows(&cluster, "s2").await, "1,2");
    assert_eq!(cluster.primary().name, "s2");
    assert_eq!(status_of(&cluster, "s2").await.read_only, Some(false));
    assert_eq!(status_of(&cluster, "s1").await.read_only, Some(true));
    run(&cluster, "s2", "INSERT INTO app.t VALUES (3)").await;
    cluster.wait_replicas_caught_up(SOON).await.unwrap();
    assert_eq!(rows(&cluster, "s1").await, "1,2,3");
    assert_eq!(rows(&cluster, "s3").await, "1,2,3");

    // The old primary is dead: it comes back as a replica.
    cluster.kill("s2").await.unwrap();
    cluster.promote("s3").await.unwrap();
    run(&cluster, "s3", "INSERT INTO app.t VALUES (4)").await;
    cluster.start("s2").await.unwrap();
    cluster.wait_replicas_caught_up(SOON).await.unwrap();
    assert_eq!(rows(&cluster, "s1").await, "1,2,3,4");
    assert_eq!(rows(&cluster, "s2").await, "1,2,3,4");
    assert_eq!(status_of(&cluster, "s2").await.read_only, Some(true));

    // The old primary is paused: it counts as dead, and takes writes when it wakes.
    cluster.pause("s3").await.unwrap();
    cluster.promote("s1").await.unwrap();
    cluster.resume("s3").await.unwrap();
    assert_eq!(status_of(&cluster, "s1").await.read_only, Some(false));
    assert_eq!(status_of(&cluster, "s3").await.read_only, Some(false));
}

async fn value(cluster: &Cluster, server: &str, sql: &str) -> String {
    let mut control = cluster.control(server).await.unwrap();
    let value = control.value(sql).await.unwrap();
    control.close().await;
    value.unwrap_or_default()
}

/// Semi-synchronous: without a replica no write is acknowledged, and the one that was is where
/// the best replica is promoted; a former primary with a write of its own is rebuilt.
async fn an_acknowledged_write_is_on_a_replica(family: Family) {
    let mut semi = spec(family, 2);
    semi.semi_sync = true;
    let cluster = Cluster::up(semi).await.unwrap();
    run(&cluster, "s1", "CREATE TABLE app.t (a INT PRIMARY KEY)").await;
    run(&cluster, "s1", "INSERT INTO app.t VALUES (1)").await;
    for replica in ["s2", "s3"] {
        run(&cluster, replica, "STOP REPLICA IO_THREAD").await;
    }
    let mut control = cluster.control("s1").await.unwrap();
    let alone = control.run("INSERT INTO app.t VALUES (2)");
    let waited = tokio::time::timeout(Duration::from_secs(1), alone).await;
    assert!(waited.is_err(), "acknowledged without a replica");
    // The killed one has what nobody else has.
    cluster.kill("s1").await.unwrap();
    drop(control);
    let best = cluster.promote_best().await.unwrap();
    run(&cluster, &best, "INSERT INTO app.t VALUES (3)").await;
    assert_eq!(rows(&cluster, &best).await, "1,3");
    cluster.rebuild("s1").await.unwrap();
    cluster.wait_replicas_caught_up(SOON).await.unwrap();
    assert_eq!(rows(&cluster, "s1").await, "1,3");
}

async fn a_full_disk_holds_the_server(family: Family) {
    if !rustix::process::geteuid().is_root() {
        use std::io::Write;
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: a full disk on {family}: only root can mount a disk"
        );
        return;
    }
    let mut small = spec(family, 0);
    small.disk_mib = Some(400);
    let cluster = Cluster::up(small).await.unwrap();
    let dir = cluster.dir();
    run(&cluster, "s1", "CREATE TABLE app.t (a LONGBLOB)").await;
    cluster.fill_disk("s1").unwrap();
    assert_eq!(rows(&cluster, "s1").await, "");
    let mut control = cluster.control("s1").await.unwrap();
    let write = control.run("INSERT INTO app.t VALUES (REPEAT('x', 9000000))");
    let waited = tokio::time::timeout(Duration::from_secs(1), write).await;
    assert!(!matches!(waited, Ok(Ok(()))), "a write on a full disk");
    drop(control);
    cluster.free_disk("s1").unwrap();
    drop(cluster);
    assert!(nothing_left(&dir));
}

/// Group Replication elects, hands over, expels and takes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_elects_and_expels() {
    if !skip_unless_topology(Family::MySql, Topology::Group, "a_group_elects_and_expels") {
        return;
    }
    let mut group = spec(Family::MySql, 2);
    group.topology = Topology::Group;
    let cluster = Cluster::up(group).await.unwrap();
    let dir = cluster.dir();
    for status in cluster.status().await {
        let group = status.group.unwrap();
        assert!(group.is_online() && group.members == 3, "{group:?}");
        assert_eq!(group.primary.as_deref(), Some("s1"));
        assert_eq!(status.read_only, Some(status.name != "s1"));
    }
    run(&cluster, "s1", "CREATE TABLE app.t (a INT PRIMARY KEY)").await;
    run(&cluster, "s1", "INSERT INTO app.t VALUES (1)").await;

    cluster.promote("s2").await.unwrap();
    assert_eq!(cluster.primary().name, "s2");
    run(&cluster, "s2", "INSERT INTO app.t VALUES (2)").await;

    cluster.kill("s2").await.unwrap();
    cluster.wait_members(2, "s2").await.unwrap();
    cluster.refresh_roles().await.unwrap();
    let third = cluster.primary().name;
    assert_ne!(third, "s2");
    run(&cluster, &third, "INSERT INTO app.t VALUES (3)").await;
    cluster.start("s2").await.unwrap();
    cluster.wait_replicas_caught_up(SOON).await.unwrap();
    assert_eq!(rows(&cluster, "s2").await, "1,2,3");

    cluster.expel("s2").await.unwrap();
    let sure = "SELECT @@super_read_only OR @@offline_mode";
    eventually_value(&cluster, "s2", sure, "1").await;
    cluster.rejoin_group("s2").await.unwrap();
    cluster.wait_members(3, "").await.unwrap();

    cluster.stop(&third).await.unwrap();
    cluster.wait_members(2, &third).await.unwrap();
    cluster.refresh_roles().await.unwrap();
    assert_ne!(cluster.primary().name, third);
    cluster.down().await.unwrap();
    assert!(nothing_left(&dir));
}

async fn eventually_value(cluster: &Cluster, server: &str, sql: &str, wanted: &str) {
    let deadline = Instant::now() + SOON;
    while value(cluster, server, sql).await != wanted {
        assert!(Instant::now() < deadline, "{server}: {sql} is not {wanted}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Galera's nodes all take writes, lose one and take it back.
#[tokio::test(flavor = "multi_thread")]
async fn galera_nodes_come_and_go() {
    let what = "galera_nodes_come_and_go";
    if !skip_unless_topology(Family::MariaDb, Topology::Galera, what) {
        return;
    }
    let mut galera = spec(Family::MariaDb, 2);
    galera.topology = Topology::Galera;
    let cluster = Cluster::up(galera).await.unwrap();
    let dir = cluster.dir();
    run(&cluster, "s1", "CREATE TABLE app.t (a INT PRIMARY KEY)").await;
    for (server, value) in [("s1", 1), ("s2", 2), ("s3", 3)] {
        run(
            &cluster,
            server,
            &format!("INSERT INTO app.t VALUES ({value})"),
        )
        .await;
    }
    cluster.isolate("s1").await.unwrap();
    cluster.wait_members(2, "s1").await.unwrap();
    let deadline = Instant::now() + SOON;
    while status_of(&cluster, "s1").await.group.unwrap().is_online() {
        assert!(Instant::now() < deadline, "s1 has not noticed");
    }
    run(&cluster, "s2", "INSERT INTO app.t VALUES (4)").await;
    cluster.reconnect("s1").await.unwrap();

    cluster.kill("s3").await.unwrap();
    cluster.wait_members(2, "s3").await.unwrap();
    run(&cluster, "s1", "INSERT INTO app.t VALUES (5)").await;
    cluster.start("s3").await.unwrap();
    cluster.wait_replicas_caught_up(SOON).await.unwrap();
    assert_eq!(rows(&cluster, "s3").await, "1,2,3,4,5");
    cluster.down().await.unwrap();
    assert!(nothing_left(&dir));
}

async fn dropping_leaves_nothing(family: Family) {
    let cluster = Cluster::up(spec(family, 0)).await.unwrap();
    let (dir, pid) = (cluster.dir(), cluster.primary().pid.unwrap());
    assert!(is_alive(pid) && dir.exists());
    cluster.pause("s1").await.unwrap();
    drop(cluster);
    assert!(!is_alive(pid));
    assert!(nothing_left(&dir));
}

async fn a_failed_start_leaves_nothing(family: Family) {
    let mut bad = spec(family, 1);
    bad.extra_args.push("--no-such-option-exists=1".into());
    let dir = bad.dir.clone();
    let error = format!("{:#}", Cluster::up(bad).await.unwrap_err());
    assert!(
        error.contains("no-such-option-exists"),
        "the log's words are shown: {error}"
    );
    assert!(nothing_left(&dir));
}

async fn interrupted_leaves_nothing(family: Family) {
    for signal in ["INT", "TERM"] {
        let up = Up::start(family, signal);
        eventually("the cluster is up", || up.said().contains("Ctrl-C stops"));
        up.end_by(signal);
    }
}

async fn interrupted_while_starting_leaves_nothing(family: Family) {
    let up = Up::start(family, "starting");
    eventually("its first server starts", || up.dir.join("s1/pid").exists());
    up.end_by("INT");
}

async fn killed_leaves_nothing(family: Family) {
    let up = Up::start(family, "killed");
    eventually("the cluster is up", || up.said().contains("Ctrl-C stops"));
    up.end_by("KILL");
}

async fn detached_and_taken_up_again(family: Family) {
    let cluster = Cluster::up(spec(family, 0)).await.unwrap();
    let (dir, pid) = (cluster.dir(), cluster.primary().pid.unwrap());
    cluster.detach();
    assert!(is_alive(pid));
    let again = Cluster::attach(&dir).unwrap();
    assert_eq!(again.primary().pid, Some(pid));
    let mut same_dir = spec(family, 0);
    same_dir.dir = dir.clone();
    let taken = Cluster::up(same_dir).await.unwrap_err().to_string();
    assert!(taken.contains("holds a cluster already"), "{taken}");
    assert!(is_alive(pid));
    again.down().await.unwrap();
    assert!(nothing_left(&dir));
    assert!(Cluster::attach(&dir).is_err());
}

async fn certificates_verify(family: Family) {
    let cluster = Cluster::up(ClusterSpec {
        tls: true,
        ..spec(family, 0)
    })
    .await
    .unwrap();
    let ca = cluster.tls_ca().unwrap();
    let verify: &[&str] = match family {
        Family::MySql => &["--ssl-mode=VERIFY_IDENTITY"],
        Family::MariaDb => &["--ssl", "--ssl-verify-server-cert"],
    };
    let ca = format!("--ssl-ca={}", ca.display());
    let args: Vec<&str> = verify.iter().copied().chain([ca.as_str()]).collect();
    let cipher = client(
        &cluster,
        "app",
        "app-secret",
        &args,
        "SHOW STATUS LIKE 'Ssl_cipher'",
    );
    let cipher = cipher.unwrap();
    assert!(cipher.trim().len() > "Ssl_cipher".len(), "{cipher:?}");
}

async fn accounts_can_do_what_they_are_for(family: Family) {
    let cluster = Cluster::up(spec(family, 0)).await.unwrap();
    let app = |sql: &str| client(&cluster, "app", "app-secret", &[], sql);
    let monitor = |sql: &str| client(&cluster, "millrace_monitor", "monitor-secret", &[], sql);
    let admin = |sql: &str| client(&cluster, "admin", "admin-secret", &[], sql);

    app("CREATE TABLE app.t (a INT); CREATE TEMPORARY TABLE test.x (a INT)").unwrap();
    app("CREATE FUNCTION app.one() RETURNS INT RETURN 1; CREATE VIEW app.v AS SELECT 1").unwrap();
    app("LOCK TABLES app.t WRITE; UNLOCK TABLES").unwrap();
    app("CREATE DATABASE other").unwrap_err();
    admin("CREATE USER guest IDENTIFIED BY 'guest-secret'; GRANT SELECT ON app.* TO guest")
        .unwrap();

    monitor("SHOW REPLICA STATUS").unwrap();
    let status = if family == Family::MySql {
        "SHOW BINARY LOG STATUS"
    } else {
        "SHOW MASTER STATUS"
    };
    monitor(status).unwrap();
    let body =
        "SELECT routine_definition FROM information_schema.routines WHERE routine_name = 'one'";
    assert!(monitor(body).unwrap().contains("RETURN 1"));
    let view = "SELECT view_definition FROM information_schema.views WHERE table_name = 'v'";
    assert!(monitor(view).unwrap().to_lowercase().contains("select 1"));
    app("CREATE TRIGGER app.tr BEFORE INSERT ON app.t FOR EACH ROW SET NEW.a = 2").unwrap();
    let trigger =
        "SELECT action_statement FROM information_schema.triggers WHERE trigger_name = 'tr'";
    assert!(monitor(trigger).unwrap().contains("NEW.a"));
    monitor("INSERT INTO app.t VALUES (1)").unwrap_err();
    client(&cluster, "root", "", &[], "SELECT 1").unwrap_err();
}

/// Runs SQL with the family's own command line over TCP.
fn client(
    cluster: &Cluster,
    user: &str,
    password: &str,
    args: &[&str],
    sql: &str,
) -> Result<String, String> {
    let program = Binaries::find(cluster.family()).unwrap().client.unwrap();
    let output = std::process::Command::new(program)
        .arg("--no-defaults")
        .args(["-h127.0.0.1", "-N", "-e", sql])
        .arg(format!("-P{}", cluster.primary().port))
        .arg(format!("-u{user}"))
        .arg(format!("-p{password}"))
        .args(args)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() {
        Ok(text(output.stdout))
    } else {
        Err(text(output.stderr))
    }
}

/// `sandbox up` in a process of its own, to be ended from outside.
struct Up {
    dir: PathBuf,
    output: PathBuf,
    process: std::process::Child,
}

impl Up {
    fn start(family: Family, name: &str) -> Up {
        let unique = format!("millrace-up-{}-{family}-{name}", std::process::id());
        let dir = std::env::temp_dir().join(&unique);
        let output = std::env::temp_dir().join(unique + ".out");
        let process = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "command_line", "--ignored", "--nocapture"])
            .env("MILLRACE_TEST_UP_FAMILY", family.to_string())
            .env("MILLRACE_TEST_UP_DIR", &dir)
            .stdout(std::fs::File::create(&output).unwrap())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        Up {
            dir,
            output,
            process,
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap()
    }

    fn end_by(mut self, signal: &str) {
        let pid = self.process.id().to_string();
        let sent = std::process::Command::new("kill")
            .args(["-s", signal, &pid])
            .status()
            .unwrap();
        assert!(sent.success());
        self.process.wait().unwrap();
        eventually("nothing is left", || nothing_left(&self.dir));
        std::fs::remove_file(&self.output).unwrap();
    }
}

/// Not a test: what [`Up`] runs, because a test has no other program to start.
#[test]
#[ignore = "the command line under test, started by other tests"]
fn command_line() {
    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        sandbox: millrace_sandbox::cli::SandboxArgs,
    }
    let Ok(family) = std::env::var("MILLRACE_TEST_UP_FAMILY") else {
        return;
    };
    let dir = std::env::var("MILLRACE_TEST_UP_DIR").unwrap();
    let args = [
        "sandbox",
        "up",
        "--family",
        &family,
        "--dir",
        &dir,
        "--replicas",
        "1",
    ];
    let cli: Cli = clap::Parser::parse_from(args.into_iter().chain(["--base-port", "0"]));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime
        .block_on(millrace_sandbox::cli::run(cli.sandbox))
        .unwrap();
}

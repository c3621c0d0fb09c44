//! The cluster and proxy that all checks share, and how a login is compared with a direct one.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_sandbox::{APP, Cluster, ClusterSpec, Family, MONITOR, Release};
use millrace_tests::harness::{Launch, Proxy};
use millrace_tests::wire::{Connection, Login, Reply, Target};

pub(crate) const CATCH_UP: Duration = Duration::from_secs(20);

/// A cluster, a proxy that logs all it can, and every password that was used with it.
pub(crate) struct Ground {
    pub(crate) release: Release,
    pub(crate) family: Family,
    pub(crate) proxy: Proxy,
    pub(crate) socket: PathBuf,
    pub(crate) cluster: Cluster,
    pub(crate) secrets: RefCell<Vec<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Plain,
    Tls,
    Socket,
}

pub(crate) const WAYS: [Way; 3] = [Way::Plain, Way::Tls, Way::Socket];

pub(crate) const FILE_SECRET: &str = "configured-by-file-7d1";
pub(crate) const ENV_SECRET: &str = "configured-by-env-9b4";

pub(crate) fn servers_toml(cluster: &Cluster) -> String {
    let servers = cluster.servers();
    let lines = servers
        .iter()
        .map(|s| format!("[[server]]\naddress = \"{}:{}\"\n", s.host, s.port));
    lines.collect()
}

pub(crate) fn monitor_toml() -> String {
    format!(
        "[monitor]\nuser = \"{}\"\npassword_env = \"MILLRACE_MONITOR_PASSWORD\"\n",
        MONITOR.user
    )
}

impl Ground {
    pub(crate) async fn start(release: Release) -> anyhow::Result<Self> {
        Self::start_with(release, &[]).await
    }

    /// With further options of the servers.
    pub(crate) async fn start_with(release: Release, options: &[&str]) -> anyhow::Result<Self> {
        let mut spec = ClusterSpec::new(release);
        spec.tls = true;
        let options = options.iter().map(ToString::to_string);
        spec.extra_args.extend(options);
        let cluster = Cluster::up(spec).await?;
        let launch = Launch::new()?;
        let socket = launch.dir().join("sock");
        let text = format!(
            "workers = 2\n[[listen]]\naddress = \"127.0.0.1:{}\"\n\
             [[listen]]\naddress = \"127.0.0.2:{}\"\n\
             [[listen]]\naddress = \"{}\"\n{}{}\
             [http]\nlisten = \"127.0.0.1:{}\"\n\
             [pool]\nmax_connections = 10\n\
             [auth]\nfailure_delay = \"0s\"\n\
             [[account]]\nname = \"by_file\"\npassword_file = \"by_file.password\"\n\
             [[account]]\nname = \"by_env\"\npassword_env = \"BY_ENV_PASSWORD\"\n\
             [log]\nlevel = \"trace\"\n",
            launch.port,
            launch.port,
            socket.display(),
            servers_toml(&cluster),
            monitor_toml(),
            launch.http_port
        );
        let launch = launch
            .file("by_file.password", &format!("{FILE_SECRET}\n"))
            .env("BY_ENV_PASSWORD", ENV_SECRET)
            .env("RUST_LOG", "trace")
            .config(&text);
        let mut proxy = launch.spawn()?;
        proxy.wait_ready(Duration::from_secs(30)).await?;
        let ground = Self {
            release,
            family: release.family(),
            proxy,
            socket,
            cluster,
            secrets: RefCell::default(),
        };
        for secret in [FILE_SECRET, ENV_SECRET, MONITOR.password, APP.password] {
            ground.secret(secret);
        }
        Ok(ground)
    }

    pub(crate) fn secret(&self, secret: &str) -> String {
        self.secrets.borrow_mut().push(secret.to_owned());
        secret.to_owned()
    }

    /// The plugins that accounts of this family can have.
    pub(crate) fn plugins(&self) -> [&'static str; 2] {
        match self.family {
            Family::MySql => ["caching_sha2_password", "sha256_password"],
            Family::MariaDb => ["mysql_native_password", "ed25519"],
        }
    }

    pub(crate) fn identified(&self, plugin: &str, password: &str) -> String {
        match self.family {
            Family::MySql => format!("IDENTIFIED WITH {plugin} BY '{password}'"),
            Family::MariaDb => {
                format!("IDENTIFIED VIA {plugin} USING PASSWORD('{password}')")
            }
        }
    }

    /// Makes an account with everything on `app` and waits until every server has it.
    pub(crate) async fn account(
        &self,
        name: &str,
        plugin: &str,
        password: &str,
    ) -> anyhow::Result<()> {
        self.account_somewhere(name, plugin, password).await?;
        self.cluster.wait_replicas_caught_up(CATCH_UP).await
    }

    pub(crate) async fn account_somewhere(
        &self,
        name: &str,
        plugin: &str,
        password: &str,
    ) -> anyhow::Result<()> {
        if !password.is_empty() {
            self.secret(password);
        }
        let identified = self.identified(plugin, password);
        self.primary(&[
            format!("CREATE USER '{name}'@'%' {identified}"),
            format!("GRANT ALL ON app.* TO '{name}'@'%'"),
        ])
        .await
    }

    /// Runs statements as root on the primary.
    pub(crate) async fn primary<S: AsRef<str>>(&self, statements: &[S]) -> anyhow::Result<()> {
        let mut control = self.cluster.control(&self.cluster.primary().name).await?;
        for sql in statements {
            control.run(sql.as_ref()).await?;
        }
        control.close().await;
        Ok(())
    }

    pub(crate) async fn everywhere(&self, sql: &str) -> anyhow::Result<()> {
        for server in self.cluster.servers() {
            let mut control = self.cluster.control(&server.name).await?;
            control.run(sql).await?;
            control.close().await;
        }
        Ok(())
    }

    pub(crate) fn through(&self, user: &str, password: &str, way: Way) -> Login {
        let target = match way {
            Way::Socket => Target::Unix(self.socket.clone()),
            Way::Plain | Way::Tls => self.proxy.address(),
        };
        let mut login = Login::new(target, user, password);
        login.tls = way == Way::Tls;
        login
    }

    /// The same login at the primary.
    pub(crate) fn direct(&self, login: &Login) -> Login {
        let primary = self.cluster.primary();
        let target = match &login.target {
            Target::Unix(_) => Target::Unix(primary.socket),
            _ => Target::Tcp(format!("127.0.0.1:{}", primary.port)),
        };
        Login {
            target,
            ..login.clone()
        }
    }

    /// Logs in at the primary and through the proxy; both must end the same way.
    pub(crate) async fn same(&self, what: &str, login: &Login) -> anyhow::Result<Seen> {
        let direct = Seen::of(&self.direct(login)).await?;
        let through = Seen::of(login).await?;
        ensure!(
            direct == through,
            "{what}: direct {direct:?}, through {through:?}"
        );
        Ok(through)
    }

    /// A login through the proxy that must be good; answers who the server says it is.
    pub(crate) async fn good(&self, what: &str, login: &Login) -> anyhow::Result<Connection> {
        let mut connection = Connection::open(login)
            .await
            .with_context(|| what.to_owned())?;
        let reply = connection.query("SELECT CURRENT_USER()").await;
        let expected = format!("{}@%", login.user);
        ensure!(
            reply.scalar().as_deref() == Some(&expected),
            "{what}: {:?}",
            reply.render()
        );
        Ok(connection)
    }

    pub(crate) async fn counter(&self, line: &str) -> anyhow::Result<f64> {
        let metrics = self.proxy.metrics().await?;
        let value = metrics
            .lines()
            .find_map(|l| l.strip_prefix(line))
            .with_context(|| format!("no metric {line}"))?;
        Ok(value.trim().parse()?)
    }
}

/// How a login ended. A server calls a client at its Unix socket `localhost`, the proxy's own
/// client never; messages are compared without that.
#[derive(Debug, PartialEq)]
pub(crate) enum Seen {
    Refused {
        code: u16,
        state: String,
        message: String,
    },
    Broken,
    /// The account, database and character set that the server answered for.
    In(Vec<Option<String>>),
}

impl Seen {
    pub(crate) async fn of(login: &Login) -> anyhow::Result<Self> {
        let (connection, reply) = Connection::try_open(login).await?;
        if let Some(err) = reply.err() {
            return Ok(Self::Refused {
                code: err.code,
                state: err.state.clone(),
                message: err.message.replace("'@'localhost'", "'@'127.0.0.1'"),
            });
        }
        let Some(mut connection) = connection else {
            return Ok(Self::Broken);
        };
        let sql = "SELECT CURRENT_USER(), DATABASE(), @@character_set_client, \
                   @@collation_connection, @@character_set_results";
        let reply = connection.query(sql).await;
        if let Some(err) = reply.err() {
            anyhow::bail!("after the login: {err}");
        }
        connection.quit().await;
        Ok(Self::In(
            reply.rows().into_iter().next().unwrap_or_default(),
        ))
    }

    pub(crate) fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    pub(crate) fn is_in(&self) -> bool {
        matches!(self, Self::In(_))
    }
}

/// What a client can see of a reply, without what differs from server to server.
pub(crate) fn answer(reply: &Reply) -> String {
    match (reply.err(), reply.broken()) {
        (Some(err), _) => err.to_string(),
        (None, Some(_)) => "broken".to_owned(),
        (None, None) => format!("{:?}", reply.rows()),
    }
}

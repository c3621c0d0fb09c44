//! Plugins whose server's part is MySQL Enterprise's, or that need a device. **A scripted server**: a real one, with a stand-in before it that
//! asks and judges as those plugins do. The stand-in speaks for these accounts. The first three have MySQL's own clients:
//!
//! - `by_ldap`: `authentication_ldap_simple`, which asks for the password in clear text;
//! - `by_pam`: `authentication_pam`, which does so too;
//! - `by_token`: `authentication_openid_connect`, which asks for a token that the client reads from a file.
//!
//! The others need a device or a service that cannot be had. **Their clients are scripted too**; what both sides say is made
//! up, in as many rounds as the plugins have:
//!
//! - `by_sasl`: `authentication_ldap_sasl`;
//! - `by_ticket`: `authentication_kerberos`;
//! - `by_device`: `authentication_webauthn`.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_sandbox::{Binaries, Cluster, ClusterSpec, Family, Release};
use millrace_tests::harness::{Launch, Proxy};
use millrace_tests::wire::{Connection, Login, Target};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::ground::{WAYS, Way, monitor_toml};

const PASSWORD: &str = "ldap-right-4d0";
const MADE_UP: &str = "made-up-right-2e8";
const TOKEN: &str = "token-right-9c1.of.somebody";

/// What the stand-in asks an account for.
struct Script {
    user: &'static str,
    /// The clients' plugin.
    plugin: &'static str,
    /// The server's.
    at_server: &'static str,
    /// What the right answer ends with.
    right: &'static [u8],
    /// What it is asked beside that, in turn; the answer is the first one's with this behind it.
    challenges: &'static [&'static [u8]],
}

const SCRIPTS: [Script; 6] = [
    Script {
        user: "by_ldap",
        plugin: "mysql_clear_password",
        at_server: "authentication_ldap_simple",
        right: b"ldap-right-4d0\0",
        challenges: &[],
    },
    Script {
        user: "by_pam",
        plugin: "mysql_clear_password",
        at_server: "authentication_pam",
        right: b"ldap-right-4d0\0",
        challenges: &[],
    },
    Script {
        user: "by_token",
        plugin: "authentication_openid_connect_client",
        at_server: "authentication_openid_connect",
        right: TOKEN.as_bytes(),
        challenges: &[],
    },
    Script {
        user: "by_sasl",
        plugin: "authentication_ldap_sasl_client",
        at_server: "authentication_ldap_sasl",
        right: MADE_UP.as_bytes(),
        challenges: &[b"r=nonce,s=salt,i=4096", b"v=signature"],
    },
    Script {
        user: "by_ticket",
        plugin: "authentication_kerberos_client",
        at_server: "authentication_kerberos",
        right: MADE_UP.as_bytes(),
        challenges: &[b"\x60\0\x01\xff\xfe token"],
    },
    Script {
        user: "by_device",
        plugin: "authentication_webauthn_client",
        at_server: "authentication_webauthn",
        right: MADE_UP.as_bytes(),
        challenges: &[b"\x01 challenge \0\xff of a relying party"],
    },
];

fn script_of(user: &[u8]) -> Option<&'static Script> {
    SCRIPTS.iter().find(|script| script.user.as_bytes() == user)
}

/// A packet of one of the two sides.
type Packet = (Side, u8, Vec<u8>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

async fn packets(side: Side, mut from: impl AsyncRead + Unpin, to: UnboundedSender<Packet>) {
    loop {
        let mut header = [0; 4];
        if from.read_exact(&mut header).await.is_err() {
            return;
        }
        let length = u32::from_le_bytes([header[0], header[1], header[2], 0]);
        let mut payload = vec![0; length as usize];
        if from.read_exact(&mut payload).await.is_err()
            || to.send((side, header[3], payload)).is_err()
        {
            return;
        }
    }
}

fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Between a client, which is Millrace, and the real server, whose accounts of these names have no password.
struct StandIn {
    client: tokio::net::unix::OwnedWriteHalf,
    server: tokio::net::unix::OwnedWriteHalf,
    packets: UnboundedReceiver<Packet>,
    ahead: VecDeque<Packet>,
}

impl StandIn {
    async fn serve(client: UnixStream, server: UnixStream) -> io::Result<()> {
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let (sender, receiver) = unbounded_channel();
        tokio::spawn(packets(Side::Client, from_client, sender.clone()));
        tokio::spawn(packets(Side::Server, from_server, sender));
        let stand_in = StandIn {
            client: to_client,
            server: to_server,
            packets: receiver,
            ahead: VecDeque::new(),
        };
        stand_in.run().await
    }

    async fn next(&mut self) -> io::Result<Packet> {
        let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
        match self.ahead.pop_front() {
            Some(packet) => Ok(packet),
            None => self.packets.recv().await.ok_or_else(gone),
        }
    }

    async fn next_of(&mut self, side: Side) -> io::Result<(u8, Vec<u8>)> {
        let mut others = VecDeque::new();
        let found = loop {
            let packet = self.next().await?;
            if packet.0 == side {
                break packet;
            }
            others.push_back(packet);
        };
        others.append(&mut self.ahead);
        self.ahead = others;
        Ok((found.1, found.2))
    }

    async fn send(&mut self, side: Side, sequence: u8, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        let mut out = length.to_le_bytes()[..3].to_vec();
        out.push(sequence);
        out.extend_from_slice(payload);
        match side {
            Side::Client => self.client.write_all(&out).await,
            Side::Server => self.server.write_all(&out).await,
        }
    }

    async fn run(mut self) -> io::Result<()> {
        let (_, mut greeting) = self.next_of(Side::Server).await?;
        // No TLS: behind the version, the connection's number, eight bytes and a zero are the flags.
        let version = 1 + text(&greeting[1..]).len() + 1;
        greeting[version + 4 + 8 + 1 + 1] &= !0x08;
        self.send(Side::Client, 0, &greeting).await?;
        let (sequence, mut response) = self.next_of(Side::Client).await?;
        let user = text(&response[32..]).to_vec();
        if let Some(script) = script_of(&user) {
            let Some(asked) = self.judge(script, sequence).await? else {
                return Ok(());
            };
            // No proof, by the plugin that the real account has; no attributes.
            let had_database = response[0] & 0x08 != 0;
            let proof = 32 + user.len() + 1;
            let rest = proof + 1 + usize::from(response[proof]);
            let database = had_database.then(|| text(&response[rest..]).to_vec());
            response[2] &= !0x10;
            response.truncate(proof);
            response.push(0);
            if let Some(database) = database {
                response.extend_from_slice(&database);
                response.push(0);
            }
            response.extend_from_slice(b"caching_sha2_password\0");
            self.send(Side::Server, sequence, &response).await?;
            let (_, last) = self.next_of(Side::Server).await?;
            self.send(Side::Client, asked.wrapping_add(1), &last)
                .await?;
        } else {
            self.send(Side::Server, sequence, &response).await?;
        }
        loop {
            let (side, sequence, payload) = self.next().await?;
            let changed = match (side, sequence, payload.split_first()) {
                (Side::Client, 0, Some((0x11, rest))) => script_of(text(rest)),
                _ => None,
            };
            match (changed, side) {
                (Some(script), _) => self.change(script, &payload).await?,
                (None, Side::Client) => self.send(Side::Server, sequence, &payload).await?,
                (None, Side::Server) => self.send(Side::Client, sequence, &payload).await?,
            }
        }
    }

    /// Asks the client; the number of its answer, where that is right. Else it has been told.
    async fn judge(&mut self, script: &Script, sequence: u8) -> io::Result<Option<u8>> {
        let mut switch = vec![0xfe];
        switch.extend_from_slice(script.plugin.as_bytes());
        switch.push(0);
        self.send(Side::Client, sequence.wrapping_add(1), &switch)
            .await?;
        let (mut sequence, answer) = self.next_of(Side::Client).await?;
        let mut is_right = answer.ends_with(script.right);
        for challenge in script.challenges {
            let more = [b"\x01", *challenge].concat();
            self.send(Side::Client, sequence.wrapping_add(1), &more)
                .await?;
            let answered = self.next_of(Side::Client).await?;
            sequence = answered.0;
            is_right &= answered.1 == [script.right, *challenge].concat();
        }
        if is_right {
            return Ok(Some(sequence));
        }
        let text = format!(
            "#28000Access denied for user '{}'@'localhost' (using password: YES)",
            script.user
        );
        // 1045.
        let mut refusal = vec![0xff, 0x15, 0x04];
        refusal.extend_from_slice(text.as_bytes());
        self.send(Side::Client, sequence.wrapping_add(1), &refusal)
            .await?;
        Ok(None)
    }

    /// COM_CHANGE_USER, as Millrace sends it on a pooled connection.
    async fn change(&mut self, script: &Script, payload: &[u8]) -> io::Result<()> {
        let Some(asked) = self.judge(script, 0).await? else {
            return Err(io::ErrorKind::ConnectionAborted.into());
        };
        let proof = 1 + script.user.len() + 1;
        let rest = proof + 1 + usize::from(payload[proof]);
        let mut change = payload[..proof].to_vec();
        change.push(0);
        change.extend_from_slice(text(&payload[rest..]));
        change.extend_from_slice(b"\0\xff\0caching_sha2_password\0");
        // No attributes.
        change.push(0);
        self.send(Side::Server, 0, &change).await?;
        let (mut sequence, mut last) = self.next_of(Side::Server).await?;
        while last.first() == Some(&0xfe) {
            self.send(Side::Server, sequence.wrapping_add(1), &[])
                .await?;
            (sequence, last) = self.next_of(Side::Server).await?;
        }
        self.send(Side::Client, asked.wrapping_add(1), &last).await
    }
}

async fn stand_in(path: PathBuf, real: PathBuf) -> anyhow::Result<()> {
    let listener = UnixListener::bind(&path)?;
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            if let Ok(server) = UnixStream::connect(&real).await {
                tokio::spawn(StandIn::serve(client, server));
            }
        }
    });
    Ok(())
}

/// MySQL's own client, through Millrace; what it says, and whether it got in.
async fn client(
    proxy: &Proxy,
    socket: &Path,
    way: Way,
    more: &[String],
) -> anyhow::Result<(bool, String)> {
    let client = Binaries::find(Release::MySql)?
        .client
        .context("no client")?;
    let mut command = tokio::process::Command::new(&client);
    command.args(["--no-defaults", "-N", "-D", "app", "-e"]);
    command.arg("SELECT CURRENT_USER(), DATABASE(); INSERT INTO seen VALUES (1); SELECT COUNT(*) > 0 FROM seen");
    let plugins = crate::factors::plugins_of(&client);
    match way {
        Way::Socket => command.args(["--protocol=socket", "-S"]).arg(socket),
        Way::Plain => command.args(["-h127.0.0.1", "--ssl-mode=DISABLED"]),
        Way::Tls => command.args(["-h127.0.0.1", "--ssl-mode=REQUIRED"]),
    };
    command.arg(format!("-P{}", proxy.port));
    command.args(plugins).args(more);
    let output = command.kill_on_drop(true).output().await?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    Ok((output.status.success(), said))
}

async fn relayed(proxy: &Proxy) -> anyhow::Result<f64> {
    let metrics = proxy.metrics().await?;
    let start = "millrace_logins_total{outcome=\"relayed\"} ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(start));
    Ok(line.context("no such metric")?.parse()?)
}

pub(crate) async fn enterprise() -> anyhow::Result<()> {
    let mut spec = ClusterSpec::new(Family::MySql);
    spec.replicas = 0;
    let cluster = Cluster::up(spec).await?;
    let mut control = cluster.control(&cluster.primary().name).await?;
    for sql in [
        "CREATE DATABASE IF NOT EXISTS app",
        "CREATE TABLE app.seen (n INT)",
    ] {
        control.run(sql).await?;
    }
    for script in &SCRIPTS {
        let (user, plugin) = (script.user, script.at_server);
        for sql in [
            format!("CREATE USER {user}@'%' IDENTIFIED WITH caching_sha2_password"),
            format!("GRANT ALL ON app.* TO {user}@'%'"),
            // The table says so; the server has read the row before.
            format!("UPDATE mysql.user SET plugin='{plugin}' WHERE User='{user}'"),
        ] {
            control.run(&sql).await?;
        }
    }
    control.close().await;
    let launch = Launch::new()?;
    std::fs::create_dir_all(launch.dir())?;
    let (socket, server) = (launch.dir().join("sock"), launch.dir().join("server"));
    stand_in(server.clone(), cluster.primary().socket).await?;
    let text = format!(
        "workers = 1\n[[listen]]\naddress = \"127.0.0.1:{}\"\n[[listen]]\naddress = \"{}\"\n\
         [[server]]\naddress = \"{}\"\n{}[http]\nlisten = \"127.0.0.1:{}\"\n\
         [auth]\nfailure_delay = \"0s\"\n[log]\nlevel = \"debug\"\n",
        launch.port,
        socket.display(),
        server.display(),
        monitor_toml(),
        launch.http_port
    );
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(Duration::from_secs(30)).await?;
    let token = |name: &str, token: &str| -> anyhow::Result<String> {
        let file = proxy.log_path().with_file_name(name);
        std::fs::write(&file, token)?;
        Ok(format!(
            "--authentication-openid-connect-client-id-token-file={}",
            file.display()
        ))
    };
    let tokens = [token("right", TOKEN)?, token("wrong", "token.of.another")?];
    let by_password =
        |user: &str, password: &str| vec![format!("-u{user}"), format!("-p{password}")];
    let ldap = |password: &str| by_password("by_ldap", password);
    for way in [Way::Tls, Way::Socket, Way::Plain] {
        for time in ["first", "known"] {
            let (is_in, said) = client(&proxy, &socket, way, &ldap(PASSWORD)).await?;
            ensure!(
                is_in && said.contains("by_ldap@%\tapp"),
                "LDAP, {way:?}, {time}: {said}"
            );
        }
        let (is_in, said) = client(&proxy, &socket, way, &ldap("ldap-wrong-1b1")).await?;
        // It does not show it in clear text over TCP, as directly.
        let is_told = said.contains(if way == Way::Plain { "2059" } else { "1045" });
        ensure!(!is_in && is_told, "LDAP, {way:?}, wrong: {said}");
    }
    let before = relayed(&proxy).await?;
    ensure!(before == 0.0, "LDAP was relayed: {before}");
    for way in [Way::Tls, Way::Socket] {
        for (file, right) in tokens.iter().zip([true, false]) {
            let more = ["-uby_token".to_owned(), file.clone()];
            let (is_in, said) = client(&proxy, &socket, way, &more).await?;
            let is_told = said.contains(if right { "by_token@%\tapp" } else { "1045" });
            ensure!(is_in == right && is_told, "token, {way:?}, {file}: {said}");
        }
    }
    let after = relayed(&proxy).await?;
    ensure!(after == before + 2.0, "{after} relayed");
    for way in [Way::Tls, Way::Socket] {
        for (password, right) in [(PASSWORD, true), ("pam-wrong-3a3", false)] {
            let mut more = by_password("by_pam", password);
            more.push("--enable-cleartext-plugin".to_owned());
            let (is_in, said) = client(&proxy, &socket, way, &more).await?;
            let is_told = said.contains(if right { "by_pam@%\tapp" } else { "1045" });
            ensure!(
                is_in == right && is_told,
                "PAM, {way:?}, {password}: {said}"
            );
        }
    }
    let after_pam = relayed(&proxy).await?;
    ensure!(after_pam == after + 2.0, "{after_pam} relayed");
    for user in ["by_sasl", "by_ticket", "by_device"] {
        for way in WAYS {
            made_up(&proxy, &socket, user, way)
                .await
                .with_context(|| format!("{user}, {way:?}"))?;
        }
    }
    let last = relayed(&proxy).await?;
    ensure!(last == after_pam + 9.0, "{last} relayed");
    Ok(())
}

/// A client that is scripted as well, with the right answers and with others.
async fn made_up(proxy: &Proxy, socket: &Path, user: &str, way: Way) -> anyhow::Result<()> {
    let target = match way {
        Way::Socket => Target::Unix(socket.to_owned()),
        Way::Plain | Way::Tls => proxy.address(),
    };
    let mut login = Login::new(target, user, MADE_UP);
    login.tls = way == Way::Tls;
    let mut connection = Connection::open(&login).await?;
    let reply = connection.query("SELECT CURRENT_USER()").await;
    let who = reply.scalar();
    ensure!(who == Some(format!("{user}@%")), "{who:?}");
    connection.expect("INSERT INTO app.seen VALUES (2)").await?;
    connection.quit().await;
    login.password = "made-up-wrong-7f1".to_owned();
    let (_, reply) = Connection::try_open(&login).await?;
    let code = reply.err().map(|err| err.code);
    ensure!(code == Some(1045), "wrong: {code:?}");
    Ok(())
}

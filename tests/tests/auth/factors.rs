//! Second factors. MySQL's own client logs in at the server and through Millrace, and is told the same. A server's
//! socket as the second factor is the client's own, never Millrace's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use millrace_sandbox::{Binaries, Release};
use millrace_tests::harness::{Launch, Proxy};

use crate::ground::{CATCH_UP, Ground, Way, monitor_toml};

const WAYS: [Way; 3] = [Way::Plain, Way::Tls, Way::Socket];

/// Where a client connects: a port, and a socket.
struct Place<'a> {
    port: u16,
    socket: &'a Path,
}

/// Where MySQL's client, unpacked, finds its plugins.
pub(crate) fn plugins_of(client: &Path) -> Option<String> {
    let folder = client.ancestors().nth(2)?;
    let plugins = folder.join("root/usr/lib/mysql/plugin");
    let found = plugins.is_dir();
    found.then(|| format!("--plugin-dir={}", plugins.display()))
}

/// What MySQL's own client gets to see, without the names of addresses.
async fn client(
    place: &Place<'_>,
    way: Way,
    user: &str,
    password: &str,
    sql: &str,
) -> anyhow::Result<String> {
    let client = Binaries::find(Release::MySql)?
        .client
        .context("no client")?;
    let mut command = tokio::process::Command::new(&client);
    command.args(["--no-defaults", "-N", "-u", user, "-e", sql]);
    command.arg(format!("--password1={password}"));
    command.args(plugins_of(&client));
    match way {
        Way::Socket => command.args(["--protocol=socket", "-S"]).arg(place.socket),
        Way::Plain => command.args([
            "-h127.0.0.1",
            "--ssl-mode=DISABLED",
            "--get-server-public-key",
        ]),
        Way::Tls => command.args(["-h127.0.0.1", "--ssl-mode=REQUIRED"]),
    };
    command.arg(format!("-P{}", place.port));
    let output = command.kill_on_drop(true).output().await?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let lines = said.lines().filter(|line| !line.contains("[Warning]"));
    let said = lines.collect::<Vec<_>>().join("\n");
    Ok(said.replace("'@'localhost'", "'@'127.0.0.1'"))
}

/// A proxy that reaches the server by its socket.
async fn by_socket(server: &Path, monitor: &str) -> anyhow::Result<(Proxy, PathBuf)> {
    let launch = Launch::new()?;
    let socket = launch.dir().join("sock");
    let text = format!(
        "workers = 1\n[[listen]]\naddress = \"127.0.0.1:{}\"\n[[listen]]\naddress = \"{}\"\n\
         [[server]]\naddress = \"{}\"\nrole = \"primary\"\n{monitor}[http]\nlisten = \"127.0.0.1:{}\"\n\
         [auth]\nfailure_delay = \"0s\"\n[log]\nlevel = \"debug\"\n",
        launch.port,
        socket.display(),
        server.display(),
        launch.http_port
    );
    let mut proxy = launch.config(&text).spawn()?;
    proxy.wait_ready(Duration::from_secs(30)).await?;
    Ok((proxy, socket))
}

pub(crate) async fn factors() -> anyhow::Result<()> {
    let options = [
        "--plugin-load-add=auth_socket.so",
        "--plugin-load-add=authentication_webauthn.so",
        "--loose-authentication-webauthn-rp-id=mysql.com",
    ];
    let ground = Ground::start_with(Release::MySql, &options).await?;
    let (right, wrong) = ("factor-right-1c8", "factor-wrong-7d7");
    ground
        .primary(&[
            "SET GLOBAL authentication_policy='*,*,'".to_owned(),
            format!(
                "CREATE USER keyed@'%' IDENTIFIED BY '{right}' \
                 AND IDENTIFIED WITH authentication_webauthn"
            ),
            format!(
                "CREATE USER peer@'%' IDENTIFIED BY '{right}' AND IDENTIFIED WITH auth_socket AS 'root'"
            ),
            format!(
                "CREATE USER other@'%' IDENTIFIED BY '{right}' AND IDENTIFIED WITH auth_socket AS 'daemon'"
            ),
        ])
        .await?;
    ground.cluster.wait_replicas_caught_up(CATCH_UP).await?;
    let primary = ground.cluster.primary();
    let direct = Place {
        port: primary.port,
        socket: &primary.socket,
    };
    let through = Place {
        port: ground.proxy.port,
        socket: &ground.socket,
    };
    let who = "SELECT CURRENT_USER()";
    // The device is not registered yet, which is all that an account may do; a proxy sees nothing of how it goes on.
    for way in WAYS {
        for (user, password, code) in [
            ("keyed", right, "4055"),
            ("keyed", wrong, "1045"),
            ("other", right, "1698"),
        ] {
            let one = client(&direct, way, user, password, who).await?;
            let two = client(&through, way, user, password, who).await?;
            ensure!(
                one == two && one.contains(code),
                "{user}, {way:?}: direct {one}, through {two}"
            );
        }
        let begins = "ALTER USER keyed@'%' 2 FACTOR INITIATE REGISTRATION";
        let one = client(&direct, way, "keyed", right, begins).await?;
        let two = client(&through, way, "keyed", right, begins).await?;
        ensure!(
            !one.contains("ERROR") && !two.contains("ERROR"),
            "registering, {way:?}: direct {one}, through {two}"
        );
    }
    // The server is reached over the network: nobody is at its socket.
    for way in WAYS {
        let said = client(&through, way, "peer", right, who).await?;
        ensure!(said.contains("1698"), "peer, {way:?}: {said}");
    }
    for monitor in [monitor_toml(), String::new()] {
        let (proxy, socket) = by_socket(&primary.socket, &monitor).await?;
        let place = Place {
            port: proxy.port,
            socket: &socket,
        };
        for way in WAYS {
            let said = client(&place, way, "peer", right, who).await?;
            let is_own = way == Way::Socket && !monitor.is_empty();
            let expected = match is_own {
                true => "peer@%",
                false => "ERROR",
            };
            ensure!(
                said.contains(expected),
                "{way:?}, monitor {monitor:?}: {said}"
            );
            let said = client(&place, way, "peer", wrong, who).await?;
            ensure!(said.contains("1045"), "{way:?}, wrong: {said}");
        }
    }
    Ok(())
}

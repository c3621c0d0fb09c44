//! `millrace check`, and how `serve` refuses a bad file.

use anyhow::ensure;
use millrace_sandbox::{APP, Cluster, MONITOR};
use millrace_tests::harness::Launch;

use crate::ground::READY;

pub(crate) async fn check(text: &str) -> anyhow::Result<(bool, String)> {
    let launch = Launch::new()?;
    std::fs::create_dir_all(launch.dir())?;
    let path = launch.dir().join("checked.toml");
    std::fs::write(&path, text)?;
    let output = tokio::process::Command::new(millrace_tests::harness::program()?)
        .arg("check")
        .arg(&path)
        .env("MILLRACE_MONITOR_PASSWORD", "x")
        .output()
        .await?;
    std::fs::remove_dir_all(launch.dir())?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8(text)?))
}

/// `check --connect` of these servers: its exit code, and all that it says.
async fn connect(
    servers: &[u16],
    more: &str,
    password: &str,
    json: bool,
) -> anyhow::Result<(Option<i32>, String)> {
    let launch = Launch::new()?;
    std::fs::create_dir_all(launch.dir())?;
    let path = launch.dir().join("checked.toml");
    let address = |port: &u16| format!("[[server]]\naddress = \"127.0.0.1:{port}\"\n");
    let servers: String = servers.iter().map(address).collect();
    let text = format!(
        "[[listen]]\naddress = \"127.0.0.1:6033\"\n{servers}[monitor]\nuser = \"{}\"\n\
         password_env = \"MILLRACE_MONITOR_PASSWORD\"\nconnect_timeout = \"1s\"\n{more}",
        MONITOR.user
    );
    std::fs::write(&path, text)?;
    let mut command = tokio::process::Command::new(millrace_tests::harness::program()?);
    command.arg("check").arg(&path).arg("--connect");
    if json {
        command.arg("--json");
    }
    command.env("MILLRACE_MONITOR_PASSWORD", password);
    command.env("APP_PASSWORD", APP.password);
    let output = command.kill_on_drop(true).output().await?;
    std::fs::remove_dir_all(launch.dir())?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8(text)?))
}

/// What the servers say to a check is what serving would meet.
pub(crate) async fn asks_the_servers(cluster: &Cluster) -> anyhow::Result<()> {
    let ports: Vec<u16> = cluster.servers().iter().map(|server| server.port).collect();
    let good = MONITOR.password;
    let account = |password: &str| {
        format!(
            "[[account]]\nname = \"{}\"\n{password}\n[discovery]\nmode = \"off\"\n",
            APP.user
        )
    };
    let right = account("password_env = \"APP_PASSWORD\"");
    let (code, said) = connect(&ports, &right, good, false).await?;
    ensure!(code == Some(0), "{said}");
    let primary = format!("127.0.0.1:{}: primary", cluster.primary().port);
    let replicas = said.matches(": replica, takes reads").count();
    ensure!(
        said.contains(&primary) && replicas == ports.len() - 1,
        "{said}"
    );
    // What the account lacks for the log is a note, where the log is to be followed.
    let blind = "may not follow the binary log";
    ensure!(!said.contains(blind), "{said}");
    let mut control = cluster.control(&cluster.primary().name).await?;
    let right_to_log = |verb: &str, link: &str| {
        format!(
            "{verb} REPLICATION SLAVE ON *.* {link} '{}'@'%'",
            MONITOR.user
        )
    };
    control.run(&right_to_log("REVOKE", "FROM")).await?;
    let without = connect(&ports[..1], &right, good, false).await;
    let by_position = format!("{right}[routing]\nfreshness = \"position\"\n");
    let unasked = connect(&ports[..1], &by_position, good, false).await;
    control.run(&right_to_log("GRANT", "TO")).await?;
    control.close().await;
    let (code, told) = without?;
    ensure!(code == Some(0) && told.contains(blind), "{told}");
    let (code, told) = unasked?;
    ensure!(code == Some(0) && !told.contains(blind), "{told}");
    let (code, said) = connect(&ports, &right, good, true).await?;
    let report: serde_json::Value = serde_json::from_str(said.trim())?;
    ensure!(code == Some(0) && report["good"] == true, "{said}");
    let versions = report["servers"].as_array().into_iter().flatten();
    ensure!(
        versions
            .filter(|server| server["version"].is_string())
            .count()
            == ports.len(),
        "{said}"
    );

    let wrong = account("password_env = \"MILLRACE_MONITOR_PASSWORD\"");
    let replica = cluster.replicas()[0].port;
    let off = "[discovery]\nmode = \"off\"\n";
    let nobody = [ports.as_slice(), &[1]].concat();
    for (what, servers, more, password, word) in [
        (
            "password of the monitor",
            ports.as_slice(),
            off,
            "not-this-one",
            "[monitor]",
        ),
        (
            "password of an account",
            &ports,
            &wrong,
            good,
            "[[account]]",
        ),
        ("nobody listens", &nobody, off, good, "127.0.0.1:1: "),
        (
            "a replica alone",
            &[replica],
            off,
            good,
            "no server takes writes",
        ),
    ] {
        let (code, said) = connect(servers, more, password, false).await?;
        let told = said.contains(word) && said.contains("problem: ");
        ensure!(code == Some(1) && told, "{what}: {code:?} {said}");
    }
    Ok(())
}

#[tokio::test]
async fn check_says_what_is_wrong() -> anyhow::Result<()> {
    const GOOD: &str = "[[listen]]\naddress = \"127.0.0.1:6033\"\n\
        [[server]]\naddress = \"127.0.0.1:3306\"\n\
        [[server]]\naddress = \"127.0.0.1:3307\"\n\
        [monitor]\nuser = \"m\"\npassword_env = \"MILLRACE_MONITOR_PASSWORD\"\n";
    let (good, text) = check(GOOD).await?;
    assert!(good, "{text}");
    // What is added, and what must be said of it; GOOD has nine lines.
    let cases: &[(&str, &[&[&str]])] = &[
        (
            "[pool]\nmax_conections = 5\n",
            &[&["max_conections", "checked.toml:11", "max_connections"]],
        ),
        ("[pol]\nmax_connections = 5\n", &[&["pol", ":10", "pool"]]),
        (
            "[pool]\nmax_connections = \"many\"\n",
            &[&["max_connections", ":11"]],
        ),
        (
            "[pool]\nwait_timeout = \"10 parsecs\"\n",
            &[&["wait_timeout", ":11"]],
        ),
        (
            "[limits]\nmax_packet = \"64 apples\"\n",
            &[&["max_packet", ":11"]],
        ),
        ("[log]\nlevel = \"lod\"\n", &[&["level", ":11"]]),
        ("[routing]\nreads = \"primary\"\n", &[&["reads", ":11"]]),
        ("[server_tls]\nmode = \"verify-ca\"\n", &[&["mode", ":11"]]),
        ("[server_tls]\nmode = \"verify_ca\"\n", &[&["ca"]]),
        (
            "[[listen]]\naddress = \"nonsense\"\n",
            &[&["address", ":11"]],
        ),
        (
            "[[listen]]\naddress = \"127.0.0.1:6033\"\n",
            &[&["127.0.0.1:6033"]],
        ),
        (
            "[[listen]]\naddress = \"127.0.0.1:1\"\ntarget = \"replica\"\n",
            &[&["target", ":12"]],
        ),
        (
            "[[account]]\nname = \"a\"\npassword = \"p\"\n",
            &[&["password", ":12", "password_file"]],
        ),
        (
            "[[account]]\nname = \"a\"\npassword_file = \"no-such-file\"\n",
            &[&["password_file", ":12"]],
        ),
        (
            "[[account]]\nname = \"a\"\npassword_env = \"NO_SUCH_VARIABLE_HERE\"\n",
            &[&["NO_SUCH_VARIABLE_HERE", ":12"]],
        ),
        ("[pool\n", &[&[":10"]]),
        (
            "[pool]\nmax_conections = 5\nidle_timeout = 7\n[drain]\ntimout = \"1s\"\n",
            &[
                &["max_conections", ":11"],
                &["idle_timeout", ":12"],
                &["timout", ":14", "timeout"],
            ],
        ),
    ];
    let mut failed = Vec::new();
    for (added, expected) in cases {
        let (good, text) = check(&format!("{GOOD}{added}")).await?;
        for words in *expected {
            let said = text
                .lines()
                .any(|line| words.iter().all(|word| line.contains(word)));
            if good || !said {
                failed.push(format!("{added}: {words:?} not in: {text}"));
            }
        }
    }
    let (good, text) = check("").await?;
    if good || !text.contains("listen") || !text.contains("server") {
        failed.push(format!("an empty file: {text}"));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// The file that is shipped as an example is good as it is.
#[tokio::test]
async fn shipped_file_is_good() -> anyhow::Result<()> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/millrace.toml");
    let (good, text) = check(&std::fs::read_to_string(path)?).await?;
    assert!(good, "{text}");
    Ok(())
}

/// A file that is not there, and `serve` with a bad one, are errors that name it.
#[tokio::test]
async fn serve_refuses_a_bad_file() -> anyhow::Result<()> {
    let mut proxy = Launch::new()?
        .args(&["--config", "/no/such/file.toml"])
        .spawn()?;
    let status = proxy.ended(READY).await?;
    assert!(!status.success());
    assert!(
        proxy.log().contains("/no/such/file.toml"),
        "{}",
        proxy.log()
    );
    let mut proxy = Launch::new()?
        .config("[[lisen]]\naddress = \"127.0.0.1:1\"\n")
        .spawn()?;
    let status = proxy.ended(READY).await?;
    assert!(!status.success());
    let log = proxy.log();
    assert!(
        log.contains("lisen") && log.contains("`listen`") && log.contains("millrace.toml:1"),
        "{log}"
    );
    Ok(())
}

/// What `serve` would not start with, `check` does not call good.
#[tokio::test]
async fn check_loads_what_serve_loads() -> anyhow::Result<()> {
    let name = format!("millrace-check-{}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&dir)?;
    let openssl = |arguments: &str| -> anyhow::Result<()> {
        let mut command = std::process::Command::new("openssl");
        command.args(arguments.split(' ')).current_dir(&dir);
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::ensure!(output.status.success(), "openssl {arguments}: {said}");
        Ok(())
    };
    openssl(
        "req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=m -keyout key.pem -out cert.pem",
    )?;
    openssl("rsa -in key.pem -aes256 -passout pass:x -out locked.pem")?;
    openssl("rsa -in key.pem -traditional -out pkcs1.pem")?;
    openssl("genpkey -algorithm ed25519 -out ed.pem")?;
    openssl("genpkey -algorithm rsa -pkeyopt rsa_keygen_bits:2048 -out other.pem")?;
    // Of X.509 version 1.
    openssl("req -new -key key.pem -subj /CN=m -out v1.csr")?;
    openssl("x509 -req -in v1.csr -signkey key.pem -days 30 -out v1.pem")?;
    let file = |name: &str| dir.join(name).display().to_string();
    let checked = async |section: &str| {
        let server =
            "[[listen]]\naddress = \"127.0.0.1:6033\"\n[[server]]\naddress = \"db:3306\"\n";
        check(&format!("{server}{section}")).await
    };
    for (cert, key, word) in [
        ("cert.pem", "key.pem", "good"),
        ("cert.pem", "pkcs1.pem", "good"),
        ("cert.pem", "locked.pem", "[tls] key"),
        ("cert.pem", "ed.pem", "[tls] cert and key"),
        // Servers show such a one as well.
        ("v1.pem", "key.pem", "good"),
        ("v1.pem", "other.pem", "[tls] cert and key"),
        ("key.pem", "key.pem", "[tls] cert"),
    ] {
        let text = format!(
            "[tls]\ncert = \"{}\"\nkey = \"{}\"\n",
            file(cert),
            file(key)
        );
        let (good, said) = checked(&text).await?;
        anyhow::ensure!(
            good == (word == "good") && said.contains(word),
            "{cert}, {key}: {said}"
        );
    }
    for (key, good) in [
        ("key.pem", true),
        ("pkcs1.pem", true),
        ("locked.pem", false),
        ("ed.pem", false),
    ] {
        let text = format!("[tls]\nrsa_key = \"{}\"\n", file(key));
        let (is_good, said) = checked(&text).await?;
        anyhow::ensure!(is_good == good, "rsa_key {key}: {said}");
    }
    let text = format!(
        "[server_tls]\nmode = \"verify_ca\"\nca = \"{}\"\n",
        file("key.pem")
    );
    let (good, said) = checked(&text).await?;
    anyhow::ensure!(!good && said.contains("server_tls"), "{said}");
    let (good, said) = checked(&format!("[tls]\nca = \"{}\"\n", file("key.pem"))).await?;
    anyhow::ensure!(!good && said.contains("[tls] ca"), "{said}");
    let listen = |path: &str| format!("[[listen]]\naddress = \"{path}\"\n");
    for (section, good) in [
        (format!("[tls]\nkeep = \"{}\"\n", file("kept.pem")), true),
        (
            format!("[tls]\nkeep = \"{}\"\n", file("none/kept.pem")),
            false,
        ),
        (listen(&file("socket")), true),
        (listen(&file("none/socket")), false),
        (listen(&file("key.pem")), false),
        (listen("*:6034"), true),
        (listen("198.51.100.7:6034"), false),
        (listen("no-such-host.invalid:6034"), false),
        (format!("[http]\nlisten = \"{}\"\n", file("http")), true),
        (
            format!("[http]\nlisten = \"{}\"\n", file("none/http")),
            false,
        ),
        (listen(&file(&"long".repeat(40))), false),
    ] {
        let (is_good, said) = checked(&section).await?;
        anyhow::ensure!(is_good == good, "{section}: {said}");
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

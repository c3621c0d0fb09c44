//! Clients that leave in the middle of a login.

use super::*;

/// Reads a packet; its payload.
pub(super) async fn packet(socket: &mut TcpStream) -> anyhow::Result<Vec<u8>> {
    let mut header = [0; 4];
    socket.read_exact(&mut header).await?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], 0]);
    let mut payload = vec![0; usize::try_from(length)?];
    socket.read_exact(&mut payload).await?;
    Ok(payload)
}

/// Connects and reads the greeting.
pub(super) async fn begins(target: &Target) -> anyhow::Result<TcpStream> {
    let Target::TcpFrom(from, to) = target else {
        anyhow::bail!("not over the network");
    };
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(*from, 0))?;
    let mut socket = socket.connect(*to).await?;
    packet(&mut socket).await.context("no greeting")?;
    Ok(socket)
}

/// Begins to log in, and leaves when the server asks for a proof, or gives one that is none.
pub(super) async fn leaves(target: &Target, user: &str, proof: &[u8]) -> anyhow::Result<()> {
    let mut socket = begins(target).await?;
    // PROTOCOL_41, SECURE_CONNECTION, PLUGIN_AUTH; no plugin is named: the login is relayed.
    let mut response = 0x0008_8200_u32.to_le_bytes().to_vec();
    response.extend_from_slice(&0x0100_0000_u32.to_le_bytes());
    response.push(45);
    response.extend_from_slice(&[0; 23]);
    response.extend_from_slice(user.as_bytes());
    // A wrong proof of a few bytes.
    response.extend_from_slice(b"\0\x04abcd");
    let mut out = u32::try_from(response.len())?.to_le_bytes()[..3].to_vec();
    out.push(1);
    out.extend_from_slice(&response);
    socket.write_all(&out).await?;
    let asked = packet(&mut socket).await.context("no question")?;
    ensure!(asked.first() == Some(&0xfe), "{}", asked.escape_ascii());
    if !proof.is_empty() {
        let header = [u8::try_from(proof.len())?, 0, 0, 3];
        socket.write_all(&[&header, proof].concat()).await?;
        let told = packet(&mut socket).await.context("no answer")?;
        let is_refused = told.starts_with(&[0xff, 0x15, 0x04]);
        ensure!(is_refused, "not 1045: {}", told.escape_ascii());
    }
    Ok(())
}

/// Clients that leave in the middle of their logins, and the monitor that only looks at greetings, use up
/// nothing of what the server allows Millrace's address. MySQL's counts could not be had to grow in a test.
pub(super) async fn leavers(release: Release, monitor: bool) -> anyhow::Result<()> {
    let family = release.family();
    let stage = Stage::start(release, Reach::Network, monitor).await?;
    stage
        .root(&[
            created(family, "any@'%'", "right", ""),
            "INSTALL SONAME 'auth_pam'".to_owned(),
            "CREATE USER asked@'%' IDENTIFIED VIA pam USING 'other'".to_owned(),
            "CREATE USER leaver@'%' IDENTIFIED VIA ed25519 USING PASSWORD('right')".to_owned(),
        ])
        .await?;
    let good = async |from: &str, direct: bool| {
        refusal(&Login::new(stage.target(from, direct)?, "any", "right")).await
    };
    // A proof of ed25519 has 64 bytes.
    for (name, proof) in [
        ("leaver", &b""[..]),
        ("asked", b""),
        ("leaver", b"x"),
        ("leaver", &[7; 63]),
    ] {
        for _ in 0..ERRORS + 2 {
            let target = stage.target(AWAY, false)?;
            let left = leaves(&target, name, proof).await;
            left.with_context(|| format!("{name}, {proof:?}"))?;
        }
    }
    // They are brought to their ends, and the monitor looks a few times.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let why = good(AWAY, false).await?;
    ensure!(why.is_none(), "shut out: {why:?}");
    // Directly, whoever leaves without a word shuts its address out.
    for _ in 0..ERRORS + 2 {
        let _ = begins(&stage.target(AWAY, true)?).await;
    }
    let why = good(AWAY, true).await;
    let is_shut_out = match &why {
        Ok(why) => why.as_ref().is_some_and(|(code, _)| *code == 1129),
        Err(_) => true,
    };
    ensure!(is_shut_out, "the server counts no errors: {why:?}");
    Ok(())
}

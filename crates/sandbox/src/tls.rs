//! Certificates for a cluster's servers: a CA of its own and one certificate for 127.0.0.1 and
//! localhost, made with the openssl program. They prove nothing outside the cluster.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tokio::process::Command;

/// Where a cluster's certificates are.
pub(crate) struct TlsFiles {
    pub(crate) ca: PathBuf,
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl TlsFiles {
    pub(crate) fn in_cluster(dir: &Path) -> TlsFiles {
        let file = |name: &str| dir.join("tls").join(name);
        TlsFiles {
            ca: file("ca.pem"),
            cert: file("server-cert.pem"),
            key: file("server-key.pem"),
        }
    }

    /// Makes the files.
    ///
    /// # Errors
    /// When openssl is missing or refuses.
    pub(crate) async fn make(&self) -> Result<()> {
        let dir = self.ca.parent().context("certificates need a folder")?;
        std::fs::create_dir_all(dir)?;
        let new_key = [
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ];
        let ca = "-x509 -days 3650 -subj /CN=millrace-sandbox-CA -keyout ca-key.pem -out ca.pem \
                  -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign";
        let request = "-subj /CN=millrace-sandbox -keyout server-key.pem -out server.csr";
        let sign = "x509 -req -in server.csr -CA ca.pem -CAkey ca-key.pem -CAcreateserial \
                    -days 3650 -extfile server.ext -out server-cert.pem";
        std::fs::write(
            dir.join("server.ext"),
            "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth\n",
        )?;
        openssl(dir, new_key.into_iter().chain(ca.split_whitespace())).await?;
        openssl(dir, new_key.into_iter().chain(request.split_whitespace())).await?;
        openssl(dir, sign.split_whitespace()).await
    }
}

async fn openssl(dir: &Path, args: impl Iterator<Item = &str>) -> Result<()> {
    let output = Command::new("openssl")
        .args(args)
        .current_dir(dir)
        .kill_on_drop(true)
        .output()
        .await
        .context("cannot run openssl: run scripts/install-deps.sh servers")?;
    if !output.status.success() {
        bail!(
            "openssl failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

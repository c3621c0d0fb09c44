//! TLS settings from the configuration: towards clients a certificate that is given or made,
//! towards servers the verify mode.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use millrace_backend::tls::{ServerTls, ServerTlsFiles, certificates, certified, private_key};
use millrace_config::{ClientCertificates, ClientTls};
use millrace_worker::{ServerKey, Shown};
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio_rustls::TlsAcceptor;

/// A certificate chain and its key.
type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// TLS towards clients, and the certificate that they are shown.
pub(crate) fn acceptor(tls: &ClientTls) -> anyhow::Result<(TlsAcceptor, Shown)> {
    let made = || match &tls.keep {
        Some(file) => kept(file),
        None => Ok(make()?.0),
    };
    acceptor_with(tls, made)
}

fn acceptor_with(
    tls: &ClientTls,
    made: impl FnOnce() -> anyhow::Result<Pair>,
) -> anyhow::Result<(TlsAcceptor, Shown)> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let (chain, key) = match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => (
            certificates(&read(cert)?).with_context(|| format!("[tls] cert {}", cert.display()))?,
            private_key(&read(key)?).with_context(|| format!("[tls] key {}", key.display()))?,
        ),
        _ => made()?,
    };
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    let builder = match &tls.ca {
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            let name = || format!("[tls] ca {}", ca.display());
            for certificate in certificates(&read(ca)?).with_context(name)? {
                roots.add(certificate).with_context(name)?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            let verifier = match tls.client_certificates {
                None | Some(ClientCertificates::Required) => verifier,
                Some(ClientCertificates::Optional) => verifier.allow_unauthenticated(),
            };
            builder.with_client_cert_verifier(verifier.build().with_context(name)?)
        }
        None => builder.with_no_client_auth(),
    };
    let shown = chain.first().context("[tls] cert: no certificate")?;
    let certificate = Shown {
        fingerprint: millrace_worker::fingerprint(shown),
        is_self_made: tls.cert.is_none(),
    };
    let shown = certified(&provider, chain, key).context("[tls] cert and key")?;
    let config = builder.with_cert_resolver(Arc::new(shown));
    Ok((TlsAcceptor::from(Arc::new(config)), certificate))
}

/// The RSA key under which clients without TLS hide their passwords.
pub(crate) fn server_key(tls: &ClientTls) -> anyhow::Result<ServerKey> {
    match &tls.rsa_key {
        Some(file) => ServerKey::from_pem(&read(file)?)
            .map_err(|what| anyhow!("[tls] rsa_key {}: {what}", file.display())),
        None => ServerKey::generate().context("cannot make an RSA key"),
    }
}

/// Loads all that is needed for TLS, and keeps nothing of it.
pub(crate) fn check(config: &millrace_config::Config) -> Vec<anyhow::Error> {
    // A file that is there is read; none is made.
    let made = || match config.tls.keep.as_deref().filter(|file| file.exists()) {
        Some(file) => kept(file),
        None => Ok(make()?.0),
    };
    let acceptor = acceptor_with(&config.tls, made).err();
    let key = config.tls.rsa_key.as_ref();
    let key = key.and_then(|_| server_key(&config.tls).err());
    let servers = towards_servers(&config.server_tls).err();
    [acceptor, key, servers].into_iter().flatten().collect()
}

/// A certificate that nobody vouches for: keeps the path private, proves nothing. And both as PEM.
fn make() -> anyhow::Result<(Pair, String)> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])
        .context("cannot make a TLS certificate")?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())
        .map_err(|error| anyhow!("cannot use the TLS key just made: {error}"))?;
    let pem = made.cert.pem() + &made.signing_key.serialize_pem();
    Ok(((vec![made.cert.der().clone()], key), pem))
}

/// The certificate that an earlier start has made, or one that is made now and written there.
fn kept(file: &Path) -> anyhow::Result<Pair> {
    let named = || format!("[tls] keep {}", file.display());
    match std::fs::read(file) {
        Ok(pem) => {
            let chain = certificates(&pem).with_context(named)?;
            Ok((chain, private_key(&pem).with_context(named)?))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let (pair, pem) = make()?;
            write_secret(file, pem.as_bytes()).with_context(named)?;
            Ok(pair)
        }
        Err(error) => Err(error).with_context(named),
    }
}

/// Writes a file that only its owner may read; it is whole or not there.
fn write_secret(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut unfinished = file.as_os_str().to_owned();
    unfinished.push(format!(".{}", std::process::id()));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let written = options.open(&unfinished).and_then(|mut writer| {
        writer.write_all(bytes)?;
        writer.sync_all()?;
        std::fs::rename(&unfinished, file)
    });
    if written.is_err() {
        // Nothing more can be done about it.
        let _ = std::fs::remove_file(&unfinished);
    }
    written
}

/// TLS towards servers.
pub(crate) fn towards_servers(tls: &millrace_config::ServerTls) -> anyhow::Result<ServerTls> {
    let file = |path: &Option<std::path::PathBuf>| path.as_deref().map(read).transpose();
    let files = ServerTlsFiles {
        ca: file(&tls.ca)?,
        cert: file(&tls.cert)?,
        key: file(&tls.key)?,
    };
    ServerTls::new(tls.mode, &files).context("[server_tls]")
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_made_certificate_is_kept_for_the_next_start() {
        let dir = std::env::temp_dir().join(format!("millrace-kept-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let file = dir.join("made.pem");
        let first = kept(&file).expect("made");
        let mode = std::fs::metadata(&file)
            .expect("written")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let second = kept(&file).expect("read");
        assert_eq!((&first.0, &first.1), (&second.0, &second.1));
        std::fs::write(&file, "broken").expect("written");
        assert!(
            kept(&file).is_err(),
            "it is not made anew over another file"
        );
        assert!(kept(&dir.join("no/such/folder.pem")).is_err());
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}

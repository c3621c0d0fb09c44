//! TLS settings from the configuration: towards clients a certificate that is given or made,
//! towards servers the verify mode.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use millrace_backend::tls::{ServerTls, ServerTlsFiles, ServerTlsMode, certificates, private_key};
use millrace_config::{ClientCertificates, ClientTls, ServerTlsMode as Mode};
use millrace_session::ServerKey;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio_rustls::TlsAcceptor;

/// TLS towards clients.
pub(crate) fn acceptor(tls: &ClientTls) -> anyhow::Result<TlsAcceptor> {
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
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = match tls.client_certificates {
                ClientCertificates::Required => verifier,
                ClientCertificates::Optional => verifier.allow_unauthenticated(),
            };
            builder.with_client_cert_verifier(verifier.build()?)
        }
        None => builder.with_no_client_auth(),
    };
    let config = builder
        .with_single_cert(chain, key)
        .context("[tls] cert and key")?;
    Ok(TlsAcceptor::from(Arc::new(config)))
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
    let acceptor = acceptor(&config.tls).err();
    let key = config.tls.rsa_key.as_ref();
    let key = key.and_then(|_| server_key(&config.tls).err());
    let servers = towards_servers(&config.server_tls).err();
    [acceptor, key, servers].into_iter().flatten().collect()
}

/// A certificate that nobody vouches for: keeps the path private, proves nothing.
fn made() -> anyhow::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])
        .context("cannot make a TLS certificate")?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())
        .map_err(|error| anyhow!("cannot use the TLS key just made: {error}"))?;
    Ok((vec![made.cert.der().clone()], key))
}

/// TLS towards servers.
pub(crate) fn towards_servers(tls: &millrace_config::ServerTls) -> anyhow::Result<ServerTls> {
    let file = |path: &Option<std::path::PathBuf>| path.as_deref().map(read).transpose();
    let files = ServerTlsFiles {
        ca: file(&tls.ca)?,
        cert: file(&tls.cert)?,
        key: file(&tls.key)?,
    };
    let mode = match tls.mode {
        Mode::Disabled => ServerTlsMode::Disabled,
        Mode::AsClient => ServerTlsMode::AsClient,
        Mode::Preferred => ServerTlsMode::Preferred,
        Mode::Required => ServerTlsMode::Required,
        Mode::VerifyCa => ServerTlsMode::VerifyCa,
        Mode::VerifyIdentity => ServerTlsMode::VerifyIdentity,
    };
    ServerTls::new(mode, &files).context("[server_tls]")
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

//! TLS settings from the configuration: towards clients a certificate that is given or made,
//! towards servers the verify mode.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use millrace_backend::tls::{ServerTls, ServerTlsFiles, ServerTlsMode, certificates, private_key};
use millrace_config::{ClientCertificates, ClientTls, ServerTlsMode as Mode};
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio_rustls::TlsAcceptor;

/// TLS towards clients.
pub(crate) fn acceptor(tls: &ClientTls) -> anyhow::Result<TlsAcceptor> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let (chain, key) = match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => (certificates(&read(cert)?)?, private_key(&read(key)?)?),
        _ => made()?,
    };
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?;
    let builder = match &tls.ca {
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(&read(ca)?)? {
                roots.add(certificate)?;
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
    let config = builder.with_single_cert(chain, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
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
    Ok(ServerTls::new(mode, &files)?)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

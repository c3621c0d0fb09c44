//! TLS towards the servers, with the verify modes of MySQL's own clients.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::BufReader;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, InconsistentKeys, RootCertStore,
    SignatureScheme,
};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tracing::warn;

use crate::error::BackendError;
use crate::stream::Plain;

/// TLS that could not be had is tried again after this: the server counts each try as a failed connection.
const TRIED_AGAIN: Duration = Duration::from_secs(60);

/// When server connections are encrypted and what is checked; names as in MySQL's clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServerTlsMode {
    /// Never.
    Disabled,
    /// Where the client's own connection is: the path is as private as without Millrace.
    #[default]
    AsClient,
    /// Where the server offers it; nothing is verified.
    Preferred,
    /// Always; nothing is verified.
    Required,
    /// Always; the certificate must come from the CA.
    VerifyCa,
    /// Always; the certificate must come from the CA and name the host.
    VerifyIdentity,
}

/// TLS towards servers, ready to use.
pub struct ServerTls {
    /// The mode.
    pub mode: ServerTlsMode,
    connector: TlsConnector,
    /// Shows no certificate; none where there is none to show.
    bare: Option<TlsConnector>,
    /// What accounts ask of certificates is known, and judged by the clients' own.
    accounts_are_known: AtomicBool,
    /// Servers whose TLS cannot be had, and since when.
    unusable: Mutex<HashMap<Box<str>, Instant>>,
}

/// For whom a connection is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    /// Millrace: it shows its certificate.
    Own,
    /// A client's account: the certificate is shown only where what the account asks of one was
    /// judged by the client's.
    Client,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls")
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// PEM texts for [`ServerTls::new`].
#[derive(Debug, Clone, Default)]
pub struct ServerTlsFiles {
    /// The CA's certificates.
    pub ca: Option<Vec<u8>>,
    /// A client certificate chain.
    pub cert: Option<Vec<u8>>,
    /// Its key.
    pub key: Option<Vec<u8>>,
}

impl ServerTls {
    /// Prepares the mode. The verifying modes need `files.ca`.
    pub fn new(mode: ServerTlsMode, files: &ServerTlsFiles) -> Result<Self, BackendError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = Verifier::new(mode, files.ca.as_deref(), &provider)?;
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(tls_error)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let bare = builder.clone().with_no_client_auth();
        let bare = TlsConnector::from(Arc::new(bare));
        let (connector, bare) = match (&files.cert, &files.key) {
            (Some(cert), Some(key)) => {
                let shown = certified(&provider, certificates(cert)?, private_key(key)?)?;
                let config = builder.with_client_cert_resolver(Arc::new(shown));
                (TlsConnector::from(Arc::new(config)), Some(bare))
            }
            _ => (bare, None),
        };
        Ok(ServerTls {
            mode,
            connector,
            bare,
            accounts_are_known: AtomicBool::new(false),
            unusable: Mutex::default(),
        })
    }

    /// Whether the server is connected to without TLS, because it could not be had a moment ago and `preferred` allows that.
    pub(crate) fn is_done_without(&self, server: &impl Display) -> bool {
        if self.mode != ServerTlsMode::Preferred {
            return false;
        }
        let unusable = self.unusable.lock().unwrap_or_else(PoisonError::into_inner);
        let since = unusable.get(server.to_string().as_str());
        since.is_some_and(|since| since.elapsed() < TRIED_AGAIN)
    }

    /// The server offers TLS, and none that can be had: with `preferred` it is connected to without, as the servers' own
    /// clients do.
    pub(crate) fn cannot_be_had(&self, server: &impl Display, why: &str) {
        if self.mode != ServerTlsMode::Preferred {
            return;
        }
        let mut unusable = self.unusable.lock().unwrap_or_else(PoisonError::into_inner);
        let name = server.to_string().into();
        if unusable.insert(name, Instant::now()).is_none() {
            warn!(
                %server,
                "connected to without TLS (server_tls.mode = preferred): {why}"
            );
        }
    }

    /// There is a certificate, and it is not known whether it may be shown for clients' accounts.
    pub fn hides_certificate(&self) -> bool {
        self.bare.is_some() && !self.accounts_are_known.load(Ordering::Relaxed)
    }

    /// What the accounts ask of clients decides how the server is connected to for one of them, and it is not known whether
    /// they can be read.
    pub fn depends_on_accounts(&self) -> bool {
        let is_own = !matches!(self.mode, ServerTlsMode::Disabled | ServerTlsMode::AsClient);
        (is_own || self.bare.is_some()) && !self.accounts_are_known.load(Ordering::Relaxed)
    }

    /// Whether a connection may be encrypted for a client that is not: `REQUIRE SSL` would be met by it, which then
    /// somebody must have judged by the client's own.
    pub fn may_encrypt(&self, whose: For, client_is: bool) -> bool {
        client_is || whose == For::Own || self.accounts_are_known.load(Ordering::Relaxed)
    }

    /// Whether what accounts ask of certificates can be read, and so is judged.
    pub fn know_accounts(&self, known: bool) {
        self.accounts_are_known.store(known, Ordering::Relaxed);
    }

    /// The TLS handshake.
    pub async fn connect(
        &self,
        host: &str,
        plain: Plain,
        whose: For,
    ) -> Result<TlsStream<Plain>, BackendError> {
        // Certificates have no dot at the end, which is the resolver's.
        let host = host.strip_suffix('.').unwrap_or(host);
        let name = match ServerName::try_from(host.to_owned()) {
            Ok(name) => name,
            Err(error) if self.mode == ServerTlsMode::VerifyIdentity => {
                return Err(tls_error(error));
            }
            // Nobody looks at it.
            Err(_) => ServerName::try_from("localhost").map_err(tls_error)?,
        };
        let connector = match &self.bare {
            Some(bare) if whose == For::Client && self.hides_certificate() => bare,
            _ => &self.connector,
        };
        let connecting = connector.connect(name, plain);
        connecting.await.map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData | std::io::ErrorKind::InvalidInput => {
                refused(&error).unwrap_or_else(|| tls_error(error))
            }
            // The server went away meanwhile: it may be back in a moment.
            _ => BackendError::Io(error),
        })
    }
}

/// What stands in the way where the library's own words do not say what to do about it.
fn refused(error: &std::io::Error) -> Option<BackendError> {
    use rustls::AlertDescription::{HandshakeFailure, ProtocolVersion};
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let what = match error {
        rustls::Error::AlertReceived(HandshakeFailure) => {
            "the server has no cipher suite in common with Millrace, which needs ECDHE with AES-GCM or ChaCha20 \
             (TLS 1.2), or TLS 1.3; finite-field DHE it does not have. Look at ssl_cipher and tls_version of the \
             server, or set server_tls.mode to \"disabled\""
        }
        rustls::Error::AlertReceived(ProtocolVersion) | rustls::Error::PeerIncompatible(_) => {
            "the server has no TLS 1.2 or 1.3 that Millrace can use. Look at tls_version of the server, or set \
             server_tls.mode to \"disabled\""
        }
        error if is_version_1(error) => {
            "the server's certificate is of X.509 version 1, which cannot be verified. Give the server one of \
             version 3 (openssl x509 -req with -extfile), or set server_tls.mode to \"required\", which \
             verifies nothing"
        }
        _ => return None,
    };
    Some(BackendError::Tls(format!("{error}: {what}")))
}

/// The library says so only in words.
fn is_version_1(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidCertificate(_))
        && format!("{error:?}").contains("UnsupportedCertVersion")
}

fn tls_error(error: impl std::fmt::Display) -> BackendError {
    BackendError::Tls(error.to_string())
}

/// A certificate of Millrace's own and its key, which must belong together. One of X.509 version 1 is shown as well, as
/// the servers show theirs; the library by itself refuses to read it.
///
/// # Errors
/// When the key cannot be read, or is another certificate's.
pub fn certified(
    provider: &CryptoProvider,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<SingleCertAndKey, BackendError> {
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(tls_error)?;
    let shown = CertifiedKey::new(chain, key);
    let is_of_version_1 = match shown.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => false,
        Err(error) if is_version_1(&error) => true,
        Err(error) => return Err(tls_error(error)),
    };
    if is_of_version_1
        && let Some(public) = shown.key.public_key()
        && !shown.cert.first().is_some_and(|certificate| {
            let mut parts = certificate.windows(public.len());
            parts.any(|part| part == public.as_ref())
        })
    {
        return Err(tls_error(rustls::Error::from(
            InconsistentKeys::KeyMismatch,
        )));
    }
    Ok(SingleCertAndKey::from(shown))
}

/// A PEM file's certificates.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, BackendError> {
    CertificateDer::pem_reader_iter(BufReader::new(pem))
        .collect::<Result<_, _>>()
        .map_err(|error| BackendError::Tls(format!("not a PEM certificate: {error}")))
}

/// A PEM file's private key.
pub fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, BackendError> {
    PrivateKeyDer::from_pem_slice(pem)
        .map_err(|error| BackendError::Tls(format!("not a PEM private key: {error}")))
}

/// The DER inside a PEM block of the given label.
pub fn pem_to_der(pem: &[u8], label: &str) -> Option<Vec<u8>> {
    use rustls::pki_types::SubjectPublicKeyInfoDer;
    debug_assert_eq!(label, "PUBLIC KEY");
    SubjectPublicKeyInfoDer::from_pem_slice(pem)
        .ok()
        .map(|der| der.as_ref().to_vec())
}

/// Checks as much as the mode asks for.
#[derive(Debug)]
struct Verifier {
    inner: Option<Arc<WebPkiServerVerifier>>,
    check_name: bool,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn new(
        mode: ServerTlsMode,
        ca: Option<&[u8]>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, BackendError> {
        let verifies = matches!(
            mode,
            ServerTlsMode::VerifyCa | ServerTlsMode::VerifyIdentity
        );
        let inner = if verifies {
            let pem = ca.ok_or_else(|| {
                BackendError::Tls(
                    "server_tls.ca is needed for verify_ca and verify_identity".into(),
                )
            })?;
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem)? {
                roots.add(certificate).map_err(tls_error)?;
            }
            let verifier =
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                    .build()
                    .map_err(tls_error)?;
            Some(verifier)
        } else {
            None
        };
        Ok(Verifier {
            inner,
            check_name: mode == ServerTlsMode::VerifyIdentity,
            provider: provider.clone(),
        })
    }
}

impl Verifier {
    /// A certificate of X.509 version 1 has a key that the library does not read. Where certificates are not
    /// verified that takes nothing away: whoever is in the way could show one of its own.
    fn unless_unverified(
        &self,
        verified: Result<HandshakeSignatureValid, rustls::Error>,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        match verified {
            Err(error) if self.inner.is_none() && is_version_1(&error) => {
                Ok(HandshakeSignatureValid::assertion())
            }
            verified => verified,
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(inner) = &self.inner else {
            return Ok(ServerCertVerified::assertion());
        };
        let verified =
            inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // VERIFY_CA checks the chain and not the name, as in MySQL's clients.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.check_name => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        let verified = verify_tls12_signature(message, certificate, signature, algorithms);
        self.unless_unverified(verified)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        let verified = verify_tls13_signature(message, certificate, signature, algorithms);
        self.unless_unverified(verified)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Gives TLS towards a client what was read of it with the packet before.
pub fn take_in(tls: &mut rustls::ServerConnection, mut bytes: &[u8]) {
    while !bytes.is_empty() && tls.read_tls(&mut bytes).is_ok_and(|read| read > 0) {
        if tls.process_new_packets().is_err() {
            // The handshake meets the same error and tells it.
            return;
        }
    }
}

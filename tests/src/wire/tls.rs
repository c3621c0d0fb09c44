//! TLS as a client that accepts any certificate: what is tested is the channel, not the name.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;

use super::connection::Certificate;
use super::frame::Io;

#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A stream whose first write takes bytes along that go ahead of it.
struct Ahead {
    io: Box<dyn Io>,
    bytes: Vec<u8>,
    joined: bool,
}

impl AsyncRead for Ahead {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Ahead {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.bytes.is_empty() {
            return Pin::new(&mut this.io).poll_write(cx, buf);
        }
        if !std::mem::replace(&mut this.joined, true) {
            this.bytes.extend_from_slice(buf);
        }
        while !this.bytes.is_empty() {
            let written = ready!(Pin::new(&mut this.io).poll_write(cx, &this.bytes))?;
            this.bytes.drain(..written);
        }
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

/// Upgrades a stream on which an SSL request was just sent, or is sent now: `ahead` goes out in one
/// write with the first of TLS.
pub(crate) async fn upgrade(
    io: Box<dyn Io>,
    ahead: Vec<u8>,
    certificate: Option<&Certificate>,
) -> io::Result<Box<dyn Io>> {
    let io = Ahead {
        io,
        bytes: ahead,
        joined: false,
    };
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)));
    let config = match certificate {
        Some(own) => {
            let cert = CertificateDer::from_pem_file(&own.cert).map_err(io::Error::other)?;
            let key = PrivateKeyDer::from_pem_file(&own.key).map_err(io::Error::other)?;
            let with = builder.with_client_auth_cert(vec![cert], key);
            with.map_err(io::Error::other)?
        }
        None => builder.with_no_client_auth(),
    };
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, io)
        .await?;
    Ok(Box::new(stream))
}

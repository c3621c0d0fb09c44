//! The RSA key of the process, with which clients without TLS hide their password. Judges no login.

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rsa::{KeySize, OAEP_SHA1_MGF1SHA1, OaepPrivateDecryptingKey, PrivateDecryptingKey};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use zeroize::Zeroizing;

/// The RSA key with which clients without TLS hide their password.
pub struct ServerKey {
    private: OaepPrivateDecryptingKey,
    public_pem: Vec<u8>,
}

impl std::fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerKey(…)")
    }
}

impl ServerKey {
    /// Makes a key of 2048 bits; takes a good part of a second.
    pub fn generate() -> Result<Self, aws_lc_rs::error::Unspecified> {
        let key = PrivateDecryptingKey::generate(KeySize::Rsa2048)?;
        let der = AsDer::<PublicKeyX509Der<'_>>::as_der(&key.public_key())?;
        let public_pem = pem("PUBLIC KEY", der.as_ref());
        Ok(ServerKey {
            private: OaepPrivateDecryptingKey::new(key)?,
            public_pem,
        })
    }

    /// The servers' own key, a private one in PEM: clients that were given the public one take no other.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn from_pem(text: &[u8]) -> Result<Self, String> {
        let key = PrivateKeyDer::from_pem_slice(text)
            .map_err(|error| format!("not a private key in PEM: {error}"))?;
        let pkcs8 = match &key {
            PrivateKeyDer::Pkcs8(key) => Zeroizing::new(key.secret_pkcs8_der().to_vec()),
            PrivateKeyDer::Pkcs1(key) => in_pkcs8(key.secret_pkcs1_der()),
            _ => return Err("not an RSA key".to_owned()),
        };
        let unusable = |_| "not an RSA key of 2048 to 8192 bits".to_owned();
        let key = PrivateDecryptingKey::from_pkcs8(&pkcs8).map_err(|_| unusable(()))?;
        let public = key.public_key();
        let der = AsDer::<PublicKeyX509Der<'_>>::as_der(&public).map_err(|_| unusable(()))?;
        let public_pem = pem("PUBLIC KEY", der.as_ref());
        Ok(ServerKey {
            private: OaepPrivateDecryptingKey::new(key).map_err(|_| unusable(()))?,
            public_pem,
        })
    }

    /// What a client is sent when it asks for the key.
    pub fn public_pem(&self) -> &[u8] {
        &self.public_pem
    }

    /// What the client encrypted, or none where it is not for this key.
    pub fn decrypt(&self, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let mut clear = Zeroizing::new(vec![0; self.private.min_output_size()]);
        let length = self
            .private
            .decrypt(&OAEP_SHA1_MGF1SHA1, sealed, &mut clear, None)
            .ok()?
            .len();
        clear.truncate(length);
        Some(clear)
    }
}

/// An RSA key as older tools write it (RFC 8017), in the frame that newer ones give it (RFC 5208).
fn in_pkcs8(pkcs1: &[u8]) -> Zeroizing<Vec<u8>> {
    /// Version 0; the algorithm rsaEncryption with no parameters.
    const HEAD: [u8; 18] = [
        2, 1, 0, 0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 5, 0,
    ];
    let framed = |tag: u8, content: &[u8]| {
        let length = u32::try_from(content.len())
            .unwrap_or(u32::MAX)
            .to_be_bytes();
        let mut der = Zeroizing::new(Vec::with_capacity(content.len() + 6));
        let short = length.iter().position(|byte| *byte != 0).unwrap_or(3);
        der.push(tag);
        if content.len() >= 128 {
            der.push(0x80 | (4 - short) as u8);
        }
        der.extend_from_slice(&length[short..]);
        der.extend_from_slice(content);
        der
    };
    let key = framed(4, pkcs1);
    let mut content = Zeroizing::new(HEAD.to_vec());
    content.extend_from_slice(&key);
    framed(0x30, &content)
}

fn pem(label: &str, der: &[u8]) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = format!("-----BEGIN {label}-----\n").into_bytes();
    for line in der.chunks(48) {
        for group in line.chunks(3) {
            let bits = group
                .iter()
                .fold(0u32, |bits, byte| bits << 8 | u32::from(*byte))
                << (8 * (3 - group.len()));
            for digit in 0..4 {
                text.push(if digit <= group.len() {
                    ALPHABET[(bits >> (18 - 6 * digit) & 63) as usize]
                } else {
                    b'='
                });
            }
        }
        text.push(b'\n');
    }
    text.extend_from_slice(format!("-----END {label}-----\n").as_bytes());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pem_pads() {
        assert_eq!(
            String::from_utf8_lossy(&pem("X", b"ab")),
            "-----BEGIN X-----\nYWI=\n-----END X-----\n"
        );
    }
}

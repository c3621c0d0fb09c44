//! Answers to the servers' authentication plugins. It owns the arithmetic, never the exchange.

use std::io;

use aws_lc_rs::rsa::{OAEP_SHA1_MGF1SHA1, OaepPublicEncryptingKey, PublicEncryptingKey};
use ed25519_dalek::VerifyingKey;
use ed25519_dalek::hazmat::{ExpandedSecretKey, raw_sign};
use sha1::{Digest, Sha1};
use sha2::{Sha256, Sha512};

/// The first answer to `plugin`'s scramble; `secure` says that the channel hides a password.
pub(crate) fn first_answer(
    plugin: &str,
    password: &[u8],
    scramble: &[u8],
    secure: bool,
) -> Vec<u8> {
    match plugin {
        "mysql_native_password" => native(password, scramble),
        "caching_sha2_password" => caching_sha2(password, scramble),
        "sha256_password" if password.is_empty() => vec![0],
        "sha256_password" if secure => with_nul(password),
        "sha256_password" => vec![1],
        "client_ed25519" => ed25519(password, scramble),
        "mysql_clear_password" => with_nul(password),
        name if is_made_up(name) => password.to_vec(),
        _ => Vec::new(),
    }
}

/// Plugins that need a device or a service of their own: what their clients say here is made up, for a scripted server.
pub(crate) fn is_made_up(plugin: &str) -> bool {
    matches!(
        plugin,
        "authentication_ldap_sasl_client"
            | "authentication_kerberos_client"
            | "authentication_webauthn_client"
    )
}

pub(crate) fn with_nul(password: &[u8]) -> Vec<u8> {
    let mut out = password.to_vec();
    out.push(0);
    out
}

fn xor(left: &[u8], right: &[u8]) -> Vec<u8> {
    left.iter().zip(right).map(|(a, b)| a ^ b).collect()
}

fn native(password: &[u8], scramble: &[u8]) -> Vec<u8> {
    if password.is_empty() {
        return Vec::new();
    }
    let once = Sha1::digest(password);
    let twice = Sha1::digest(once);
    let mixed = Sha1::new()
        .chain_update(&scramble[..scramble.len().min(20)])
        .chain_update(twice)
        .finalize();
    xor(&once, &mixed)
}

fn caching_sha2(password: &[u8], scramble: &[u8]) -> Vec<u8> {
    if password.is_empty() {
        return Vec::new();
    }
    let once = Sha256::digest(password);
    let twice = Sha256::digest(once);
    let mixed = Sha256::new()
        .chain_update(twice)
        .chain_update(&scramble[..scramble.len().min(20)])
        .finalize();
    xor(&once, &mixed)
}

/// MariaDB's plugin signs the scramble with the key that SHA-512 of the whole password expands to.
fn ed25519(password: &[u8], scramble: &[u8]) -> Vec<u8> {
    let digest: [u8; 64] = Sha512::digest(password).into();
    let secret = ExpandedSecretKey::from_bytes(&digest);
    let public = VerifyingKey::from(&secret);
    raw_sign::<Sha512>(&secret, scramble, &public)
        .to_bytes()
        .to_vec()
}

/// The password, mixed with the scramble and encrypted with the server's public key (PEM).
pub(crate) fn rsa(password: &[u8], scramble: &[u8], pem: &[u8]) -> io::Result<Vec<u8>> {
    let der = der_of(pem).ok_or_else(|| io::Error::other("not a PEM public key"))?;
    let plain = with_nul(password);
    let mixed: Vec<u8> = plain
        .iter()
        .zip(scramble.iter().cycle())
        .map(|(a, b)| a ^ b)
        .collect();
    let key = PublicEncryptingKey::from_der(&der).map_err(|e| io::Error::other(e.to_string()))?;
    let key =
        OaepPublicEncryptingKey::new(key).map_err(|_| io::Error::other("unusable RSA key"))?;
    let mut out = vec![0; key.ciphertext_size()];
    let sealed = key
        .encrypt(&OAEP_SHA1_MGF1SHA1, &mixed, &mut out, None)
        .map_err(|_| io::Error::other("RSA encryption failed"))?;
    Ok(sealed.to_vec())
}

fn der_of(pem: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(pem).ok()?;
    let begin = "-----BEGIN PUBLIC KEY-----";
    let body = text
        .split_once(begin)?
        .1
        .split_once("-----END PUBLIC KEY-----")?
        .0;
    base64(body)
}

/// Standard base64; white space is skipped.
fn base64(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let (mut acc, mut bits) = (0_u32, 0);
    for c in text.bytes().filter(|c| !c.is_ascii_whitespace()) {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'=' => break,
            _ => return None,
        };
        acc = (acc << 6 | u32::from(value)) & 0xff_ffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((acc >> bits) as u8);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_with_padding_and_line_ends() {
        assert_eq!(base64("bWls\nbHJhY2U=").as_deref(), Some(&b"millrace"[..]));
        assert_eq!(base64("!"), None);
    }

    #[test]
    fn empty_passwords_send_nothing() {
        assert!(first_answer("mysql_native_password", b"", &[1; 20], false).is_empty());
        assert!(first_answer("caching_sha2_password", b"", &[1; 20], false).is_empty());
    }
}

//! Scrambles and signatures of the authentication plugins, for both sides. Makes no
//! nonce, keeps no password; comparisons take constant time.

use ed25519_dalek::hazmat::{ExpandedSecretKey, raw_sign};
use ed25519_dalek::{Signature, VerifyingKey};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};
use zeroize::Zeroize;

/// caching_sha2_password, server to client: the cached digest matched, OK follows.
pub const FAST_OK: u8 = 3;
/// caching_sha2_password, server to client: send the password itself.
pub const FULL_AUTH: u8 = 4;
/// caching_sha2_password, client to server: send the RSA public key.
pub const REQUEST_PUBLIC_KEY: u8 = 2;
/// sha256_password, client to server: send the RSA public key.
pub const SHA256_REQUEST_PUBLIC_KEY: u8 = 1;

/// An authentication plugin, by its client-side name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Plugin {
    NativePassword,
    CachingSha2,
    Sha256Password,
    /// MariaDB's `client_ed25519`.
    Ed25519,
    ClearPassword,
    /// MariaDB's and PAM's questions and answers.
    Dialog,
    /// Of 4.0 and before.
    OldPassword,
    Other(String),
}

impl Plugin {
    pub fn from_name(name: &str) -> Self {
        match name {
            "mysql_native_password" => Self::NativePassword,
            "caching_sha2_password" => Self::CachingSha2,
            "sha256_password" => Self::Sha256Password,
            "client_ed25519" => Self::Ed25519,
            "mysql_clear_password" => Self::ClearPassword,
            "dialog" => Self::Dialog,
            "mysql_old_password" => Self::OldPassword,
            other => Self::Other(other.to_owned()),
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Self::NativePassword => "mysql_native_password",
            Self::CachingSha2 => "caching_sha2_password",
            Self::Sha256Password => "sha256_password",
            Self::Ed25519 => "client_ed25519",
            Self::ClearPassword => "mysql_clear_password",
            Self::Dialog => "dialog",
            Self::OldPassword => "mysql_old_password",
            Self::Other(name) => name,
        }
    }
}

/// The response of mysql_native_password:
/// `SHA1(password) XOR SHA1(nonce + SHA1(SHA1(password)))` (MySQL manual, "Native
/// Authentication"). For an empty password the response is empty instead; that is the
/// caller's case.
pub fn scramble_native(password: &[u8], nonce: &[u8; 20]) -> [u8; 20] {
    let mut stage1: [u8; 20] = Sha1::digest(password).into();
    let response = native_from_stage1(&stage1, nonce);
    stage1.zeroize();
    response
}

/// [`scramble_native`] from `SHA1(password)`.
pub fn native_from_stage1(stage1: &[u8; 20], nonce: &[u8; 20]) -> [u8; 20] {
    let stage2: [u8; 20] = Sha1::digest(stage1).into();
    let mut response = native_mask(nonce, &stage2);
    xor(&mut response, stage1);
    response
}

/// Checks a response against `stage2`, that is `SHA1(SHA1(password))`, the account's
/// stored hash. Returns `SHA1(password)`, with which Millrace can log in elsewhere.
pub fn verify_native(response: &[u8], nonce: &[u8; 20], stage2: &[u8; 20]) -> Option<[u8; 20]> {
    let mut stage1: [u8; 20] = response.try_into().ok()?;
    xor(&mut stage1, &native_mask(nonce, stage2));
    let again: [u8; 20] = Sha1::digest(stage1).into();
    same(&again, stage2).then_some(stage1)
}

fn native_mask(nonce: &[u8; 20], stage2: &[u8; 20]) -> [u8; 20] {
    Sha1::new()
        .chain_update(nonce)
        .chain_update(stage2)
        .finalize()
        .into()
}

/// The fast response of caching_sha2_password:
/// `SHA256(password) XOR SHA256(SHA256(SHA256(password)) + nonce)` (MySQL manual,
/// "Caching_sha2_password information"). For an empty password the response is empty.
pub fn scramble_sha2(password: &[u8], nonce: &[u8; 20]) -> [u8; 32] {
    let mut stage1: [u8; 32] = Sha256::digest(password).into();
    let response = sha2_from_stage1(&stage1, nonce);
    stage1.zeroize();
    response
}

/// [`scramble_sha2`] from `SHA256(password)`.
pub fn sha2_from_stage1(stage1: &[u8; 32], nonce: &[u8; 20]) -> [u8; 32] {
    let double: [u8; 32] = Sha256::digest(stage1).into();
    let mut response = sha2_mask(nonce, &double);
    xor(&mut response, stage1);
    response
}

/// Checks a response against `double_hash`, that is `SHA256(SHA256(password))`, and
/// returns `SHA256(password)`.
pub fn verify_sha2(response: &[u8], nonce: &[u8; 20], double_hash: &[u8; 32]) -> Option<[u8; 32]> {
    let mut stage1: [u8; 32] = response.try_into().ok()?;
    xor(&mut stage1, &sha2_mask(nonce, double_hash));
    let again: [u8; 32] = Sha256::digest(stage1).into();
    same(&again, double_hash).then_some(stage1)
}

fn sha2_mask(nonce: &[u8; 20], double: &[u8; 32]) -> [u8; 32] {
    Sha256::new()
        .chain_update(double)
        .chain_update(nonce)
        .finalize()
        .into()
}

/// `SHA1(SHA1(password))`, what mysql_native_password stores.
pub fn native_double_hash(password: &[u8]) -> [u8; 20] {
    let mut stage1: [u8; 20] = Sha1::digest(password).into();
    let double = Sha1::digest(stage1).into();
    stage1.zeroize();
    double
}

/// `SHA1(SHA1(password))` from `SHA1(password)`.
pub fn native_hash(stage1: &[u8]) -> [u8; 20] {
    Sha1::digest(stage1).into()
}

/// The SHA-256 fingerprint of a certificate in DER.
pub fn fingerprint(certificate: &[u8]) -> [u8; 32] {
    Sha256::digest(certificate).into()
}

/// What a login's OK says, as its `info`, to a client that knows nobody who vouches for the server's certificate:
/// a hash of what the plugin keeps of the password, the nonce and the certificate's SHA-256 fingerprint. Only who knows the
/// password can say it, and only of the certificate that the client sees (MariaDB from 11.4 on;
/// Connector/C's `run_plugin_auth`).
pub fn vouch(kept: &[u8], nonce: &[u8; 20], fingerprint: &[u8; 32]) -> Vec<u8> {
    let hash = Sha256::new()
        .chain_update(kept)
        .chain_update(nonce)
        .chain_update(fingerprint)
        .finalize();
    let mut info = vec![1];
    for byte in hash {
        info.extend_from_slice(format!("{byte:02X}").as_bytes());
    }
    info
}

/// `SHA256(SHA256(password))`, what caching_sha2_password keeps in its cache.
pub fn sha2_double_hash(password: &[u8]) -> [u8; 32] {
    let mut stage1: [u8; 32] = Sha256::digest(password).into();
    let double = Sha256::digest(stage1).into();
    stage1.zeroize();
    double
}

/// Signs `nonce` as MariaDB's client_ed25519 does: Ed25519 with `SHA512(password)` as
/// the expanded secret key (MariaDB manual, "Authentication Plugin - ed25519").
pub fn sign_ed25519(password: &[u8], nonce: &[u8; 32]) -> [u8; 64] {
    let secret = ed25519_secret(password);
    let public = VerifyingKey::from(&secret);
    raw_sign::<Sha512>(&secret, nonce, &public).to_bytes()
}

/// The public key of a password, what the ed25519 plugin stores (in base64).
pub fn ed25519_public(password: &[u8]) -> [u8; 32] {
    VerifyingKey::from(&ed25519_secret(password)).to_bytes()
}

/// Checks a signature of [`sign_ed25519`] against the account's public key.
pub fn verify_ed25519(signature: &[u8], nonce: &[u8; 32], public: &[u8; 32]) -> bool {
    let (Ok(signature), Ok(public)) = (
        Signature::from_slice(signature),
        VerifyingKey::from_bytes(public),
    ) else {
        return false;
    };
    public.verify_strict(nonce, &signature).is_ok()
}

fn ed25519_secret(password: &[u8]) -> ExpandedSecretKey {
    let mut hash: [u8; 64] = Sha512::digest(password).into();
    let secret = ExpandedSecretKey::from_bytes(&hash);
    hash.zeroize();
    secret
}

/// Hides (or shows again) a password, its final zero included, by XOR with the
/// repeated nonce: what sha256_password and caching_sha2_password encrypt with RSA.
/// Does nothing where `nonce` is empty.
pub fn xor_password(password_with_nul: &mut [u8], nonce: &[u8]) {
    for (byte, mask) in password_with_nul.iter_mut().zip(nonce.iter().cycle()) {
        *byte ^= mask;
    }
}

fn xor(into: &mut [u8], mask: &[u8]) {
    for (byte, mask) in into.iter_mut().zip(mask) {
        *byte ^= mask;
    }
}

/// Whether `a` and `b` are equal, in time that depends on their lengths only.
pub fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let differing = a.iter().zip(b).fold(0, |acc, (a, b)| acc | (a ^ b));
    std::hint::black_box(differing) == 0
}

//! Nonces for logins: what a client proves its password with.

/// 20 random bytes, none of them zero, because clients take a zero for the end.
pub fn random_nonce() -> [u8; 20] {
    let mut nonce = [0; 20];
    if aws_lc_rs::rand::fill(&mut nonce).is_err() {
        // The generator cannot fail on a running system; a known nonce would be no proof.
        std::process::abort();
    }
    nonce.map(|byte| byte % 93 + 33)
}

//! What an entry is found by: all that changes the bytes of an answer, one after the other. Compared whole, so
//! that no hash decides which bytes a client gets.

/// Puts a key together. Parts have their length ahead, so that two lists of parts never give one key.
///
/// It must hold: the account and the version of the rights that the session logged in with, its active roles,
/// the database, the canonical session state (a hash of it that is not guessable, or the state), the protocol with
/// the types of parameters, the class of capabilities, and the text or the statement with its parameters.
#[derive(Debug, Default)]
pub struct KeyBuilder {
    bytes: Vec<u8>,
}

impl KeyBuilder {
    /// An empty key, in memory that is used again.
    pub fn clear(&mut self) -> &mut Self {
        self.bytes.clear();
        self
    }

    /// Adds a part.
    pub fn part(&mut self, part: &[u8]) -> &mut Self {
        self.bytes
            .extend_from_slice(&(part.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(part);
        self
    }

    /// Adds a number.
    pub fn number(&mut self, number: u64) -> &mut Self {
        self.part(&number.to_le_bytes())
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.bytes
    }
}

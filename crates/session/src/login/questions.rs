//! What a client can be asked for at its login, by what it has shown and by its account: not each knows every
//! plugin, and some break off when they are asked.

use std::hash::{DefaultHasher, Hash, Hasher};

use millrace_backend::user_rows::{UserRow, UserRows};
use millrace_protocol::Capabilities;
use millrace_protocol::auth::Plugin;
use millrace_worker::Asked;

use crate::login::credentials::Credentials;
use crate::login::exchange::LoginExchange;

/// Clients that break off rather than send their password under an RSA key, unless told to.
const REFUSE_RSA: [&[u8]; 3] = [b"libmysql", b"MySQL Connector/J", b"MySqlConnector"];

/// What a client is asked for that it may not have.
#[derive(Debug, Clone, Copy, Hash)]
pub(super) enum Question {
    /// An answer by caching_sha2_password.
    Plugin,
    /// The password itself.
    Password,
}

impl LoginExchange<'_> {
    /// Whether a client that shows no password is one whom the account's plugin asks for something else: PAM has it
    /// type in its answers, Kerberos knows it by a ticket.
    pub(super) async fn is_asked_otherwise(&self, credentials: &Credentials) -> bool {
        if !self.capabilities.contains(Capabilities::PLUGIN_AUTH) {
            return false;
        }
        let Some(rows) = self.rows(credentials).await else {
            return false;
        };
        let by_socket = rows.iter().any(|row| row.by_socket);
        !by_socket && self.caller.is_relayed(&rows, self.worker).await
    }

    /// Whether the client proves itself by what Millrace cannot learn, as far as that is known.
    pub(super) async fn is_relayed(&self, rows: Option<&UserRows>) -> bool {
        match rows {
            Some(rows) => self.caller.is_relayed(rows, self.worker).await,
            None => false,
        }
    }

    pub(super) async fn is_native(&self, rows: &UserRows) -> bool {
        self.caller.is_native(rows, self.worker).await
    }

    /// Whether a client that is to prove itself anew is asked for mysql_native_password: it has no other plugin,
    /// or prefers this one, and the account's hash is enough.
    pub(super) async fn answers_native(&self, credentials: &Credentials, is_known: bool) -> bool {
        if credentials.plugin != Plugin::NativePassword {
            return false;
        }
        if self.hello.plugin.as_ref().is_none_or(Vec::is_empty) {
            return true;
        }
        match self.rows(credentials).await {
            Some(rows) => self.is_native(&rows).await,
            None => is_known,
        }
    }

    /// Whether the client will send its password when asked: privately, or under our RSA key.
    pub(super) fn can_show_password(&self, credentials: &Credentials) -> bool {
        if !self.capabilities.contains(Capabilities::PLUGIN_AUTH)
            || self.hello.plugin.as_ref().is_none_or(Vec::is_empty)
            || self.lacks_sha2(credentials)
        {
            return false;
        }
        let asked = self.asked(credentials, Question::Password);
        if !self.stream.is_private() && self.worker.shared.accounts.is_mute(&asked) {
            return false;
        }
        let is_one_of = |names: &[&[u8]]| {
            let mut attributes = self.hello.attributes.iter();
            attributes.any(|(name, value)| name == b"_client_name" && names.contains(&value))
        };
        if is_one_of(&[b"MySQL Connector/J"]) && self.greeted_as_old() {
            // It misreads caching_sha2_password's packets from a server of that version.
            return false;
        }
        self.stream.is_private() || !is_one_of(&REFUSE_RSA)
    }

    /// Whether the client takes nobody's certificate but that of a server that shows to know the password, which
    /// Millrace does not yet; by what the account's own plugin keeps it can. MariaDB's library does so from 3.4 on.
    pub(super) fn wants_vouching(&self, rows: Option<&UserRows>) -> bool {
        let keeps = |rows: &UserRows| rows.own().any(|row| !row.kept.is_empty());
        if !self.stream.is_tls()
            || !self.worker.shared.certificate.is_self_made
            || !rows.is_some_and(keeps)
        {
            return false;
        }
        let attribute = |wanted: &[u8]| {
            let mut attributes = self.hello.attributes.iter();
            attributes.find_map(|(name, value)| (name == wanted).then_some(value))
        };
        attribute(b"_client_name") == Some(b"libmariadb")
            && attribute(b"_client_version").is_some_and(is_from_3_4)
    }

    /// Whether clients like this one have left when they were asked for caching_sha2_password. Some packages of
    /// MariaDB's client library come without that plugin.
    pub(super) fn lacks_sha2(&self, credentials: &Credentials) -> bool {
        let asked = self.asked(credentials, Question::Plugin);
        credentials.plugin != Plugin::CachingSha2 && self.worker.shared.accounts.is_mute(&asked)
    }

    /// The kind of client that this one is, as far as it shows.
    pub(super) fn asked(&self, credentials: &Credentials, question: Question) -> Asked {
        let mut program = DefaultHasher::new();
        question.hash(&mut program);
        credentials.plugin.hash(&mut program);
        self.hello.capabilities.bits().hash(&mut program);
        for (name, value) in self.hello.attributes.iter() {
            if name.starts_with(b"_client_") {
                (name, value).hash(&mut program);
            }
        }
        Asked {
            user: credentials.user.clone().into(),
            address: self.address,
            program: program.finish(),
        }
    }

    /// MariaDB before 11 puts `5.5.5-` before its version, for the sake of old replicas.
    fn greeted_as_old(&self) -> bool {
        self.worker.cluster.with_world(|world| {
            let greeting = world.greeting.as_ref();
            greeting.is_some_and(|greeting| greeting.server_version.starts_with("5.5.5-"))
        })
    }

    /// Whether the account's server has no question that the client would understand: it knows of no plugins, and the
    /// account is of another than mysql_native_password.
    pub(super) async fn has_no_question(&self, credentials: &Credentials) -> bool {
        if self.capabilities.contains(Capabilities::PLUGIN_AUTH) {
            return false;
        }
        match self.rows(credentials).await {
            Some(rows) => {
                let lacks_native = |row: &UserRow| !row.is_native && row.native_hashes.is_empty();
                rows.iter().next().is_some() && rows.iter().all(lacks_native)
            }
            None => false,
        }
    }
}
/// Whether a version, such as `3.4.5`, is 3.4 or later.
fn is_from_3_4(version: &[u8]) -> bool {
    let mut numbers = version.split(|byte| *byte == b'.').map(|part| {
        let part = std::str::from_utf8(part).ok()?;
        part.parse::<u32>().ok()
    });
    let mut next = || numbers.next().flatten().unwrap_or_default();
    (next(), next()) >= (3, 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        for version in ["3.4.0", "3.10.1", "4.0", "10"] {
            assert!(is_from_3_4(version.as_bytes()), "{version}");
        }
        for version in ["3.3.18", "3", "2.9.9", "", "x.y", "."] {
            assert!(!is_from_3_4(version.as_bytes()), "{version}");
        }
    }
}

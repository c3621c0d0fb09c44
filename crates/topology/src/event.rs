//! What changed, for the log and for those who must act on it. Decides nothing.

use std::fmt;

use crate::{Health, NoPrimary, Role, ServerId, Unfit};

/// Something that changed, worth a line in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeEvent {
    /// Started or stopped answering.
    Health {
        /// Which server.
        server: ServerId,
        /// Before.
        from: Health,
        /// Now.
        to: Health,
    },
    /// Something looks wrong: the server should be probed at once.
    Suspected {
        /// Which server.
        server: ServerId,
    },
    /// Another role.
    Role {
        /// Which server.
        server: ServerId,
        /// Before.
        from: Role,
        /// Now.
        to: Role,
    },
    /// Takes reads again, or no longer. Not repeated while only the lag's number changes.
    Fitness {
        /// Which server.
        server: ServerId,
        /// Why not; none where it takes reads.
        unfit: Option<Unfit>,
    },
    /// Writes go elsewhere, or nowhere.
    Primary {
        /// Before.
        from: Option<ServerId>,
        /// Now.
        to: Option<ServerId>,
    },
    /// These servers all claim to be the primary: none of them gets writes.
    Conflict {
        /// Which servers.
        servers: Vec<ServerId>,
    },
    /// The configuration names a primary that is read only now, and another is what it was.
    Overruled {
        /// The one that is configured.
        configured: ServerId,
        /// The one that takes writes.
        by: ServerId,
    },
    /// An operator took it out of use: it takes no new statements.
    Draining {
        /// Which server.
        server: ServerId,
        /// Who said so.
        by: Box<str>,
    },
    /// An operator put it back in use.
    Resumed {
        /// Which server.
        server: ServerId,
        /// Who said so.
        by: Box<str>,
    },
    /// A server that was not known is named by one that is.
    Found {
        /// Its index from now on.
        server: ServerId,
        /// Who named it.
        by: ServerId,
    },
    /// A listed name stands for several servers, which take its place.
    Several {
        /// The name's.
        server: ServerId,
    },
    /// No server names it any more, and it does not answer: it is no longer part of the topology.
    Forgotten {
        /// Which server.
        server: ServerId,
    },
    /// It is another name of a server that is known already.
    SameServer {
        /// The name's index.
        server: ServerId,
        /// The server.
        known_as: ServerId,
    },
    /// More servers are named than are allowed: this one is left out. Said once.
    TooMany {
        /// Who named it.
        by: ServerId,
        /// Its address.
        address: Box<str>,
    },
    /// Nobody takes writes, for another reason than before.
    Without {
        /// Why.
        why: NoPrimary,
    },
    /// Another server (or another copy of the data) answers at the address: what was known of its
    /// positions is forgotten.
    Identity {
        /// Which server.
        server: ServerId,
    },
}

impl fmt::Display for ChangeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeEvent::Health { server, to, .. } => match to {
                Health::Down { cause, .. } => {
                    write!(f, "server {server} is down: {}", cause.as_str())
                }
                Health::Suspect { .. } => write!(f, "server {server} may be down"),
                Health::Up | Health::Unknown => write!(f, "server {server} is up"),
            },
            ChangeEvent::Suspected { server } => write!(f, "server {server} is to be probed"),
            ChangeEvent::Role { server, to, .. } => write!(f, "server {server} is now {to}"),
            ChangeEvent::Fitness { server, unfit } => match unfit {
                Some(why) => write!(f, "server {server} takes no reads: {why}"),
                None => write!(f, "server {server} takes reads"),
            },
            ChangeEvent::Primary { to: Some(to), .. } => write!(f, "server {to} takes writes"),
            ChangeEvent::Primary { to: None, .. } => f.write_str("no server takes writes"),
            ChangeEvent::Conflict { servers } => {
                f.write_str("several servers claim to be the primary:")?;
                servers.iter().try_for_each(|server| write!(f, " {server}"))
            }
            ChangeEvent::Overruled { configured, by } => write!(
                f,
                "server {configured} is configured as the primary (role = \"primary\") and is read \
                 only; server {by} is the primary by what the servers show, and takes writes"
            ),
            ChangeEvent::Draining { server, by } => {
                write!(
                    f,
                    "server {server} is drained by {by}: it takes no new statements"
                )
            }
            ChangeEvent::Resumed { server, by } => write!(f, "server {server} is resumed by {by}"),
            ChangeEvent::Found { server, by } => write!(f, "server {server} is named by {by}"),
            ChangeEvent::Several { server } => write!(
                f,
                "server {server} is a name of several servers, which are used by their addresses"
            ),
            ChangeEvent::Forgotten { server } => {
                write!(f, "server {server} is no longer part of the topology")
            }
            ChangeEvent::SameServer { server, known_as } => {
                write!(f, "server {server} is another name of {known_as}")
            }
            ChangeEvent::TooMany { by, address } => {
                write!(f, "too many servers: {address}, named by {by}, is left out")
            }
            ChangeEvent::Without { why } => write!(f, "no server takes writes: {why}"),
            ChangeEvent::Identity { server } => {
                write!(f, "another server or older data answers as {server}")
            }
        }
    }
}

//! A login under way: what the client shows, what it is asked for, and whether a server takes it.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use millrace_backend::account::Account;
use millrace_backend::connect::LOGIN_PACKET_MAX;
use millrace_backend::error::ServerError;
use millrace_backend::nonce::random_nonce;
use millrace_backend::packet_io::{read_packet, write_packet};
use millrace_backend::pool::ServerFacts;
use millrace_backend::secret::Secret;
use millrace_backend::stream::Stream;
use millrace_backend::user_rows::UserRows;
use millrace_metrics::Side;
use millrace_protocol::Capabilities;
use millrace_protocol::auth::{self, Plugin};
use millrace_protocol::handshake::{AuthSwitch, HandshakeResponse, encode_auth_more};
use millrace_protocol::ok::{ErrPacket, OkFields, encode_ok};
use millrace_sql::Family;
use tracing::debug;

use crate::error::ClientError;
use crate::login::caller::Caller;
use crate::login::credentials::{Credentials, Waits};
use crate::login::packets::{compressed, out_of_order, tracked_at_login, with_state};
use crate::session::{Identity, Session};
use crate::worker::Worker;
use millrace_worker::{Handle, ListenerContext};

/// A login under way: the client's stream and what it has said.
pub(crate) struct LoginExchange<'a> {
    pub(super) worker: &'a Rc<Worker>,
    pub(super) stream: Stream,
    pub(super) buffer: Vec<u8>,
    /// A packet that goes with the next one, in the same write.
    pub(super) held_back: Vec<u8>,
    /// The number of the next packet to the client.
    pub(super) sequence: u8,
    pub(super) nonce: [u8; 20],
    /// A proof was checked here, and is none of the account's known passwords.
    pub(super) was_wrong: bool,
    /// The client has proved itself by mysql_native_password.
    pub(super) is_native: bool,
    pub(super) address: Option<IpAddr>,
    pub(super) caller: Rc<Caller>,
    pub(super) hello: HandshakeResponse,
    /// The flags agreed on.
    pub(super) capabilities: Capabilities,
    /// How long it has waited for servers.
    pub(super) waits: Rc<Waits>,
}

fn without_nul(mut shown: Vec<u8>) -> Option<Vec<u8>> {
    if shown.last() == Some(&0) {
        shown.pop();
    }
    Some(shown)
}

impl<'a> LoginExchange<'a> {
    /// A login on a session's connection (COM_CHANGE_USER). `nonce`: what the client's last proof was made for.
    pub(crate) fn anew(
        worker: &'a Rc<Worker>,
        (stream, buffer): (Stream, Vec<u8>),
        nonce: [u8; 20],
        caller: Rc<Caller>,
        hello: HandshakeResponse,
        capabilities: Capabilities,
    ) -> Self {
        LoginExchange {
            worker,
            stream,
            buffer,
            held_back: Vec::new(),
            sequence: 1,
            nonce,
            was_wrong: false,
            is_native: false,
            address: caller.address,
            caller,
            hello,
            capabilities,
            waits: Rc::default(),
        }
    }

    /// The number of the next packet to the client.
    pub(crate) fn sequence(&self) -> u8 {
        self.sequence
    }

    /// The client's stream with what was read from it, and what is still to be sent.
    pub(crate) fn into_stream(self) -> (Stream, Vec<u8>, Vec<u8>) {
        (self.stream, self.buffer, self.held_back)
    }
}

impl LoginExchange<'_> {
    pub(super) async fn read(&mut self) -> std::io::Result<Vec<u8>> {
        let (sequence, payload) =
            read_packet(&mut self.stream, &mut self.buffer, LOGIN_PACKET_MAX).await?;
        if sequence != self.sequence {
            self.write(&out_of_order()).await?;
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        self.sequence = sequence.wrapping_add(1);
        Ok(payload)
    }

    pub(super) async fn write(&mut self, payload: &[u8]) -> std::io::Result<()> {
        write_packet(&mut self.stream, self.sequence, payload).await?;
        self.sequence = self.sequence.wrapping_add(1);
        Ok(())
    }

    pub(super) async fn more(&mut self, data: &[u8]) -> std::io::Result<()> {
        let mut out = Vec::new();
        self.sequence = encode_auth_more(&mut out, self.sequence, data);
        self.stream.send(&out).await
    }

    /// What a server says to a client whose proof is wrong.
    pub(crate) fn denied(&self, credentials: &Credentials) -> ClientError {
        let family = self.worker.cluster.family();
        self.caller.denied(family, &credentials.user, None, "")
    }

    /// The rows of the servers' account table for the name that the client gives, where they can be read.
    pub(super) async fn rows(&self, credentials: &Credentials) -> Option<UserRows> {
        let judge = self.judge()?;
        self.waits.begin();
        let read = self
            .worker
            .learnt
            .user_rows(&self.worker.shared, &judge, credentials.name())
            .await;
        self.waits.end();
        read.unwrap_or_else(|error| {
            debug!(%error, "the account's rows cannot be read");
            None
        })
    }

    /// There is certainly no account that the client could have, not even the anonymous one.
    pub(crate) async fn is_nobody(&self, credentials: &Credentials) -> bool {
        let rows = self.rows(credentials).await;
        rows.is_some_and(|rows| rows.iter().next().is_none())
    }

    pub(super) fn forget_rows(&self, credentials: &Credentials) {
        if let Some(judge) = self.judge() {
            self.worker
                .learnt
                .forget_user_rows(judge.id, &credentials.user);
        }
    }

    /// The server that is asked first about logins.
    pub(super) fn judge(&self) -> Option<Arc<ServerFacts>> {
        self.worker.cluster.with_world(|world| {
            let judge = world.snapshot.judges().next()?;
            Some(world.facts[judge.index()].clone())
        })
    }

    /// Whether a server would tell this client so much of the account, rather than that it is not let in.
    pub(super) async fn may_know(&self, answer: &ClientError, credentials: &Credentials) -> bool {
        if answer.side != Side::Server || answer.passing || answer.error.code == 1045 {
            return true;
        }
        match (self.rows(credentials).await, self.judge()) {
            (Some(rows), Some(judge)) => {
                let server = &judge.address;
                self.caller.may_hear(&rows, server, self.worker).await
            }
            _ => true,
        }
    }

    /// A server's error packet, as this client is to have it.
    pub(super) async fn as_told(&self, credentials: &Credentials, payload: Vec<u8>) -> Vec<u8> {
        let Ok(error) = ErrPacket::parse(&payload) else {
            return payload;
        };
        let error = ServerError::new(error.code, &error.state, error.message);
        if self
            .may_know(&ClientError::server(error), credentials)
            .await
        {
            return payload;
        }
        let denied = self.denied(credentials);
        with_state(denied.error.code, b"28000", &denied.error.message)
    }

    /// Has the client prove its password with another plugin.
    pub(super) async fn switch(&mut self, plugin: &Plugin) -> std::io::Result<Vec<u8>> {
        self.nonce = random_nonce();
        let switch = AuthSwitch {
            plugin: plugin.name().to_owned(),
            nonce: self.nonce.to_vec(),
        };
        let mut out = Vec::new();
        self.sequence = switch.encode(&mut out, self.sequence);
        self.stream.send(&out).await?;
        self.read().await
    }

    /// caching_sha2_password's full authentication: the client shows its password. None where
    /// what it shows cannot be read.
    pub(super) async fn ask_password(&mut self) -> std::io::Result<Option<Secret>> {
        self.more(&[auth::FULL_AUTH]).await?;
        let shown = self.read().await?;
        if self.stream.is_private() {
            return Ok(without_nul(shown).map(Secret::new));
        }
        let sealed = if shown == [auth::REQUEST_PUBLIC_KEY] {
            let key = self.worker.shared.key.clone();
            self.more(key.public_pem()).await?;
            self.read().await?
        } else {
            shown
        };
        let Some(mut clear) = self.worker.shared.key.decrypt(&sealed) else {
            return Ok(None);
        };
        auth::xor_password(&mut clear, &self.nonce);
        Ok(without_nul(clear.to_vec()).map(Secret::new))
    }

    /// What the OK says for the certificate that the client has been shown, where that can be said.
    pub(crate) fn vouch(&self, account: &Account) -> Vec<u8> {
        match self.is_native && !account.password.is_empty() {
            true => self.vouch_by(&account.password.native_hash()),
            false => Vec::new(),
        }
    }

    /// The same, by what the client's plugin keeps of the password.
    pub(super) fn vouch_by(&self, kept: &[u8]) -> Vec<u8> {
        match self.stream.is_tls() && self.worker.cluster.family() == Family::MariaDb {
            true => auth::vouch(
                kept,
                &self.nonce,
                &self.worker.shared.certificate.fingerprint,
            ),
            false => Vec::new(),
        }
    }

    /// The login is done: tells the client and begins the session.
    pub(super) async fn enter(
        mut self,
        account: Arc<Account>,
        entry: ListenerContext,
        id: u32,
        handle: Rc<Handle>,
    ) -> Option<Session> {
        let ignore_space = self.capabilities.contains(Capabilities::IGNORE_SPACE);
        let collation = self.hello.collation;
        let base = self.worker.learnt.base(&account, collation, ignore_space)?;
        let mut out = std::mem::take(&mut self.held_back);
        let database = self.hello.database.as_deref().unwrap_or_default();
        let session = tracked_at_login(self.worker, &base, database);
        let info = self.vouch(&account);
        let fields = OkFields {
            status: base.status,
            session: &session,
            info: &info,
            ..OkFields::default()
        };
        encode_ok(&mut out, self.sequence, self.capabilities, &fields);
        self.stream.send(&out).await.ok()?;
        let tls = self.stream.is_tls();
        let mut capabilities = self.capabilities;
        if self.worker.cluster.family() == Family::MariaDb && self.hello.plugin.is_none() {
            // MariaDB takes it for one that knows of no plugins, whatever its flag says.
            capabilities.remove(Capabilities::PLUGIN_AUTH);
        }
        let stream = compressed(self.stream, capabilities, &self.hello, &mut self.buffer);
        let identity = Identity {
            account,
            collation: self.hello.collation,
            tls,
            caller: self.caller,
            nonce: self.nonce,
        };
        let database = self.hello.database.unwrap_or_default();
        Some(Session::new(
            self.worker.clone(),
            handle,
            id,
            stream,
            self.buffer,
            capabilities,
            entry,
            identity,
            base.state,
            database,
        ))
    }
}

//! A login under way: what the client shows, what it is asked for, and whether a server takes it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millrace_backend::account::Account;
use millrace_backend::connect::{LOG_IN_ANEW, LOGIN_PACKET_MAX};
use millrace_backend::error::ServerError;
use millrace_backend::nonce::random_nonce;
use millrace_backend::packet_io::{read_packet, write_packet};
use millrace_backend::pool::ServerFacts;
use millrace_backend::secret::Secret;
use millrace_backend::stream::Stream;
use millrace_backend::user_rows::{Name, UserRow, UserRows};
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
use crate::login::verify::verify;
use crate::session::{Identity, Session};
use crate::worker::Worker;
use millrace_worker::Asked;
use millrace_worker::{Handle, ListenerContext};

/// How often a login that waits for a server looks whether its client is still there.
const LOOK: Duration = Duration::from_secs(1);

/// Clients that break off rather than send their password under an RSA key, unless told to.
const REFUSE_RSA: [&[u8]; 3] = [b"libmysql", b"MySQL Connector/J", b"MySqlConnector"];

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

/// How a client's proof ended.
pub(crate) enum Proof {
    /// The password is known, and a server takes it.
    Account(Arc<Account>),
    /// The password cannot be had: relay the login.
    Relay,
    /// The password is right and has expired: the client gets a connection of its own, on which
    /// it can do nothing but change it.
    Own(Secret),
    /// Not let in.
    Denied(ClientError),
}

/// How long a client waits at most for the server that counts its guess.
const COUNTED_WITHIN: Duration = Duration::from_secs(2);

/// What a client is asked for that it may not have.
#[derive(Debug, Clone, Copy, Hash)]
enum Question {
    /// An answer by caching_sha2_password.
    Plugin,
    /// The password itself.
    Password,
}

/// `SHA1(password)`, by which a client has proved itself to an account of mysql_native_password whose
/// hash the servers keep: nobody has to show the password. The anonymous account's is of use only to a name that has no
/// account of its own, which may have another plugin beside.
fn native_key(rows: Option<&UserRows>, response: &[u8], nonce: &[u8; 20]) -> Option<[u8; 20]> {
    let rows = rows?;
    let has_own = rows.own().next().is_some();
    let mut taken = rows.iter().filter(|row| !has_own || !row.user.is_empty());
    taken.find_map(|row| {
        let mut hashes = row.native_hashes.iter();
        hashes.find_map(|hash| auth::verify_native(response, nonce, hash))
    })
}

/// Whether the account's row has got another password since the primary took this one.
fn is_stale(account: &Account, rows: &UserRows) -> bool {
    let Some((current, passwords)) = account
        .proof()
        .and_then(|proof| Some((proof.current, proof.passwords?)))
    else {
        return false;
    };
    rows.named(&current)
        .is_none_or(|row| row.passwords != passwords)
}

/// Whether the account has two passwords, and only one is known: a proof that is not of this one may be of the other.
fn may_be_another(known: &[Arc<Account>], rows: &UserRows) -> bool {
    let [account] = known else { return false };
    let proof = account.proof();
    let row = proof.and_then(|proof| rows.named(&proof.current));
    row.is_some_and(|row| row.has_old)
}

/// An empty password has no proof; caching_sha2_password's clients send one zero over TLS and sockets.
fn is_empty_password(plugin: &Plugin, response: &[u8]) -> bool {
    match plugin {
        Plugin::NativePassword => response.is_empty(),
        Plugin::CachingSha2 => matches!(response, [] | [0]),
        _ => false,
    }
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

    async fn more(&mut self, data: &[u8]) -> std::io::Result<()> {
        let mut out = Vec::new();
        self.sequence = encode_auth_more(&mut out, self.sequence, data);
        self.stream.send(&out).await
    }

    /// Checks the credentials against what is known, else has the client show its password and asks a
    /// server.
    pub(crate) async fn prove(&mut self, credentials: &Credentials) -> std::io::Result<Proof> {
        self.was_wrong = false;
        let proof = self.prove_by_any(credentials).await;
        // Who hears that a proof was wrong has made a guess. A server counts it, also where nothing more is shown.
        let is_counted = match &proof {
            Err(_) => false,
            // What the client answers goes to a server, but not within a session.
            Ok(Proof::Relay) => !credentials.used_up,
            Ok(Proof::Denied(answer)) => answer.side == Side::Server,
            Ok(Proof::Account(_) | Proof::Own(_)) => true,
        };
        if self.was_wrong && !is_counted {
            let delay = match &proof {
                // Who tells the client so holds it back.
                Ok(Proof::Denied(_)) => Duration::ZERO,
                _ => {
                    let accounts = &self.worker.shared.accounts;
                    accounts.failed(self.address, &self.worker.options())
                }
            };
            let counting = self.count_guess(credentials);
            // The client waits for it, as it would at the server; where that takes long, it is counted all the same.
            let counting = tokio::task::spawn_local(counting);
            self.waits.begin();
            let _ = tokio::time::timeout(COUNTED_WITHIN, counting).await;
            if proof.is_ok() {
                tokio::time::sleep(delay).await;
            }
            self.waits.end();
        }
        proof
    }

    /// Has a server refuse a password of the account, as it would have refused the client's. Not where the proof may
    /// be of a new password: then those known before are not known any more.
    fn count_guess(&self, credentials: &Credentials) -> impl Future<Output = ()> + 'static {
        let (worker, judge) = (self.worker.clone(), self.judge());
        let (user, database) = (credentials.user.clone(), credentials.database.clone());
        let by_change = credentials.used_up;
        let (collation, tls) = (credentials.collation, self.stream.is_tls());
        async move {
            let accounts = &worker.shared.accounts;
            let name = Name {
                user: &user,
                collation,
            };
            if let Some(judge) = &judge {
                // They tell whether the password was changed: as it is now.
                worker.learnt.forget_user_rows(judge.id, &user);
            }
            let rows = match &judge {
                Some(judge) => worker.learnt.user_rows(&worker.shared, judge, name).await,
                None => Ok(None),
            };
            if let Ok(Some(rows)) = rows {
                let (stale, current): (Vec<_>, Vec<_>) = accounts
                    .find(&user)
                    .into_iter()
                    .partition(|account| is_stale(account, &rows));
                for account in &stale {
                    accounts.forget(account);
                }
                if current.is_empty() && !stale.is_empty() {
                    return;
                }
                // A login is handed on to a server, which judges it; a session that wants to change its user is not.
                if by_change && may_be_another(&current, &rows) {
                    return;
                }
            }
            let guess = accounts.candidate(&user, Secret::new(random_nonce().to_vec()));
            // Nobody has such a password.
            let _ = verify(&worker, &guess, &database, collation, false, tls).await;
        }
    }

    async fn prove_by_any(&mut self, credentials: &Credentials) -> std::io::Result<Proof> {
        if self.has_no_question(credentials).await {
            return Ok(Proof::Relay);
        }
        let known = self.worker.shared.accounts.find(&credentials.user);
        if !credentials.used_up && is_empty_password(&credentials.plugin, &credentials.response) {
            if self.is_asked_otherwise(credentials).await {
                return Ok(Proof::Relay);
            }
            return Ok(self
                .try_password(credentials, Secret::new(Vec::new()))
                .await);
        }
        let mut plugin = credentials.plugin.clone();
        let mut response = credentials.response.clone();
        let is_checked_here = matches!(plugin, Plugin::CachingSha2 | Plugin::NativePassword);
        let used_up = credentials.used_up && !self.proves_at_once(credentials, &known).await;
        if used_up || (!known.is_empty() && !is_checked_here) {
            // Once only: many clients follow no second switch.
            let is_native = used_up && self.answers_native(credentials, !known.is_empty()).await;
            if !is_native && self.lacks_sha2(credentials) {
                return Ok(Proof::Relay);
            }
            plugin = match is_native {
                true => Plugin::NativePassword,
                false => Plugin::CachingSha2,
            };
            response = self.switch_from(credentials, &plugin).await?;
            if is_empty_password(&plugin, &response) {
                return Ok(self
                    .try_password(credentials, Secret::new(Vec::new()))
                    .await);
            }
        }
        self.is_native = plugin == Plugin::NativePassword;
        if let Some(answer) = self.misshapen(credentials, &plugin, &response).await {
            return Ok(Proof::Denied(answer));
        }
        self.was_wrong = !known.is_empty();
        for account in known {
            let proved = match plugin {
                Plugin::NativePassword => account.proves_native(&response, &self.nonce),
                _ => account.proves_sha2(&response, &self.nonce),
            };
            if !proved {
                continue;
            }
            self.was_wrong = false;
            match self.verify(&account, credentials).await {
                Ok(()) => {
                    if plugin == Plugin::CachingSha2 {
                        let out = &mut self.held_back;
                        self.sequence = encode_auth_more(out, self.sequence, &[auth::FAST_OK]);
                    }
                    return Ok(Proof::Account(account));
                }
                Err(answer) if answer.error.code == 1045 => {
                    if answer.side == Side::Server {
                        self.worker.shared.accounts.forget(&account);
                    }
                    return Ok(Proof::Denied(answer));
                }
                Err(answer) if self.may_expire(&answer) => {
                    if plugin == Plugin::CachingSha2 {
                        self.more(&[auth::FAST_OK]).await?;
                    }
                    return Ok(Proof::Own(account.password.clone()));
                }
                Err(answer) => return Ok(Proof::Denied(answer)),
            }
        }
        let mut rows = self.rows(credentials).await;
        if plugin == Plugin::NativePassword {
            let mut key = native_key(rows.as_ref(), &response, &self.nonce);
            if key.is_none() && rows.is_some() {
                // The password may have been changed in the moment since they were read.
                self.forget_rows(credentials);
                rows = self.rows(credentials).await;
                key = native_key(rows.as_ref(), &response, &self.nonce);
            }
            let is_native = match &rows {
                Some(rows) => self.is_native(rows).await,
                None => false,
            };
            // A wrong proof is for a server to refuse. Where another plugin is asked for first, nothing is proved yet.
            let key = key.or_else(|| is_native.then(random_nonce));
            if let Some(key) = key
                && !self.is_relayed(rows.as_ref()).await
            {
                return Ok(self
                    .try_password(credentials, Secret::native_key(key))
                    .await);
            }
        }
        if self.is_relayed(rows.as_ref()).await || !self.can_show_password(credentials) {
            return Ok(Proof::Relay);
        }
        self.is_native = false;
        if plugin != Plugin::CachingSha2 {
            response = self.switch_from(credentials, &Plugin::CachingSha2).await?;
        }
        if is_empty_password(&Plugin::CachingSha2, &response) {
            return Ok(self
                .try_password(credentials, Secret::new(Vec::new()))
                .await);
        }
        match self.ask_password().await {
            Ok(Some(password)) => {
                let asked = self.asked(credentials, Question::Password);
                self.worker.shared.accounts.was_asked(&asked, true);
                Ok(self.try_password(credentials, password).await)
            }
            Ok(None) => Ok(Proof::Denied(self.denied(credentials))),
            Err(error) => {
                let asked = self.asked(credentials, Question::Password);
                self.worker.shared.accounts.was_asked(&asked, false);
                Err(error)
            }
        }
    }

    /// Whether a client that shows no password is one whom the account's plugin asks for something else: PAM has it
    /// type in its answers, Kerberos knows it by a ticket.
    async fn is_asked_otherwise(&self, credentials: &Credentials) -> bool {
        if !self.capabilities.contains(Capabilities::PLUGIN_AUTH) {
            return false;
        }
        let Some(rows) = self.rows(credentials).await else {
            return false;
        };
        let by_socket = rows.iter().any(|row| row.by_socket);
        !by_socket && self.caller.is_relayed(&rows, self.worker).await
    }

    /// What a server says of a proof that cannot be one, by its length (observed on both families).
    async fn misshapen(
        &self,
        credentials: &Credentials,
        plugin: &Plugin,
        response: &[u8],
    ) -> Option<ClientError> {
        match plugin {
            Plugin::NativePassword if response.len() != 20 => {
                let rows = self.rows(credentials).await?;
                let is_native = self.is_native(&rows).await;
                is_native.then(|| ClientError::client(1043, b"08S01", "Bad handshake"))
            }
            Plugin::CachingSha2 if response.len() != 32 => Some(self.denied(credentials)),
            _ => None,
        }
    }

    /// What a server says to a client whose proof is wrong.
    pub(crate) fn denied(&self, credentials: &Credentials) -> ClientError {
        let family = self.worker.cluster.family();
        self.caller.denied(family, &credentials.user, None, "")
    }

    /// Whether a proof by the nonce of the login is right. MariaDB's COM_CHANGE_USER takes it again, and its clients
    /// answer every switch with it (observed on 10.11 with libmariadb).
    async fn proves_at_once(&self, credentials: &Credentials, known: &[Arc<Account>]) -> bool {
        if self.worker.cluster.family() != Family::MariaDb
            || credentials.plugin != Plugin::NativePassword
        {
            return false;
        }
        let (response, nonce) = (&credentials.response, &self.nonce);
        known
            .iter()
            .any(|account| account.proves_native(response, nonce))
            || native_key(self.rows(credentials).await.as_ref(), response, nonce).is_some()
    }

    /// Whether the client proves itself by what Millrace cannot learn, as far as that is known.
    async fn is_relayed(&self, rows: Option<&UserRows>) -> bool {
        match rows {
            Some(rows) => self.caller.is_relayed(rows, self.worker).await,
            None => false,
        }
    }

    async fn is_native(&self, rows: &UserRows) -> bool {
        self.caller.is_native(rows, self.worker).await
    }

    /// Whether a client that is to prove itself anew is asked for mysql_native_password: it has no other plugin,
    /// or prefers this one, and the account's hash is enough.
    async fn answers_native(&self, credentials: &Credentials, is_known: bool) -> bool {
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

    /// The rows of the servers' account table for the name that the client gives, where they can be read.
    async fn rows(&self, credentials: &Credentials) -> Option<UserRows> {
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

    fn forget_rows(&self, credentials: &Credentials) {
        if let Some(judge) = self.judge() {
            self.worker
                .learnt
                .forget_user_rows(judge.id, &credentials.user);
        }
    }

    /// The server that is asked first about logins.
    fn judge(&self) -> Option<Arc<ServerFacts>> {
        self.worker.cluster.with_world(|world| {
            let judge = world.snapshot.judges().next()?;
            Some(world.facts[judge.index()].clone())
        })
    }

    async fn verify(
        &mut self,
        account: &Arc<Account>,
        credentials: &Credentials,
    ) -> Result<(), ClientError> {
        let tls = self.stream.is_tls();
        let ignore_space = self.capabilities.contains(Capabilities::IGNORE_SPACE);
        let (database, collation) = (&credentials.database, credentials.collation);
        let worker = self.worker.clone();
        let verifying = verify(&worker, account, database, collation, ignore_space, tls);
        let mut verifying = pin!(verifying);
        self.waits.begin();
        let let_in = loop {
            match tokio::time::timeout(LOOK, &mut verifying).await {
                Ok(verified) => break verified,
                Err(_) if self.stream.peer_closed().await => {
                    break Err(ClientError::nobody_answers());
                }
                Err(_) => {}
            }
        };
        self.waits.end();
        let let_in =
            let_in.map_err(
                |answer| match answer.error.message == LOG_IN_ANEW.as_bytes() {
                    true => ClientError::server(self.denied(credentials).error.clone()),
                    false => answer,
                },
            );
        let password = Some(&account.password);
        match let_in {
            Ok(let_in) => {
                let judging = self
                    .caller
                    .judge(&credentials.user, password, &let_in, &worker);
                judging.await
            }
            Err(answer) if self.may_know(&answer, credentials).await => Err(answer),
            Err(_) => {
                let family = worker.cluster.family();
                Err(self.caller.denied(family, &credentials.user, password, ""))
            }
        }
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

    /// Whether the client will send its password when asked: privately, or under our RSA key.
    fn can_show_password(&self, credentials: &Credentials) -> bool {
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

    /// Whether clients like this one have left when they were asked for caching_sha2_password. Some packages of
    /// MariaDB's client library come without that plugin.
    fn lacks_sha2(&self, credentials: &Credentials) -> bool {
        let asked = self.asked(credentials, Question::Plugin);
        credentials.plugin != Plugin::CachingSha2 && self.worker.shared.accounts.is_mute(&asked)
    }

    /// Has the client prove its password with another plugin, and remembers whether it can.
    async fn switch_from(
        &mut self,
        credentials: &Credentials,
        plugin: &Plugin,
    ) -> std::io::Result<Vec<u8>> {
        let switched = self.switch(plugin).await;
        if credentials.plugin != *plugin {
            let asked = self.asked(credentials, Question::Plugin);
            let accounts = &self.worker.shared.accounts;
            accounts.was_asked(&asked, switched.is_ok());
        }
        switched
    }

    /// The kind of client that this one is, as far as it shows.
    fn asked(&self, credentials: &Credentials, question: Question) -> Asked {
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

    /// Has the client prove its password with another plugin.
    async fn switch(&mut self, plugin: &Plugin) -> std::io::Result<Vec<u8>> {
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
    async fn ask_password(&mut self) -> std::io::Result<Option<Secret>> {
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

    /// Whether the account's server has no question that the client would understand: it knows of no plugins, and the
    /// account is of another than mysql_native_password.
    async fn has_no_question(&self, credentials: &Credentials) -> bool {
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

    /// Lets a server judge a password that is not known yet.
    async fn try_password(&mut self, credentials: &Credentials, password: Secret) -> Proof {
        let known = self.worker.shared.accounts.find(&credentials.user);
        let same = known.iter().find(|account| account.password.is(&password));
        if let Some(account) = same {
            return match self.verify(account, credentials).await {
                Ok(()) => Proof::Account(account.clone()),
                Err(answer) if self.may_expire(&answer) => Proof::Own(password),
                Err(answer) => Proof::Denied(answer),
            };
        }
        // The connection on which it is tried stays, and asks for the logins that follow.
        let account = self
            .worker
            .shared
            .accounts
            .candidate(&credentials.user, password);
        match self.verify(&account, credentials).await {
            Ok(()) => {
                let kept = self.worker.shared.accounts.keep(account.clone());
                let ignore_space = self.capabilities.contains(Capabilities::IGNORE_SPACE);
                self.worker
                    .learnt
                    .share_base(&account, &kept, credentials.collation, ignore_space);
                Proof::Account(kept)
            }
            Err(answer) if self.may_expire(&answer) => Proof::Own(account.password.clone()),
            Err(answer) => Proof::Denied(answer),
        }
    }

    /// The password has expired, and the client may come in all the same to change it.
    fn may_expire(&self, answer: &ClientError) -> bool {
        // MariaDB lets every client in, unless disconnect_on_expired_password is set.
        match answer.error.code {
            1820 => true,
            1862 => self
                .capabilities
                .contains(Capabilities::CAN_HANDLE_EXPIRED_PASSWORDS),
            _ => false,
        }
    }

    /// What the OK says for the certificate that the client has been shown, where that can be said.
    pub(crate) fn vouch(&self, account: &Account) -> Vec<u8> {
        let by_password = self.is_native && !account.password.is_empty();
        if !by_password || !self.stream.is_tls() || self.worker.cluster.family() != Family::MariaDb
        {
            return Vec::new();
        }
        let hash = account.password.native_hash();
        auth::vouch(&hash, &self.nonce, &self.worker.shared.fingerprint)
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

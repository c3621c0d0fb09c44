//! How a client proves that it has an account's password: by what is known, or by showing it to a server.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use millrace_backend::account::Account;
use millrace_backend::connect::LOG_IN_ANEW;
use millrace_backend::nonce::random_nonce;
use millrace_backend::secret::Secret;
use millrace_backend::user_rows::{Name, UserRows};
use millrace_metrics::Side;
use millrace_protocol::Capabilities;
use millrace_protocol::auth::{self, Plugin};
use millrace_protocol::handshake::encode_auth_more;
use millrace_sql::Family;
use tracing::info;

use crate::error::ClientError;
use crate::login::credentials::Credentials;
use crate::login::exchange::LoginExchange;
use crate::login::questions::Question;
use crate::login::verify::verify;

/// How long a client waits at most for the server that counts its guess.
const COUNTED_WITHIN: Duration = Duration::from_secs(2);

/// How often a login that waits for a server looks whether its client is still there.
const LOOK: Duration = Duration::from_secs(1);

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

impl LoginExchange<'_> {
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
        let caller = self.caller.clone();
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
            if let Ok(Some(rows)) = &rows {
                let (stale, current): (Vec<_>, Vec<_>) = accounts
                    .find(&user)
                    .into_iter()
                    .partition(|account| is_stale(account, rows));
                for account in &stale {
                    accounts.forget(account);
                }
                if current.is_empty() && !stale.is_empty() {
                    return;
                }
                // A login is handed on to a server, which judges it; a session that wants to change its user is not.
                if by_change && may_be_another(&current, rows) {
                    return;
                }
            }
            if let (Ok(Some(rows)), Some(judge)) = (&rows, &judge)
                && caller
                    .would_lock_another(rows, &judge.address, &worker)
                    .await
            {
                return;
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
        if self.is_relayed(rows.as_ref()).await
            || !self.can_show_password(credentials)
            || self.wants_vouching(rows.as_ref())
        {
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
        if self.would_lock_another(credentials).await {
            return Proof::Denied(self.denied(credentials));
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

    /// Whether it is not to be asked for this client with a password that may be wrong. Said in the log: the client's
    /// account has to be the one for Millrace's address as well.
    pub(super) async fn would_lock_another(&self, credentials: &Credentials) -> bool {
        let (Some(rows), Some(judge)) = (self.rows(credentials).await, self.judge()) else {
            return false;
        };
        let server = &judge.address;
        let would = self
            .caller
            .would_lock_another(&rows, server, self.worker)
            .await;
        if would {
            info!(
                user = ?String::from_utf8_lossy(&credentials.user),
                address = ?self.address,
                "a login is refused without asking a server: its wrong passwords would lock the account for \
                 Millrace's address, which is not the client's; see [auth] hosts"
            );
        }
        would
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
}

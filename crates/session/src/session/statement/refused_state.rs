//! Session state that a server no longer takes, and connections that have to be reset.

use std::rc::Rc;

use millrace_backend::error::BackendError;
use millrace_backend::pool::Lease;
use millrace_engine::request::Request;
use millrace_engine::state::{self, SessionState};
use millrace_protocol::response::Expect;
use millrace_sql::Kind;
use millrace_topology::{ServerId, Waits};
use tracing::info;

use crate::error::ClientError;
use crate::session::Session;

impl Session {
    /// Whether the connection holds another session's user variables, or old ones of this session's,
    /// and the statement could see them.
    pub(super) fn sees_foreign(&self, lease: &Lease, request: &Request<'_>) -> bool {
        let uid = self.handle.uid();
        let foreign = lease
            .books
            .has_foreign_variables(uid, self.image.vars.private.version);
        if !foreign || !self.handle.pins().is_empty() {
            return false;
        }
        let asks_about_own = request.class.kind == Kind::Diagnostics
            && lease.books.holds(uid, self.image.last.messages.at);
        !asks_about_own && self.needs_private(request)
    }

    /// Whether something was set on the connection that only a reset certainly takes back.
    pub(super) fn needs_reset(&self, lease: &Lease) -> bool {
        !Rc::ptr_eq(&lease.state, &self.image.vars.state)
            && self.handle.pins().is_empty()
            && state::needs_reset(&lease.state, &self.image.vars.state)
    }

    /// The primary has refused the session's state on another connection than the one it was set on:
    /// the account may have lost a privilege. The session goes on without what a new login could not
    /// set. True where the statement may be tried again.
    pub(super) async fn forgo_state(&mut self, server: ServerId) -> bool {
        let primary = self.worker.cluster.primary();
        if primary != Some(server) || std::mem::replace(&mut self.running.route.forgone, true) {
            return false;
        }
        let (pool, version) = (self.pool(server), self.version_on(server));
        let (uid, state) = (self.handle.uid(), self.image.vars.state.clone());
        let Ok(mut lease) = pool.take(uid, &state, version).await else {
            return false;
        };
        let refused = self.refused_variables(&mut lease, &state).await;
        lease.books.disown();
        lease.broken |= refused.is_err();
        lease.give_back();
        let Ok(refused) = refused else {
            return false;
        };
        if !refused.is_empty() {
            let user = String::from_utf8_lossy(&self.client.identity.account.user).into_owned();
            let variables = refused.join(",");
            info!(
                user,
                variables,
                "a session goes on without variables that its account may not set any more"
            );
            self.change_state(|state| refused.iter().for_each(|name| state.unset(name)));
        }
        true
    }

    /// Which variables of a state the server refuses; each is tried alone.
    async fn refused_variables(
        &mut self,
        lease: &mut Lease,
        wanted: &Rc<SessionState>,
    ) -> Result<Vec<Box<str>>, BackendError> {
        self.save_all_unread(lease).await?;
        let facts = lease.server_facts();
        let fresh = lease.reset(&facts).await?;
        lease.state = self.worker.states.share(fresh);
        let mut refused = Vec::new();
        for (name, value) in &wanted.variables {
            let mut next = SessionState::clone(&lease.state);
            next.set(name, value.clone());
            let (mut bytes, mut steps) = (Vec::new(), Vec::new());
            let attributes = lease.has_attributes();
            state::difference(&lease.state, &next, attributes, &mut bytes, &mut steps);
            lease.send(&bytes, steps.len()).await?;
            let mut taken = true;
            for _ in steps {
                match lease.read_answer(Expect::Query).await {
                    Ok(_) => {}
                    Err(BackendError::Server(_)) => taken = false,
                    Err(error) => return Err(error),
                }
            }
            match taken {
                true => lease.state = self.worker.states.share(next),
                false => refused.push(name.clone()),
            }
        }
        Ok(refused)
    }

    /// Whether a cluster's node would not wait on the connection, now or after the reset that it needs.
    pub(in crate::session) fn cannot_wait_on(&self, lease: &Lease, request: &Request<'_>) -> bool {
        self.worker.cluster.waits_of(lease.server) == Waits::Cluster
            && (lease.ignores_sync_wait
                || self.sees_foreign(lease, request)
                || self.needs_reset(lease))
    }

    /// Whether another connection must be had for a request that would need a reset of this one: what the reset
    /// takes away, only a login brings back. `wait`: it waits for a position there first.
    pub(super) fn is_unfit(&self, lease: &Lease, request: &Request<'_>, wait: bool) -> bool {
        (lease.books.loses_by_reset(true) && self.lacks_login(lease, request))
            || (wait && self.cannot_wait_on(lease, request))
    }

    fn lacks_login(&self, lease: &Lease, request: &Request<'_>) -> bool {
        let uid = self.handle.uid();
        let version = self.image.vars.private.version;
        // A transaction that is run again takes the connection over with all that is on it.
        let takes_over =
            self.image.tx.replay.is_some() && lease.books.has_foreign_variables(uid, version);
        let changes = self.may_change_rows(request);
        lease.books.lacks_login(changes)
            || (lease.books.loses_by_reset(changes)
                && (takes_over || self.sees_foreign(lease, request) || self.needs_reset(lease)))
    }

    /// Has such a connection log in anew in its place, once what sessions may still ask about is saved. The error says
    /// that the server does not do, and the connection is closed.
    pub(super) async fn open_anew(&mut self, mut lease: Lease) -> Result<Lease, ClientError> {
        // Where that fails it is closed all the same.
        let _ = self.save_all_unread(&mut lease).await;
        lease.books.disown();
        match lease.open_anew().await {
            Ok(()) => Ok(lease),
            Err(error) => {
                let answer = self.unavailable(lease.server, error);
                lease.broken = true;
                self.put_back(lease);
                Err(answer)
            }
        }
    }

    /// Resets a connection that holds what a statement must not see.
    pub(in crate::session) async fn clear_foreign(
        &mut self,
        lease: &mut Lease,
    ) -> Result<(), BackendError> {
        self.save_all_unread(lease).await?;
        let facts = lease.server_facts();
        let state = lease.reset(&facts).await.map_err(BackendError::ahead)?;
        lease.state = self.worker.states.share(state);
        Ok(())
    }
}

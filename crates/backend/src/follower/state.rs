//! What the follower keeps from one stream to the next, and where a stream is to begin. Connects to nothing.

use std::sync::Arc;
use std::time::Instant;

use millrace_cache::Store;
use millrace_topology::{Family, GtidSet};

use crate::cache::{Cache, Followed};
use crate::connect::SharedNetwork;
use crate::error::BackendError;
use crate::monitor::{MonitorOptions, World};

use super::catalogue::Catalogue;
use super::gate::{Gate, Opens};
use super::history::{Candidate, History};
use super::stream::{Failure, Identity};
use super::transactions::Transactions;

/// So many streams in a row that end without an event: their server cannot go on from there, whatever it says.
const VAIN_STREAMS_MAX: u32 = 5;

/// What the follower keeps.
pub(super) struct State {
    pub(super) cache: Arc<Cache>,
    pub(super) options: Arc<MonitorOptions>,
    pub(super) network: SharedNetwork,
    pub(super) transactions: Transactions,
    pub(super) gate: Gate,
    pub(super) history: History,
    /// One for the whole process, so that a server ends what is left of an older stream.
    identity: Option<Identity>,
    /// Streams in a row without an event.
    vain: u32,
    /// The log was lost: nothing that was kept is served again.
    must_drop: bool,
}

/// Why a stream is over.
#[derive(Debug)]
pub(super) enum Over {
    /// The log does not do, for this reason.
    Unfit(String),
    Lost(String),
    /// Another server is the primary, or none.
    Moved,
}

impl From<BackendError> for Over {
    fn from(error: BackendError) -> Self {
        Over::Lost(error.to_string())
    }
}

impl State {
    /// Nothing is followed yet.
    pub(super) fn new(
        cache: Arc<Cache>,
        options: Arc<MonitorOptions>,
        network: SharedNetwork,
    ) -> Self {
        Self {
            transactions: Transactions::new(),
            gate: Gate::new(GtidSet::new(Family::MySql)),
            history: History::default(),
            identity: None,
            vain: 0,
            must_drop: false,
            cache,
            options,
            network,
        }
    }

    /// A stream begins.
    pub(super) fn begin_stream(&mut self, checksum: bool) {
        self.transactions.begin_stream(checksum);
        self.vain += 1;
        Followed::add(&self.cache.followed().streams, 1);
    }

    /// Something has come: so the server answers, and what it had when it was asked may all be applied.
    pub(super) fn hear(&mut self, now: Instant) {
        self.vain = 0;
        let cache = self.cache.clone();
        let mut store = cache.store();
        store.heard(now);
        self.look_at_gate(&mut store, now);
        drop(store);
        cache.tell_waiters();
    }

    /// Whether the last stream had an event.
    pub(super) fn has_heard(&self) -> bool {
        self.vain == 0
    }

    /// Who the follower is to the servers.
    pub(super) fn identity(&mut self, seen: &World) -> &Identity {
        let reports = seen.snapshot.servers.iter();
        let reports = reports.filter_map(|view| view.report.as_ref());
        let taken: Vec<u32> = reports.map(|report| report.server_id).collect();
        let known = self.identity.take();
        let known = known.filter(|identity| !taken.contains(&identity.server_id));
        self.identity
            .insert(known.unwrap_or_else(|| Identity::random(&taken)))
    }

    /// Goes on where the last stream has ended, or begins anew: where the stream is to begin.
    pub(super) fn take_up(&mut self, candidate: &Candidate<'_>, seen: &World) -> GtidSet {
        let executed = candidate.executed.clone();
        let now = Instant::now();
        let must_drop = std::mem::take(&mut self.must_drop) || self.vain > VAIN_STREAMS_MAX;
        let cache = self.cache.clone();
        let mut store = cache.store();
        let applied = store.applied().clone();
        let goes_on = self.history.goes_on(candidate, &applied, &seen.snapshot);
        if goes_on && !must_drop {
            let is_same_server = self.history.is_last(candidate.id, candidate.identity);
            self.history.follows(candidate);
            self.gate.again(executed, is_same_server);
            return applied;
        }
        self.history.begin(candidate, &seen.snapshot);
        store.follow(executed.clone(), &self.history.label(), now);
        // Nothing is known of tables yet, and nothing is served before.
        store.redefine(None, now);
        store.gap();
        drop(store);
        self.vain = 0;
        self.transactions.forget_tables();
        self.gate = Gate::new(executed.clone());
        Followed::add(&cache.followed().drops, 1);
        executed
    }

    /// An event cannot be read, or something has been lost.
    pub(super) fn broken(&mut self, why: String) -> Over {
        self.must_drop = true;
        Over::Lost(why)
    }

    /// The stream has failed.
    pub(super) fn failed(&mut self, failure: Failure) -> Over {
        match failure {
            Failure::Forbidden(error) => Over::Unfit(format!(
                "the monitor's account may not follow the binary log ({error}): \
                 GRANT REPLICATION SLAVE ON *.* TO '{}'",
                self.options.user
            )),
            Failure::NotThere(error) => self.broken(error.to_string()),
            Failure::Lost(error) => error.into(),
        }
    }

    /// What tables are. Where one has changed without a word in the log, what was filled before goes.
    fn know_tables(&mut self, store: &mut Store, catalogue: Arc<Catalogue>, now: Instant) {
        let known = &self.transactions.catalogue().definitions;
        let changed = catalogue.definitions.changed_with(known);
        if changed.as_ref().is_some_and(Vec::is_empty) && store.definitions().is_some() {
            store.confirm();
        } else {
            match changed {
                Some(changed) => changed.into_iter().for_each(|subject| {
                    store.redefine(Some(subject), now);
                }),
                None => drop(store.redefine(None, now)),
            }
            store.define(catalogue.definitions.clone());
        }
        for subject in self.transactions.unread() {
            store.doubt(subject);
        }
        self.transactions.know_tables(catalogue);
    }

    /// Looks whether the log has come so far that the store may serve, and by which definitions.
    pub(super) fn look_at_gate(&mut self, store: &mut Store, now: Instant) {
        let (catalogue, serves) = match self.gate.reached(store.applied()) {
            Opens::Not => return,
            Opens::Knows(catalogue) => (Some(catalogue), false),
            Opens::Serves(catalogue) => (catalogue, true),
        };
        if let Some(catalogue) = catalogue {
            self.know_tables(store, catalogue, now);
        }
        if serves {
            let applied = store.applied().clone();
            store.resume(&applied, &self.history.label(), now);
        }
    }
}

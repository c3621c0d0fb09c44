//! Answers out of memory: which statements may have one, what it is found by, and what is read for others.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use millrace_backend::cache::{Cache, Mode};
use millrace_cache::{
    Begun, Hit, Isolation, KeyBuilder, Miss, Never, NoFill, Situation, Waiting, Wanted,
};
use millrace_engine::request::{Main, Request, Task, Types, is_plain_execution};
use millrace_engine::state::SessionState;
use millrace_protocol::packet;
use millrace_routing::rules::{Caching, Directions};
use millrace_routing::{Consistency, Reason, Target};
use millrace_sql::{Access, Flags, Kind, Statement};
use millrace_topology::GtidSet;
use millrace_worker::INTERVALS_MAX;
use tokio::time::{sleep, timeout_at};

use crate::error::Abort;
use crate::session::Session;
use crate::session::answers::compared::has_one_answer;
use crate::session::answers::dependence::{Looked, Parameters};
use crate::session::statement::access::metric_kind;
use crate::session::statement::fill::Fill;

/// What a statement may have beside its tables and still give the same each time.
const HARMLESS: Flags = Flags::COMPOUND_QUERY
    .union(Flags::PARAMETERS)
    .union(Flags::COMMENT);

/// What a statement may have besides where it may be old: the time, chance.
const OLD: Flags = Flags::NONDETERMINISTIC;

/// Longer statements are not looked for.
const TEXT_MAX: usize = 64 * 1024;

/// Where the parameters of an execution begin in its packet, behind the statement's number.
const BEHIND_NUMBER: usize = packet::HEADER + 5;

/// After so long a result is looked for again that the log is about to allow.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Whether a string of ASCII has the bytes of its text: not so in UTF-16 and UTF-32.
fn has_plain_strings(state: &SessionState) -> bool {
    let connection = state.effective("collation_connection");
    connection.is_some_and(|name| {
        let plain = [&b"utf8"[..], b"latin1", b"ascii", b"binary"];
        plain.iter().any(|begin| name.starts_with(begin))
    })
}

/// What is promised of an answer out of memory.
#[derive(Clone, Copy)]
enum Promise {
    /// It is exactly what a server would answer.
    Exact,
    /// It is what a server has answered within this time.
    Within(Duration),
}

/// In the key of an answer.
fn nanos(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX)
}

/// What there is in memory for a statement.
pub(in crate::session) enum Found {
    /// Its answer.
    Hit(Hit),
    /// Another session reads its answer.
    Filling(Waiting),
    /// A result that the session may be served once it is known what it has seen, and what that has touched; and what a server
    /// spent on it.
    Behind(Duration),
}

/// A session asks a server what it has seen there for as long as the server would spend on the statement: all who have read there
/// share one question. At least and at most:
const LEARN_LIMIT: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(100)];

/// What the cache must have before a session may be served.
enum Must<'a> {
    /// Its position, and what the server of its last read had then.
    See(&'a GtidSet, Option<Arc<GtidSet>>),
    /// What the server of its last read had then is to be learnt.
    Learn,
    /// It is not known: a server is asked.
    Ask,
}

impl Session {
    /// The statement's answer, where it is in memory and the session may be served it. Else what its server answers
    /// may be for the cache.
    #[inline]
    pub(in crate::session) fn cached(
        &mut self,
        request: &Request<'_>,
        text: &[u8],
    ) -> Option<Found> {
        self.worker.cached.get()?;
        self.look_up(request, text)
    }

    #[cold]
    fn look_up(&mut self, request: &Request<'_>, text: &[u8]) -> Option<Found> {
        let worker = self.worker.clone();
        let cache = worker.cached.get()?;
        let (promise, looked) = self.look(cache, request, text)?;
        match looked {
            Ok(hit) => Some(Found::Hit(hit)),
            // It is read again.
            Err(Miss::Checked) => None,
            // The key is at hand.
            Err(missed)
                if missed == Miss::Behind
                    && let Some(cost) = cache.store().cost(worker.cached.key.borrow().key()) =>
            {
                Some(Found::Behind(cost))
            }
            Err(missed) => self
                .missed(cache, (request, text), promise, Some(missed))
                .map(Found::Filling),
        }
    }

    /// What the cache has for a statement; none where that is not looked for. The key is left at hand.
    fn look(
        &mut self,
        cache: &Arc<Cache>,
        request: &Request<'_>,
        text: &[u8],
    ) -> Option<(Promise, Result<Hit, Miss>)> {
        let worker = self.worker.clone();
        let class = request.class;
        let is_cached = request.access == Access::Read
            && class.kind == Kind::Select
            && !class.tables.is_empty();
        if !is_cached {
            return None;
        }
        let promise = self.promise(cache, request, text).ok()?;
        self.situation(class, promise).check().ok()?;
        let mut key = worker.cached.key.borrow_mut();
        key.clear()
            .number(worker.cached.state(cache, &self.image.vars.state))
            .number(self.client.capabilities.bits())
            .part(&self.client.identity.account.user)
            .number(self.logged_in_at)
            .part(text);
        if !self.add_parameters(request, cache, &mut key) {
            return None;
        }
        let now = Instant::now();
        if let Promise::Within(ttl) = promise {
            key.part(b"ttl").number(nanos(ttl));
            return Some((promise, cache.store().look_within(key.key(), now)));
        }
        let is_due = worker.cached.is_check_due() && self.has_one_answer(text);
        let mut check = None;
        let looked = match self.must_see(self.level_for(request)) {
            Must::See(position, shown) => {
                let both = [position, shown.as_deref().unwrap_or(position)];
                let required = &both[..1 + usize::from(shown.is_some())];
                let mut store = cache.store();
                check = is_due
                    .then(|| store.begin_check(key.key(), required, now))
                    .flatten();
                match check {
                    Some(_) => Err(Miss::Checked),
                    None => store.look(key.key(), required, now),
                }
            }
            Must::Learn => Err(Miss::Behind),
            Must::Ask => Err(Miss::Unknown),
        };
        if cache.verify() > 0.0 && (looked.is_ok() || check.is_some()) {
            worker.cached.note_hit(cache.verify(), check.is_some());
        }
        if let Some(token) = check {
            self.running.fill = Some(Box::new(Fill::new(cache.clone(), token)));
        }
        Some((promise, looked))
    }

    /// Whether what two servers answer to a statement can be compared.
    fn has_one_answer(&self, text: &[u8]) -> bool {
        let vars = &self.image.vars;
        let mut normalised = self.worker.lists.take_buffer();
        millrace_sql::digest(text, &vars.lex, &mut normalised);
        let has_one = has_one_answer(&normalised, &vars.state);
        self.worker.lists.put_buffer(normalised);
        has_one
    }

    /// A statement, as what it depends on is found from.
    pub(in crate::session) fn looked<'a>(
        &self,
        request: &Request<'a>,
        text: &'a [u8],
    ) -> Result<Looked<'a>, Never> {
        let state = &self.image.vars.state;
        let (context, parameters) = match request.main {
            Main::Packet(_) => (state, Parameters::default()),
            Main::Execute { packet, id, types } => {
                let prepared = self.image.statements.get(id).ok_or(Never::NotUnderstood)?;
                // Its text means what it meant when it was prepared.
                if !prepared.means_the_same(state) {
                    return Err(Never::NotUnderstood);
                }
                let sent = (usize::from(prepared.params), self.client.capabilities);
                let parameters = Parameters::of(packet, sent, (types, &prepared.types));
                let parameters = parameters.ok_or(Never::NotUnderstood)?;
                (&prepared.context, parameters)
            }
        };
        Ok(Looked {
            strings_are_plain: has_plain_strings(state),
            class: request.class,
            text,
            lex: self.image.vars.lex,
            database: context.database.clone(),
            parameters,
        })
    }

    /// What the cache would do for a statement, in words; none where it is off.
    pub(in crate::session) fn explain_cached(
        &mut self,
        request: &Request<'_>,
        text: &[u8],
    ) -> Option<String> {
        let worker = self.worker.clone();
        let cache = worker.cached.get()?;
        let promise = match self.promise(cache, request, text) {
            Ok(promise) => promise,
            Err(why) => return Some(format!("no: {why}")),
        };
        let never = self.situation(request.class, promise).check();
        if let Promise::Within(ttl) = promise {
            return Some(match never.and_then(|()| self.may_be_old(request, text)) {
                Err(why) => format!("no: {why}"),
                Ok(()) => format!(
                    "its result may be kept, and served again for {ttl:?}, whatever is written"
                ),
            });
        }
        if let Some(why) = cache.store().not_serving(Instant::now()) {
            return Some(format!("no: {why}; see SHOW CACHE of the admin listener"));
        }
        let definitions = cache.store().definitions().map(|(all, _)| all.clone());
        let Some(definitions) = definitions else {
            return Some(format!("no: {}", NoFill::Undefined));
        };
        let reads = never.and_then(|()| self.looked(request, text)?.reads(&definitions));
        Some(match reads {
            Err(why) => format!("no: {why}"),
            Ok(_) => {
                "its result may be kept, and served again until a change of its rows".to_owned()
            }
        })
    }

    /// What is promised of the statement's answer out of memory; or why it is not looked for at all.
    fn promise(
        &self,
        cache: &Cache,
        request: &Request<'_>,
        text: &[u8],
    ) -> Result<Promise, &'static str> {
        if request.inner.is_some() {
            return Err("it is run by EXECUTE of SQL");
        }
        if text.len() > TEXT_MAX {
            return Err("its text is too long");
        }
        if self.client.target != Target::Auto {
            return Err("the clients of this listener are bound to one kind of server");
        }
        let directions = request.directions.as_deref();
        match directions.and_then(|said| said.cache) {
            Some(Caching::Never) => Err("a rule or a hint says so"),
            Some(Caching::Exact) => Ok(Promise::Exact),
            Some(Caching::Within(ttl)) => Ok(Promise::Within(ttl)),
            None if cache.mode() == Mode::Rules => {
                Err("cache.mode is \"rules\", and no rule says cache = \"exact\"")
            }
            None if directions.is_some_and(Directions::names_servers) => {
                Err("a rule names its servers, and does not say cache = \"exact\"")
            }
            None => Ok(Promise::Exact),
        }
    }

    /// Whether the statement is a plain SELECT whose answer may be an old one: of any tables and views, and also
    /// of the time and of chance.
    fn may_be_old(&self, request: &Request<'_>, text: &[u8]) -> Result<(), Never> {
        self.looked(request, text)?.may_be_old()
    }

    /// Begins a fill after a miss, where it is worth one, or says for which one to wait. `missed`: none after a wait.
    fn missed(
        &mut self,
        cache: &Arc<Cache>,
        (request, text): (&Request<'_>, &[u8]),
        promise: Promise,
        missed: Option<Miss>,
    ) -> Option<Waiting> {
        let now = Instant::now();
        let worker = self.worker.clone();
        let key = worker.cached.key.borrow();
        let mut normalised = worker.lists.take_buffer();
        let digest = millrace_sql::digest(text, &self.image.vars.lex, &mut normalised);
        cache.note_text(digest, &normalised);
        worker.lists.put_buffer(normalised);
        if let Promise::Within(ttl) = promise {
            if let Err(reason) = self.may_be_old(request, text) {
                cache.store().note_never(digest, reason);
                return None;
            }
            let mut store = cache.store();
            let begun = store.begin_within(digest, key.key(), ttl, missed, now);
            drop(store);
            return match begun.ok()? {
                Begun::Lead(token) => {
                    self.running.fill = Some(Box::new(Fill::timed(cache.clone(), token)));
                    None
                }
                Begun::Wait(waiting) => Some(waiting),
            };
        }
        let mut store = cache.store();
        match store.wants(digest, key.key(), missed, now).ok()? {
            Wanted::Fill => {}
            Wanted::Wait(waiting) => return Some(waiting),
        }
        let (definitions, version) = store.definitions()?;
        let definitions = definitions.clone();
        drop(store);
        let reads = match self
            .looked(request, text)
            .and_then(|it| it.reads(&definitions))
        {
            Ok(reads) => reads,
            Err(reason) => {
                cache.store().note_never(digest, reason);
                return None;
            }
        };
        let begun = cache
            .store()
            .begin_fill(digest, key.key(), &reads, version, now);
        match begun.ok()? {
            Begun::Lead(token) => {
                self.running.fill = Some(Box::new(Fill::new(cache.clone(), token)));
                None
            }
            Begun::Wait(waiting) => Some(waiting),
        }
    }

    /// What of rules 1 and 5 the session and the statement's class tell.
    fn situation(&self, class: &Statement, promise: Promise) -> Situation {
        let harmless = match promise {
            Promise::Exact => HARMLESS,
            Promise::Within(_) => HARMLESS | OLD,
        };
        let tx = &self.image.tx;
        let in_transaction = self.lease.is_some()
            || tx.is_deferred()
            || tx.replay.is_some()
            || tx.next_waits()
            || !tx.next().is_empty()
            || !self.handle.pins().is_empty();
        Situation {
            is_select: class.kind == Kind::Select,
            in_transaction,
            autocommit: !self.image.autocommit_off(),
            isolation: self.isolation(),
            locks_rows: class.flags.contains(Flags::LOCKING_READ),
            has_into: (class.flags).intersects(Flags::INTO_OUTFILE | Flags::INTO_VARIABLE),
            uses_variables: (class.flags).intersects(Flags::READS_USER_VARS | Flags::READS_SYSVARS),
            functions_are_stable: class.functions.is_empty()
                && harmless.contains(class.flags)
                && !self.image.vars.switches.finds_last_row,
            ..Situation::plain()
        }
    }

    fn isolation(&self) -> Isolation {
        let state = &self.image.vars.state;
        let named = ["transaction_isolation", "tx_isolation"];
        let level = named.iter().find_map(|name| state.effective(name));
        match level {
            Some(b"READ-COMMITTED") => Isolation::ReadCommitted,
            Some(b"REPEATABLE-READ") => Isolation::RepeatableRead,
            Some(b"SERIALIZABLE") => Isolation::Serializable,
            // What is not known may be the laxest.
            _ => Isolation::ReadUncommitted,
        }
    }

    /// Adds to the key what an execution brings beside its text: the parameters with their types, and what was set
    /// when it was prepared. False where that cannot be told.
    fn add_parameters(&self, request: &Request<'_>, cache: &Cache, key: &mut KeyBuilder) -> bool {
        match (&request.main, request.task) {
            // Attributes are for components of the server, which no plain statement asks.
            (Main::Packet(_), Task::Query) => true,
            (Main::Execute { packet, id, types }, Task::Execute) => {
                let Some(statement) = self.image.statements.get(*id) else {
                    return false;
                };
                // Results have the types of a statement's first parameters, which only those share that agree on them.
                let is_told = is_plain_execution(packet)
                    && !request.opens_cursor()
                    && statement.shared
                    && statement.long_data.is_empty();
                key.number(self.worker.cached.state(cache, &statement.context))
                    .part(if *types == Types::LeftOut {
                        &statement.types
                    } else {
                        b""
                    })
                    .part(packet.get(BEHIND_NUMBER..).unwrap_or_default());
                is_told
            }
            _ => false,
        }
    }

    /// What the cache must have before the session may be served from it (R).
    fn must_see(&mut self, level: Consistency) -> Must<'_> {
        if level == Consistency::Global {
            return Must::Ask;
        }
        let (mut shown, mut is_shown) = (None, true);
        if level != Consistency::Eventual && self.image.reads.seen.is_some() {
            shown = self.shown_by_last_read();
            is_shown = shown.is_some();
        }
        if level == Consistency::Instance {
            if self.worker.cluster.has_untracked() {
                return Must::Ask;
            }
            self.note_all_written();
        }
        // Whoever sees only what it has seen itself may still have been promised more before.
        let reads = &self.image.reads;
        match reads.unknown || reads.stale || reads.shown_by.is_some() {
            true => Must::Ask,
            false if !is_shown => Must::Learn,
            false => Must::See(&reads.position, shown),
        }
    }

    /// What the server where the session has read last can have shown by then; none where that is not known yet.
    fn shown_by_last_read(&self) -> Option<Arc<GtidSet>> {
        let seen = self.image.reads.seen?;
        let positions = self.worker.shared.monitor.positions();
        let told = positions.since(seen.server, seen.mark)?;
        (told.incarnation == seen.incarnation).then_some(told.visible)
    }

    /// Answers with what was found. False where that came to nothing: then a server is asked.
    pub(in crate::session) async fn answer_found(
        &mut self,
        request: &Request<'_>,
        text: &[u8],
        found: Found,
    ) -> Result<bool, Abort> {
        let hit = match found {
            Found::Hit(hit) => Some(hit),
            Found::Filling(waiting) => self.wait_for_fill(request, text, waiting).await?,
            Found::Behind(cost) => self.catch_up(request, text, cost).await,
        };
        match hit {
            Some(hit) => self.answer_cached(hit).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// Learns what the session has seen, lets the log come as far, and looks again. All sessions that have read from a
    /// server share one question to it, which costs that no more than the statement would.
    async fn catch_up(
        &mut self,
        request: &Request<'_>,
        text: &[u8],
        cost: Duration,
    ) -> Option<Hit> {
        let [least, most] = LEARN_LIMIT;
        let until = Instant::now() + cost.clamp(least, most);
        let left = || until.saturating_duration_since(Instant::now());
        let worker = self.worker.clone();
        let cache = worker.cached.get()?;
        if let Some(seen) = self.image.reads.seen {
            let positions = worker.shared.monitor.positions();
            let told = positions.ask(seen.server, seen.mark, left()).await;
            if let Some(told) = told {
                cache.knows(&told.visible, Some(left())).await;
            }
        }
        let position = &self.image.reads.position;
        cache.knows(position, Some(left())).await;
        match self.look(cache, request, text)? {
            (_, Ok(hit)) => Some(hit),
            // It is read again.
            (_, Err(Miss::Checked)) => None,
            (promise, Err(missed)) => {
                self.missed(cache, (request, text), promise, Some(missed));
                None
            }
        }
    }

    /// Waits for another session's fill. Its result is looked up as any is: it may not be one that this session may
    /// be served. Nobody waits twice.
    async fn wait_for_fill(
        &mut self,
        request: &Request<'_>,
        text: &[u8],
        waiting: Waiting,
    ) -> Result<Option<Hit>, Abort> {
        let worker = self.worker.clone();
        let Some(cache) = worker.cached.get() else {
            return Ok(None);
        };
        let filled = poll_fn(|cx| self.poll_filled(cx, cache, &waiting));
        // Where it takes too long, the look-up below says so.
        let _ = timeout_at(waiting.until.into(), filled).await;
        let looked = loop {
            if self.was_killed() {
                cache.store().note_waited(&waiting, false);
                return Err(self.interrupted().await);
            }
            match self.look(cache, request, text) {
                // The log is about to tell of what the result shows.
                Some((_, Err(Miss::NotYet))) if Instant::now() < waiting.until => {
                    sleep(LOOK_AGAIN).await;
                }
                looked => break looked,
            }
        };
        let is_served = matches!(looked, Some((_, Ok(_))));
        cache.store().note_waited(&waiting, is_served);
        match looked {
            Some((_, Ok(hit))) => return Ok(Some(hit)),
            Some((promise, Err(_))) if self.running.fill.is_none() => {
                self.missed(cache, (request, text), promise, None);
            }
            _ => {}
        }
        Ok(None)
    }

    fn poll_filled(&self, cx: &Context<'_>, cache: &Cache, waiting: &Waiting) -> Poll<()> {
        self.handle.register(cx);
        match self.was_killed() || cache.store().wait_for_fill(waiting, cx.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Answers with what was kept.
    async fn answer_cached(&mut self, hit: Hit) -> Result<(), Abort> {
        if !hit.seen.is_empty() {
            let reads = &mut self.image.reads;
            reads.shown_out_of_memory(&hit.seen);
            let position = &mut reads.position;
            self.worker.cluster.bound(position, INTERVALS_MAX);
        }
        self.note_shown_by_memory(hit.seen.is_empty());
        self.running.route.begin(self.image.reads.level, None);
        self.running.route.reason = Some(Reason::Cached);
        self.image.last.note_local_answer(self.image.family);
        self.image.last.answered_here(-1);
        self.image.last.found_rows.set(hit.rows);
        let metrics = self.worker.metrics();
        metrics.statement(
            None,
            metric_kind(Kind::Select),
            self.running.begun.elapsed(),
        );
        if !self.send_now(&hit.bytes)? {
            Box::pin(self.send(&hit.bytes)).await?;
        }
        Ok(())
    }
}

//! What the run keeps of its sessions, and counts.

use super::*;

/// What a run has met.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(in crate::simulation) steps: u64,
    pub(in crate::simulation) statements: u64,
    pub(in crate::simulation) moves: u64,
    pub(in crate::simulation) conflicts: u64,
    pub(in crate::simulation) held: u64,
    pub(in crate::simulation) retried: u64,
    pub(in crate::simulation) unknown: u64,
    pub(in crate::simulation) lost_transactions: u64,
    /// Their server was no more the primary when a connection to it had been had.
    pub(in crate::simulation) overtaken: u64,
    pub(in crate::simulation) given_up: u64,
    pub(in crate::simulation) no_room: u64,
    pub(in crate::simulation) drained: u64,
    /// Waited for a connection, and were given one.
    pub(in crate::simulation) served: u64,
    /// A connection could not be had.
    pub(in crate::simulation) unserved: u64,
    /// Gone while they waited for one.
    pub(in crate::simulation) left: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.statements += other.statements;
        self.moves += other.moves;
        self.conflicts += other.conflicts;
        self.held += other.held;
        self.retried += other.retried;
        self.unknown += other.unknown;
        self.lost_transactions += other.lost_transactions;
        self.overtaken += other.overtaken;
        self.given_up += other.given_up;
        self.no_room += other.no_room;
        self.drained += other.drained;
        self.served += other.served;
        self.unserved += other.unserved;
        self.left += other.left;
    }
}

#[derive(Debug, Default)]
pub(super) struct Flag(pub(super) AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A statement's place in the queue, and the number by which this model knows its order.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) place: Place,
    pub(super) number: u64,
    pub(super) lane: Lane,
}

/// Why a statement was not run here: always worth a wait.
#[derive(Debug)]
pub(super) struct NotRun;

impl Refusal for NotRun {
    fn is_passing(&self) -> bool {
        true
    }
}

/// A session's statement, as the engine's loop looks at it. A transaction that loses its server is over in this model.
pub(super) struct Statement {
    pub(super) age: Duration,
    pub(super) unsent: bool,
}

impl Situation for Statement {
    fn has_replay(&self) -> bool {
        false
    }

    fn may_ask_primary(&self) -> bool {
        true
    }

    fn take_unsent(&mut self) -> bool {
        std::mem::take(&mut self.unsent)
    }

    fn age(&self) -> Duration {
        self.age
    }

    fn wait_max(&self) -> Duration {
        HOLD
    }
}

pub(super) type Taking = Pin<Box<dyn Future<Output = Result<Lease, BackendError>>>>;

/// Where a session's statement is.
pub(super) enum At {
    Idle,
    /// It waits for one of the server's connections, behind those with a lower number.
    Connecting {
        server: usize,
        taking: Taking,
        number: u64,
        waiting: Option<Waiting>,
    },
    /// Sent; the server runs it then. On a connection of its own, or on that of the transaction.
    Server {
        server: usize,
        until: u64,
        lease: Option<Lease>,
        waiting: Option<Waiting>,
    },
    Queue(Waiting),
    /// In vain; it looks again then.
    Pause(Waiting, u64),
}

impl fmt::Debug for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Idle => write!(f, "idle"),
            At::Connecting { server, number, .. } => write!(f, "number {number} for {server}"),
            At::Server { server, until, .. } => write!(f, "at {server} until {until}"),
            At::Queue(waiting) => write!(f, "{waiting:?}"),
            At::Pause(waiting, until) => write!(f, "{waiting:?}, until {until}"),
        }
    }
}

/// The connection of an open transaction.
pub(super) struct Pinned {
    pub(super) server: usize,
    pub(super) lease: Lease,
    /// Its number there.
    pub(super) thread: u32,
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {} to {}", self.thread, self.server)
    }
}

#[derive(Debug)]
pub(super) struct Session {
    pub(super) access: Access,
    /// The loop that tries, tries again and waits: the one that ships.
    pub(super) attempts: Attempts<NotRun>,
    pub(super) begun: u64,
    /// Connections that broke under the statement.
    pub(super) lost: u32,
    pub(super) at: At,
    pub(super) pinned: Option<Pinned>,
    pub(super) required: GtidSet,
    pub(super) woken: Arc<Flag>,
}

impl Session {
    pub(super) fn view(&self) -> SessionView<'_> {
        let mut view = SessionView::new(&self.required);
        let pinned_to = self.pinned.as_ref().map(|pinned| pinned.server);
        view.pinned_to = pinned_to.map(|at| ServerId(at as u16));
        if self.pinned.is_some() {
            view.transaction = Transaction::ReadWrite;
        }
        view
    }

    pub(super) fn lane(&self) -> Lane {
        match is_for_primary(&self.view(), self.access) {
            true => Lane::Primary,
            false => Lane::Reader,
        }
    }
}

/// An answer under way.
pub(super) struct Late {
    pub(super) at: u64,
    pub(super) seen: ObservationKind,
}

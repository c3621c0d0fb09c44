//! The decision itself. Allocates nothing and looks at each server once.

use std::cmp::Ordering;

use millrace_sql::Access;
use millrace_topology::{GtidSet, ServerId, ServerView, Snapshot, Unfit, Waits};
use smallvec::SmallVec;

use crate::{
    AllLag, Balance, CANDIDATES_MAX, Candidate, Candidates, Consistency, Decision, Load, NoServer,
    Options, Reads, Reason, SessionView, Target, Transaction, Wanted,
};

/// Says which servers may run a statement that needs `access`, in the order to try them.
pub fn decide(
    world: &Snapshot,
    options: &Options,
    session: &SessionView<'_>,
    access: Access,
    load: &Load<'_>,
) -> Decision {
    if let Some(server) = session.pinned_to {
        return send(one(server, false), Reason::Pinned);
    }
    let reason = match session.target {
        Target::PrimaryOnly => Some(Reason::PrimaryListener),
        Target::ReplicasOnly => return to_replicas(world, options, session, load),
        Target::Auto => needs_primary(session, access),
    };
    match reason {
        None => to_readers(world, options, session, access, load),
        Some(reason) => match without_primary(session) {
            Some(access) => to_others(world, options, session, access, load),
            None => to_primary(world, session, reason),
        },
    }
}

/// Whether nothing but the primary will do for a statement that needs `access`.
pub fn is_for_primary(session: &SessionView<'_>, access: Access) -> bool {
    let needs = match session.target {
        Target::PrimaryOnly => true,
        Target::ReplicasOnly => false,
        Target::Auto => needs_primary(session, access).is_some(),
    };
    needs && without_primary(session).is_none()
}

/// What a statement for the primary needs of another server, where the primary cannot be had and
/// another server will do.
fn without_primary(session: &SessionView<'_>) -> Option<Access> {
    let access = session.without_primary?;
    // Data is read where the listener, the session and its rules allow.
    let bound = session.target == Target::PrimaryOnly
        || session.wanted == Some(Wanted::Primary)
        || (session.position_unknown && session.consistency != Consistency::Eventual);
    (access == Access::Session || !bound).then_some(access)
}

/// To a server that takes reads, in the primary's place.
#[cold]
fn to_others(
    world: &Snapshot,
    options: &Options,
    session: &SessionView<'_>,
    access: Access,
    load: &Load<'_>,
) -> Decision {
    // A rule chooses among servers with the data, and this reads none.
    let free = SessionView {
        wanted: None,
        ..*session
    };
    let session = match access {
        Access::Session => &free,
        _ => session,
    };
    match to_readers(world, options, session, access, load) {
        Decision::Send { candidates, .. } => send(candidates, Reason::WithoutPrimary),
        nowhere => nowhere,
    }
}

/// Why the statement may run on the primary only; none where any server with the data will do.
fn needs_primary(session: &SessionView<'_>, access: Access) -> Option<Reason> {
    match access {
        Access::Write => return Some(Reason::Write),
        Access::PrimaryRead if !asks_for_others(session) => return Some(Reason::PrimaryRead),
        Access::PrimaryRead | Access::Read | Access::Session => {}
    }
    if session.transaction == Transaction::ReadWrite {
        Some(Reason::Transaction)
    } else if session.serializable {
        Some(Reason::Serializable)
    } else if session.autocommit_off {
        Some(Reason::AutocommitOff)
    } else if session.position_unknown
        && access == Access::Read
        && session.consistency != Consistency::Eventual
    {
        Some(Reason::PositionUnknown)
    } else if session.wanted == Some(Wanted::Primary) {
        Some(Reason::Wanted)
    } else {
        None
    }
}

/// It asks about the server, and for another than the primary.
fn asks_for_others(session: &SessionView<'_>) -> bool {
    session.about_server && matches!(session.wanted, Some(Wanted::Replica | Wanted::Servers(_)))
}

fn send(candidates: Candidates, reason: Reason) -> Decision {
    Decision::Send { candidates, reason }
}

fn one(server: ServerId, wait: bool) -> Candidates {
    let mut candidates = Candidates::new();
    candidates.push(Candidate { server, wait });
    candidates
}

fn to_primary(world: &Snapshot, session: &SessionView<'_>, reason: Reason) -> Decision {
    match world.primary {
        Some(primary) => send(one(primary, session.primary_lags), reason),
        None => Decision::NoServer(no_primary(world)),
    }
}

fn no_primary(world: &Snapshot) -> NoServer {
    if world.conflict.is_empty() {
        NoServer::NoPrimary
    } else {
        NoServer::Conflict
    }
}

fn to_replicas(
    world: &Snapshot,
    options: &Options,
    session: &SessionView<'_>,
    load: &Load<'_>,
) -> Decision {
    let mut readers = rank(world, options, session, Access::Read, Reads::Replicas, load);
    if readers.is_empty() && session.wanted.is_some() {
        // What is asked for is not to be had here.
        let free = SessionView {
            wanted: None,
            ..*session
        };
        readers = rank(world, options, &free, Access::Read, Reads::Replicas, load);
    }
    // There is no primary to fall back to here: every replica gets its chance.
    let candidates: Candidates = readers
        .iter()
        .take(CANDIDATES_MAX)
        .map(Reader::candidate)
        .collect();
    if candidates.is_empty() {
        return Decision::NoServer(NoServer::NoReplica);
    }
    send(candidates, Reason::ReplicaListener)
}

fn to_readers(
    world: &Snapshot,
    options: &Options,
    session: &SessionView<'_>,
    access: Access,
    load: &Load<'_>,
) -> Decision {
    // A set that names the primary names it as a reader.
    let reads = match session.wanted {
        Some(Wanted::Servers(_)) => Reads::All,
        _ => options.reads,
    };
    let readers = rank(world, options, session, access, reads, load);
    let mut waits = match world.primary {
        Some(_) if options.wait_limit_ms == 0 => 0,
        Some(_) => usize::from(options.waits_max),
        None => CANDIDATES_MAX,
    };
    let room = CANDIDATES_MAX - usize::from(world.primary.is_some());
    let mut candidates = Candidates::new();
    for reader in &readers {
        let asks = reader.lacks > 0;
        // It is not worth a wait where nobody can tell how long it would be: nothing from that source
        // has ever come to it, or a wait there was in vain a moment ago, or would be one for DDL.
        let hopeless = (reader.lacks == u64::MAX || reader.is_late()) && world.primary.is_some();
        if candidates.len() == room || (asks && (waits == 0 || hopeless)) {
            continue;
        }
        waits -= usize::from(asks);
        candidates.push(reader.candidate());
    }
    let reason = match candidates.first() {
        _ if access == Access::Session => Reason::AnyServer,
        Some(first) if first.wait => Reason::ReadAfterWait,
        Some(_) => Reason::Read,
        None if readers.is_empty() => Reason::NoFitReplica,
        None => Reason::ReplicasBehind,
    };
    if let Some(server) = world.primary
        && candidates
            .iter()
            .all(|candidate| candidate.server != server)
    {
        candidates.push(Candidate {
            server,
            wait: session.primary_lags,
        });
    }
    if candidates.is_empty() {
        return Decision::NoServer(no_primary(world));
    }
    send(candidates, reason)
}

/// A server that may take the read.
#[derive(Debug, Clone, Copy)]
struct Reader {
    server: ServerId,
    /// How many of the required transactions it is not known to have.
    lacks: u64,
    /// Those that have the position come first, then those that are expected to have it sooner,
    /// by the magnitude of what they lack, and last those that were too late with it lately.
    distance: u32,
    /// In another zone than Millrace.
    far: bool,
    /// The primary, for a session that has read at a replica and could read there again: who comes to
    /// the primary for the sake of balance stays there, as no replica is known to show as much.
    refuge: bool,
    /// Not where the session is to stay.
    strange: bool,
    /// What a statement more would have to wait for there, for each unit of `share`.
    cost: u64,
    share: u32,
    /// Its place in the rotation: 0 is next.
    turn: u16,
}

impl Reader {
    fn candidate(&self) -> Candidate {
        Candidate {
            server: self.server,
            wait: self.lacks > 0,
        }
    }

    /// It lacks something, and is late with it: see [`Load::behind`].
    fn is_late(&self) -> bool {
        self.distance >= u64::BITS
    }

    fn preference(&self) -> (u32, bool, bool, bool) {
        (self.distance, self.strange, self.far, self.refuge)
    }

    fn compare(&self, other: &Reader) -> Ordering {
        self.preference()
            .cmp(&other.preference())
            .then_with(|| self.compare_cost(other))
            .then(self.turn.cmp(&other.turn))
    }

    fn compare_cost(&self, other: &Reader) -> Ordering {
        let cost = self.cost.saturating_mul(u64::from(other.share));
        cost.cmp(&other.cost.saturating_mul(u64::from(self.share)))
    }
}

/// On the stack for as many servers as a deployment usually has.
type Readers = SmallVec<[Reader; 8]>;

/// How the servers that are asked for share reads.
fn balance(options: &Options, session: &SessionView<'_>) -> Balance {
    match session.wanted {
        Some(Wanted::Servers(set)) => set.balance.unwrap_or(options.balance),
        _ => options.balance,
    }
}

/// All servers that may take the read, best first.
fn rank(
    world: &Snapshot,
    options: &Options,
    session: &SessionView<'_>,
    access: Access,
    reads: Reads,
    load: &Load<'_>,
) -> Readers {
    let mut readers = readers(world, options, session, access, reads, load, false);
    if options.all_lag == AllLag::Replicas
        && readers
            .iter()
            .all(|reader| Some(reader.server) == world.primary)
    {
        readers = self::readers(world, options, session, access, reads, load, true);
    }
    if readers.len() > 1 {
        take_turns(&mut readers, load.rotation);
        readers.sort_unstable_by(Reader::compare);
        if balance(options, session) == Balance::Latency {
            choose_of_two(&mut readers, load.rotation);
        }
    }
    readers
}

/// In no order. `lagging`: with those that are further behind than they should be.
fn readers(
    world: &Snapshot,
    options: &Options,
    session: &SessionView<'_>,
    access: Access,
    reads: Reads,
    load: &Load<'_>,
    lagging: bool,
) -> Readers {
    let demanding = access == Access::Read && session.consistency != Consistency::Eventual;
    let required = demanding.then_some(session.required);
    let seen = session.seen.filter(|_| demanding);
    let mut readers = Readers::new();
    for view in &world.servers {
        let is_primary = world.primary == Some(view.id);
        let fit = match view.unfit {
            None => true,
            Some(Unfit::Lagging { .. }) => lagging,
            Some(_) => false,
        };
        if !fit || (is_primary && reads == Reads::Replicas) {
            continue;
        }
        if session
            .wanted
            .is_some_and(|wanted| wanted.leaves_out(view.entry(), is_primary))
        {
            continue;
        }
        if !is_primary && seen.is_some_and(|seen| seen != view.id) {
            continue;
        }
        let lacks = match required {
            Some(set) if !is_primary => lacks(view, set, load),
            _ => u64::from(is_primary && session.primary_lags),
        };
        let vain = match view.waits {
            Waits::Gtids => false,
            // Replicas without GTIDs may count how far they are but a few times a second, and a wait of a
            // cluster's node that takes too long costs its connection: so they are not tried again at once.
            // Where there is the primary to turn to.
            Waits::Log | Waits::Cluster => {
                let other = world.primary.is_some() && session.target == Target::Auto;
                other && is_late(load, view.id)
            }
            Waits::Nothing => true,
        };
        if lacks > 0 && vain {
            continue;
        }
        let mut reader = reader(view, lacks, options, session, load);
        // Where servers do not tell how far they are, none would ever leave the replica.
        reader.refuge = is_primary
            && seen
                .filter(|seen| *seen != view.id)
                .and_then(|seen| world.server(seen))
                .is_some_and(|seen| seen.waits != Waits::Nothing);
        readers.push(reader);
    }
    readers
}

/// Whether a wait was in vain there lately.
fn is_late(load: &Load<'_>, server: ServerId) -> bool {
    let shifted = load.behind.checked_shr(server.index() as u32);
    shifted.unwrap_or(0) & 1 != 0
}

fn reader(
    view: &ServerView,
    lacks: u64,
    options: &Options,
    session: &SessionView<'_>,
    load: &Load<'_>,
) -> Reader {
    let index = view.id.index();
    let outstanding = u64::from(load.outstanding.get(index).copied().unwrap_or(0));
    let late = is_late(load, view.id);
    let magnitude = u64::BITS - lacks.leading_zeros();
    Reader {
        server: view.id,
        lacks,
        distance: magnitude + if late && lacks > 0 { u64::BITS } else { 0 },
        refuge: false,
        far: !options.zone.is_empty() && view.zone != options.zone,
        strange: options.sticky && session.home.is_some_and(|home| home != view.id),
        cost: match balance(options, session) {
            Balance::LeastOutstanding => outstanding,
            Balance::Latency => {
                let response = load.response_us.get(index).copied().unwrap_or(0);
                u64::from(response) * (outstanding + 1)
            }
            Balance::Weighted | Balance::RoundRobin => 0,
        },
        share: match balance(options, session) {
            // All alike, but for one that has just come back.
            Balance::RoundRobin => (view.share / view.weight.max(1)).max(1),
            _ => view.share.max(1),
        },
        turn: 0,
    }
}

/// Puts the one first whose turn it is, or any other as good but for its cost, where that one is
/// expected to answer sooner. Who always took the best would send everybody to the same server
/// until its figures tell.
fn choose_of_two(readers: &mut Readers, rotation: u32) {
    let best = readers[0].preference();
    let peers = readers
        .iter()
        .take_while(|reader| reader.preference() == best)
        .count();
    if peers < 3 {
        // Of two, the better is first already.
        return;
    }
    let next = (0..peers)
        .min_by_key(|at| readers[*at].turn)
        .unwrap_or_default();
    // Any other: a number without a pattern, made of the rotation.
    let mixed = (u64::from(rotation).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) as usize;
    let other = (next + 1 + mixed % (peers - 1)) % peers;
    let chosen = match readers[next].compare_cost(&readers[other]) {
        Ordering::Greater => other,
        _ => next,
    };
    readers[..=chosen].rotate_right(1);
}

fn lacks(view: &ServerView, required: &GtidSet, load: &Load<'_>) -> u64 {
    if required.is_empty() || view.executed.contains(required) {
        return 0;
    }
    match load.known.get(view.id.index()) {
        Some(known) if known.contains(required) => 0,
        Some(known) => known.lacks(required).min(view.executed.lacks(required)),
        None => view.executed.lacks(required),
    }
}

/// Numbers the readers from the one whose turn it is; over time each starts as often as its share
/// says.
fn take_turns(readers: &mut Readers, rotation: u32) {
    let count = readers.len();
    let share = readers[0].share;
    let first = if readers.iter().all(|reader| reader.share == share) {
        rotation as usize % count
    } else {
        first_by_share(readers, rotation)
    };
    for (at, reader) in readers.iter_mut().enumerate() {
        let turn = if at < first { at + count } else { at } - first;
        reader.turn = u16::try_from(turn).unwrap_or(u16::MAX);
    }
}

/// The multiples of the golden ratio, without their whole parts, are spread evenly over 0 to 1
/// however many of them one takes, so that nobody is first many times in a row.
fn first_by_share(readers: &Readers, rotation: u32) -> usize {
    let total: u64 = readers.iter().map(|reader| u64::from(reader.share)).sum();
    let mut slot = (u64::from(rotation.wrapping_mul(0x9E37_79B9)) * total) >> 32;
    for (at, reader) in readers.iter().enumerate() {
        if slot < u64::from(reader.share) {
            return at;
        }
        slot -= u64::from(reader.share);
    }
    0
}

#[cfg(test)]
mod tests;

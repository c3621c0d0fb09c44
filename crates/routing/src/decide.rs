//! The decision itself. Allocates nothing and looks at each server once.

use std::cmp::Ordering;

use millrace_sql::Access;
use millrace_topology::{GtidSet, ServerId, ServerView, Snapshot};
use smallvec::SmallVec;

use crate::{
    CANDIDATES_MAX, Candidate, Candidates, Consistency, Decision, Load, NoServer, Options, Reads,
    Reason, SessionView, Target, Transaction,
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
        return send(one(server), Reason::Pinned);
    }
    match session.target {
        Target::PrimaryOnly => return to_primary(world, Reason::PrimaryListener),
        Target::ReplicasOnly => return to_replicas(world, session, load),
        Target::Auto => {}
    }
    match needs_primary(session, access) {
        Some(reason) => to_primary(world, reason),
        None => to_readers(world, options, session, access, load),
    }
}

/// Why the statement may run on the primary only; none where any server with the data will do.
fn needs_primary(session: &SessionView<'_>, access: Access) -> Option<Reason> {
    match access {
        Access::Write => return Some(Reason::Write),
        Access::PrimaryRead => return Some(Reason::PrimaryRead),
        Access::Read | Access::Session => {}
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
    } else {
        None
    }
}

fn send(candidates: Candidates, reason: Reason) -> Decision {
    Decision::Send { candidates, reason }
}

fn one(server: ServerId) -> Candidates {
    let mut candidates = Candidates::new();
    candidates.push(Candidate {
        server,
        wait: false,
    });
    candidates
}

fn to_primary(world: &Snapshot, reason: Reason) -> Decision {
    match world.primary {
        Some(primary) => send(one(primary), reason),
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

fn to_replicas(world: &Snapshot, session: &SessionView<'_>, load: &Load<'_>) -> Decision {
    let readers = rank(world, session, Access::Read, Reads::Replicas, load);
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
    let readers = rank(world, session, access, options.reads, load);
    let mut waits = match world.primary {
        Some(_) if options.wait_limit_ms == 0 => 0,
        Some(_) => usize::from(options.waits_max),
        None => CANDIDATES_MAX,
    };
    let room = CANDIDATES_MAX - usize::from(world.primary.is_some());
    let mut candidates = Candidates::new();
    for reader in &readers {
        let asks = reader.lacks > 0;
        if candidates.len() == room || (asks && waits == 0) {
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
            wait: false,
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
    /// As many, where it was too late with others lately; else 0.
    late: u64,
    outstanding: u32,
    weight: u32,
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

    /// Those that are late come last, the others by how busy they are for their weight, then by
    /// turn.
    fn compare(&self, other: &Reader) -> Ordering {
        let busy = u64::from(self.outstanding) * u64::from(other.weight);
        let other_busy = u64::from(other.outstanding) * u64::from(self.weight);
        self.late
            .cmp(&other.late)
            .then(busy.cmp(&other_busy))
            .then(self.turn.cmp(&other.turn))
    }
}

/// On the stack for as many servers as a deployment usually has.
type Readers = SmallVec<[Reader; 8]>;

/// All servers that may take the read, best first.
fn rank(
    world: &Snapshot,
    session: &SessionView<'_>,
    access: Access,
    reads: Reads,
    load: &Load<'_>,
) -> Readers {
    let demanding = access == Access::Read && session.consistency != Consistency::Eventual;
    let required = demanding.then_some(session.required);
    let mut readers = Readers::new();
    for view in &world.servers {
        let is_primary = world.primary == Some(view.id);
        if !view.is_fit() || (is_primary && reads == Reads::Replicas) {
            continue;
        }
        let lacks = match required {
            Some(set) if !is_primary => lacks(view, set, load),
            _ => 0,
        };
        // Without GTIDs a server cannot be asked to wait.
        if lacks > 0 && !view.gtid {
            continue;
        }
        readers.push(Reader {
            server: view.id,
            lacks,
            late: match load.behind.checked_shr(view.id.index() as u32) {
                Some(bits) if bits & 1 != 0 => lacks,
                _ => 0,
            },
            outstanding: load.outstanding.get(view.id.index()).copied().unwrap_or(0),
            weight: view.weight.max(1),
            turn: 0,
        });
    }
    if readers.len() > 1 {
        take_turns(&mut readers, load.rotation);
        readers.sort_unstable_by(Reader::compare);
    }
    readers
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

/// Numbers the readers from the one whose turn it is; in a full round each starts as often as its
/// weight says.
fn take_turns(readers: &mut Readers, rotation: u32) {
    let total: u32 = readers
        .iter()
        .fold(0, |sum, r| r.weight.saturating_add(sum));
    let mut slot = rotation % total;
    let mut first = 0;
    for (at, reader) in readers.iter().enumerate() {
        if slot < reader.weight {
            first = at;
            break;
        }
        slot -= reader.weight;
    }
    let count = readers.len();
    for (at, reader) in readers.iter_mut().enumerate() {
        let turn = if at < first { at + count } else { at } - first;
        reader.turn = u16::try_from(turn).unwrap_or(u16::MAX);
    }
}

#[cfg(test)]
mod tests;

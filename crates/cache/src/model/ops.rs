//! What can happen in a history.

use super::*;

#[derive(Clone, Debug)]
pub(super) enum Op {
    /// A transaction is written to the log. `by_table`: as a statement.
    Commit {
        session: usize,
        writes: Vec<(u8, u8)>,
        by_table: bool,
        xa: bool,
    },
    /// The next transactions that it can show become visible on a server, skipping some.
    Show {
        server: usize,
        skip: usize,
        count: usize,
    },
    /// And part of its position.
    Execute {
        server: usize,
        skip: usize,
        count: usize,
    },
    Follow {
        count: usize,
    },
    Settle,
    Leave {
        server: usize,
    },
    Join {
        server: usize,
    },
    Read {
        session: usize,
        query: Query,
        server: usize,
    },
    /// The server takes its snapshot for the read under way of a session.
    Snapshot {
        session: usize,
    },
    End {
        session: usize,
    },
    BeginTransaction {
        session: usize,
        server: usize,
    },
    EndTransaction {
        session: usize,
    },
    /// The connection to the log is lost. `anew`: the follower cannot go on where it was.
    Gap {
        anew: bool,
    },
    Wait {
        millis: u64,
    },
    Flush,
}

pub(super) fn ops() -> impl Strategy<Value = Vec<Op>> {
    let query = (0..TABLES, 0..KEYS, 0..2u8, prop::bool::weighted(0.1)).prop_map(
        |(table, lo, more, by_table)| Query {
            table,
            lo,
            hi: (lo + more).min(KEYS - 1),
            by_table,
        },
    );
    let session = 0..SESSIONS;
    let server = 0..SERVERS;
    let writes = prop::collection::vec((0..TABLES, 0..KEYS), 1..3);
    let op = prop_oneof![
        4 => (session.clone(), writes, prop::bool::weighted(0.15), prop::bool::weighted(0.1))
            .prop_map(|(session, writes, by_table, xa)| Op::Commit { session, writes, by_table, xa }),
        8 => (server.clone(), prop_oneof![3 => Just(0), 1 => 0..3usize], 1..6usize)
            .prop_map(|(server, skip, count)| Op::Show { server, skip, count }),
        8 => (server.clone(), prop_oneof![3 => Just(0), 1 => 0..3usize], 1..8usize)
            .prop_map(|(server, skip, count)| Op::Execute { server, skip, count }),
        6 => (1..5usize).prop_map(|count| Op::Follow { count }),
        2 => Just(Op::Settle),
        1 => server.clone().prop_map(|server| Op::Leave { server }),
        1 => server.clone().prop_map(|server| Op::Join { server }),
        16 => (session.clone(), query, server.clone())
            .prop_map(|(session, query, server)| Op::Read { session, query, server }),
        6 => session.clone().prop_map(|session| Op::Snapshot { session }),
        14 => session.clone().prop_map(|session| Op::End { session }),
        2 => (session.clone(), server).prop_map(|(session, server)| Op::BeginTransaction { session, server }),
        1 => session.prop_map(|session| Op::EndTransaction { session }),
        1 => prop::bool::weighted(0.3).prop_map(|anew| Op::Gap { anew }),
        1 => (0..700u64).prop_map(|millis| Op::Wait { millis }),
        1 => Just(Op::Flush),
    ];
    prop::collection::vec(op, 1..400)
}

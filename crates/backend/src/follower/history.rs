//! Whether a server's log goes on where another stream has ended. Asks nothing.

use millrace_topology::{Family, GtidSet, ServerId, Snapshot};

/// The history that is followed: which servers are known to have it.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Counts histories: what the store knows it by. 0 before the first.
    number: u64,
    /// Every server with its incarnation when it began. The monitor counts that up where another server answers at an
    /// address, and where a server has lost something.
    servers: Vec<u32>,
    /// Whose log was followed last, by its own word and the monitor's.
    last: Option<(ServerId, String)>,
}

/// What is known of a server whose log is to be followed.
#[derive(Debug)]
pub(super) struct Candidate<'a> {
    pub(super) id: ServerId,
    pub(super) identity: &'a str,
    pub(super) family: Family,
    pub(super) executed: &'a GtidSet,
    /// Its log has the place where the last stream ended.
    pub(super) has_place: bool,
}

impl History {
    /// What the store knows the history by.
    pub(super) fn label(&self) -> [u8; 8] {
        self.number.to_le_bytes()
    }

    /// Another history begins.
    pub(super) fn begin(&mut self, candidate: &Candidate<'_>, snapshot: &Snapshot) {
        self.number += 1;
        self.servers = snapshot.servers.iter().map(|s| s.incarnation).collect();
        self.follows(candidate);
    }

    /// This server's log is followed.
    pub(super) fn follows(&mut self, candidate: &Candidate<'_>) {
        self.last = Some((candidate.id, candidate.identity.to_owned()));
    }

    /// Whether the server may be the one whose log was followed last: then its log must still have the place.
    pub(super) fn is_last(&self, id: ServerId, identity: &str) -> bool {
        let last = self.last.as_ref();
        last.is_some_and(|(last, known)| *last == id && known == identity)
    }

    /// Whether what follows `applied` in the server's log is what follows it in this history.
    ///
    /// The same server, if it has lost nothing and was not reset: by the monitor's word, and by its log's files, which
    /// begin anew with RESET.
    ///
    /// Another server of MySQL, if it has all of `applied` and the monitor has known it since the history began: a
    /// GTID names one transaction everywhere, and what else that server has is in no stream so far, so it is sent now.
    /// Not one of MariaDB: its position is a number, and a replica may have written transactions of its own before it,
    /// which would never be sent.
    pub(super) fn goes_on(
        &self,
        candidate: &Candidate<'_>,
        applied: &GtidSet,
        snapshot: &Snapshot,
    ) -> bool {
        let known = self.servers.get(candidate.id.index());
        let now = snapshot.server(candidate.id).map(|s| s.incarnation);
        let has_all =
            candidate.executed.is_comparable(applied) && candidate.executed.contains(applied);
        let is_sound = match self.is_last(candidate.id, candidate.identity) {
            true => candidate.has_place,
            false => candidate.family == Family::MySql,
        };
        self.number > 0 && known.is_some() && known.copied() == now && has_all && is_sound
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_topology::{Options, ServerSpec, Topology};

    fn set(text: &str) -> GtidSet {
        let uuid = "11111111-1111-1111-1111-111111111111";
        GtidSet::parse_mysql(format!("{uuid}:{text}").as_bytes()).unwrap()
    }

    fn snapshot() -> Snapshot {
        let specs = ["s1:1", "s2:1"].map(ServerSpec::new).to_vec();
        let topology = Topology::new(Options::default(), specs);
        Snapshot::clone(&topology.snapshot())
    }

    fn candidate<'a>(id: u16, identity: &'a str, executed: &'a GtidSet) -> Candidate<'a> {
        Candidate {
            id: ServerId(id),
            identity,
            family: Family::MySql,
            executed,
            has_place: false,
        }
    }

    #[test]
    fn a_server_goes_on_only_with_what_was_applied() {
        let (mut snapshot, executed, applied) = (snapshot(), set("1-10"), set("1-9"));
        let mut history = History::default();
        let one = Candidate {
            has_place: true,
            ..candidate(0, "one", &executed)
        };
        assert!(!history.goes_on(&one, &applied, &snapshot));
        history.begin(&one, &snapshot);
        assert!(history.goes_on(&one, &applied, &snapshot));
        assert!(!history.goes_on(&one, &set("1-11"), &snapshot));
        // Its log was reset.
        let reset = candidate(0, "one", &executed);
        assert!(!history.goes_on(&reset, &applied, &snapshot));
        // A successor; and the same of MariaDB.
        let other = candidate(1, "other", &executed);
        assert!(history.goes_on(&other, &applied, &snapshot));
        let of_mariadb = Candidate {
            family: Family::MariaDb,
            ..other
        };
        assert!(!history.goes_on(&of_mariadb, &applied, &snapshot));
        // A server that has lost something since, and one that was not known.
        let other = candidate(1, "other", &executed);
        snapshot.servers[1].incarnation += 1;
        assert!(!history.goes_on(&other, &applied, &snapshot));
        let stranger = candidate(2, "stranger", &executed);
        assert!(!history.goes_on(&stranger, &applied, &snapshot));
    }
}

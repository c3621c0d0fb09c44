//! Servers as they really are, which nobody in the simulation but the faults knows: an asynchronous
//! cluster with an orchestrator that makes mistakes.

use millrace_topology::{Cause, Family, GtidSet, ProbeReport, Receiver, ReplicationStatus};

use super::random::Random;

/// One server.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(super) up: bool,
    /// Does not answer, and keeps its connections.
    hung: bool,
    /// Not reached from here.
    cut: bool,
    pub(super) read_only: bool,
    source: Option<usize>,
    receives: bool,
    applies: bool,
    /// Of each server that has ever written: how many of its transactions are here.
    has: Vec<u64>,
}

/// What comes of a question or a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reached {
    Yes,
    /// Nobody listens.
    Refused,
    /// Nothing comes back.
    Silence,
}

#[derive(Debug)]
pub(crate) struct Servers {
    pub(super) all: Vec<Server>,
}

impl Servers {
    /// The first is the primary of the others.
    pub(super) fn new(count: usize) -> Self {
        let server = |index: usize| Server {
            up: true,
            hung: false,
            cut: false,
            read_only: index > 0,
            source: (index > 0).then_some(0),
            receives: true,
            applies: true,
            has: vec![0; count],
        };
        Servers {
            all: (0..count).map(server).collect(),
        }
    }

    pub(super) fn reach(&self, at: usize) -> Reached {
        let server = &self.all[at];
        match (server.cut || server.hung, server.up) {
            (true, _) => Reached::Silence,
            (false, true) => Reached::Yes,
            (false, false) => Reached::Refused,
        }
    }

    /// What a probe would say now.
    pub(super) fn probe(&self, at: usize, random: &mut Random) -> Result<ProbeReport, Cause> {
        match self.reach(at) {
            Reached::Refused => return Err(Cause::Refused),
            Reached::Silence if random.one_in(4) => return Err(Cause::Lost),
            Reached::Silence => return Err(Cause::TimedOut),
            Reached::Yes => {}
        }
        // A packet is lost now and then.
        if random.one_in(200) {
            return Err(Cause::TimedOut);
        }
        Ok(self.report(at))
    }

    fn report(&self, at: usize) -> ProbeReport {
        let server = &self.all[at];
        let mut report = ProbeReport::new(Family::MySql);
        report.version = "9.7.4".into();
        report.version_number = 90_704;
        report.server_uuid = uuid(at).into();
        report.server_id = at as u32 + 1;
        report.read_only = server.read_only;
        report.super_read_only = server.read_only;
        report.executed = self.executed(at);
        report.replication = server.source.map(|source| ReplicationStatus {
            source_host: "127.0.0.1".into(),
            source_port: 3306 + source as u16,
            source_uuid: uuid(source).into(),
            source_server_id: source as u32 + 1,
            receiver: match (server.receives, self.answers(source)) {
                (false, _) => Receiver::Stopped,
                (true, false) => Receiver::Connecting,
                (true, true) => Receiver::Running,
            },
            applier_running: server.applies,
            lag_seconds: Some(0),
            last_error: "".into(),
        });
        report
    }

    /// To the other servers: the cut is between here and there.
    fn answers(&self, at: usize) -> bool {
        self.all[at].up && !self.all[at].hung
    }

    pub(super) fn executed(&self, at: usize) -> GtidSet {
        let mut text = String::new();
        for (origin, count) in self.all[at].has.iter().enumerate() {
            if *count > 0 {
                text += &format!(
                    "{},{}:1-{count}",
                    if text.is_empty() { "" } else { "," },
                    uuid(origin)
                )
                .replace(",,", ",");
            }
        }
        let text = text.trim_start_matches(',');
        GtidSet::parse_mysql(text.as_bytes()).expect("a set")
    }

    /// A write that a server takes. Gives its position.
    pub(super) fn write(&mut self, at: usize) -> GtidSet {
        self.all[at].has[at] += 1;
        let text = format!("{}:{}", uuid(at), self.all[at].has[at]);
        GtidSet::parse_mysql(text.as_bytes()).expect("a position")
    }

    /// Replicas fetch and apply what they can.
    pub(super) fn replicate(&mut self) {
        for at in 0..self.all.len() {
            let server = &self.all[at];
            let works = self.answers(at) && server.receives && server.applies;
            let Some(source) = server
                .source
                .filter(|source| works && self.answers(*source))
            else {
                continue;
            };
            let theirs = self.all[source].has.clone();
            for (own, their) in self.all[at].has.iter_mut().zip(theirs) {
                *own = their.max(*own);
            }
        }
    }

    /// Something happens.
    pub(super) fn fault(&mut self, random: &mut Random) {
        let at = random.index(self.all.len());
        let server = &mut self.all[at];
        match random.below(12) {
            0 => server.up = false,
            1 | 2 => {
                server.up = true;
                server.hung = false;
            }
            3 => server.hung = true,
            4 => server.cut = true,
            5 => (server.hung, server.cut) = (false, false),
            6 => server.read_only = !server.read_only,
            7 => server.applies = !server.applies,
            8 => server.receives = !server.receives,
            _ => self.promote(at, random.one_in(3)),
        }
    }

    /// What an orchestrator does; a careless one leaves the old primary as it is.
    fn promote(&mut self, new: usize, careless: bool) {
        if !self.answers(new) {
            return;
        }
        for at in 0..self.all.len() {
            let reached = self.answers(at);
            let server = &mut self.all[at];
            if at == new {
                (server.read_only, server.source) = (false, None);
            } else if reached && (server.source.is_some() || !careless) {
                server.follow(new);
            }
        }
    }

    /// Everything works, and one server that has most is the primary. Gives which.
    pub(super) fn calm(&mut self) -> usize {
        for server in &mut self.all {
            server.up = true;
            (server.hung, server.cut) = (false, false);
        }
        let writable = self
            .all
            .iter()
            .position(|s| !s.read_only && s.source.is_none());
        let most = (0..self.all.len()).max_by_key(|at| self.all[*at].has.iter().sum::<u64>());
        let primary = writable.or(most).unwrap_or(0);
        let everything = self.all.iter().fold(vec![0; self.all.len()], |mut all, s| {
            for (most, has) in all.iter_mut().zip(&s.has) {
                *most = (*most).max(*has);
            }
            all
        });
        // Errant transactions are an operator's work too: they are everywhere in the end.
        self.all[primary].has = everything;
        self.promote(primary, false);
        primary
    }
}

impl Server {
    fn follow(&mut self, source: usize) {
        self.read_only = true;
        self.source = Some(source);
        (self.receives, self.applies) = (true, true);
    }
}

fn uuid(at: usize) -> String {
    format!("00000000-0000-0000-0000-{at:012x}")
}

//! Names, looked up with the system's resolver, which blocks for as long as it likes: so each look-up has a thread
//! of its own, and there are few. What a server's name means is followed here as well, as it may come to mean
//! another machine.

use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// Between two look-ups of a server's name.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// A look-up that takes longer tells nothing.
const TIMEOUT: Duration = Duration::from_secs(10);

/// In so many answers in a row a machine must be missing before it counts as left: resolvers that have not
/// heard of a change yet take turns with those that have.
const ANSWERS: u32 = 2;

/// Where machines come back within this time after they have left, again and again, the name stands for them in turn:
/// Amazon Aurora's reader endpoint does, and resolvers of which some do not know of a change yet.
const TURNS: Duration = Duration::from_secs(60);

/// So many returns within that time are turns. One is a switchover and back.
const RETURNS: usize = 2;

/// At most so many machines that have left are remembered.
const LEFT: usize = 16;

/// A look-up that has not ended after this is taken to hang: another is begun beside it. A resolver's second
/// try comes after this time (resolv.conf(5)).
const HANGS: Duration = Duration::from_secs(5);

/// At most so many look-ups of one name at once.
const OF_ONE: usize = 3;

/// At most so many look-ups at once; further names do not resolve meanwhile.
const OF_ALL: usize = 64;

/// Looks names up. Who asks for a name that is being looked up shares the answer.
#[derive(Debug, Clone, Default)]
pub struct Resolver {
    under_way: Arc<Mutex<HashMap<Box<str>, LookUp>>>,
}

/// Of one name.
#[derive(Debug)]
struct LookUp {
    threads: usize,
    /// When the last of them began.
    begun: Instant,
    answer: watch::Sender<Vec<IpAddr>>,
}

impl Resolver {
    /// The machines that a name means now; none where it does not resolve in time.
    pub async fn look_up(&self, host: &str, timeout: Duration) -> Vec<IpAddr> {
        let Some(mut answer) = self.begin(host, Instant::now()) else {
            return Vec::new();
        };
        match tokio::time::timeout(timeout, answer.changed()).await {
            Ok(Ok(())) => answer.borrow().clone(),
            _ => Vec::new(),
        }
    }

    /// Where the next answer will be; none where nobody can be asked.
    fn begin(&self, host: &str, now: Instant) -> Option<watch::Receiver<Vec<IpAddr>>> {
        let mut under_way = self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let threads: usize = under_way.values().map(|one| one.threads).sum();
        let of_one = under_way.get(host);
        let due = of_one.is_none_or(|one| one.threads < OF_ONE && now >= one.begun + HANGS);
        if due && threads < OF_ALL && self.spawn(host) {
            let one = under_way.entry(host.into()).or_insert_with(|| LookUp {
                threads: 0,
                begun: now,
                answer: watch::channel(Vec::new()).0,
            });
            one.threads += 1;
            one.begun = now;
        }
        Some(under_way.get(host)?.answer.subscribe())
    }

    /// False where there is no thread to be had.
    fn spawn(&self, host: &str) -> bool {
        let (host, resolver) = (host.to_owned(), self.clone());
        let look_up = move || {
            let found = (&*host, 0).to_socket_addrs();
            let found =
                found.map_or_else(|_| Vec::new(), |found| found.map(|at| at.ip()).collect());
            resolver.end(&host, found);
        };
        // It is not waited for at the process's end.
        let named = std::thread::Builder::new().name("look-up".to_owned());
        named.spawn(look_up).is_ok()
    }

    fn end(&self, host: &str, found: Vec<IpAddr>) {
        let mut under_way = self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(one) = under_way.get_mut(host) else {
            return;
        };
        one.threads -= 1;
        one.answer.send_replace(found);
        if one.threads == 0 {
            under_way.remove(host);
        }
    }
}

/// Follows what one server's name means.
#[derive(Debug, Default)]
pub(crate) struct Name {
    begun: Option<Instant>,
    /// Its machines, each with the number of answers in a row that lacked it.
    machines: Vec<(IpAddr, u32)>,
    /// Those that have left, and when.
    left: Vec<(IpAddr, Instant)>,
    /// When one of these came back, of late.
    returned: Vec<Instant>,
    /// One answer had several of a family.
    is_several: bool,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    under_way: bool,
    /// The last look-up's, not looked at yet. Empty where it failed: then nothing is known.
    answer: Vec<IpAddr>,
}

impl Name {
    /// Has the name looked up where that is due, and takes in what was found. Waits for nothing: an answer counts
    /// when it is there.
    pub(crate) fn follow(&mut self, host: &str, resolver: &Resolver, now: Instant) {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = std::mem::take(&mut shared.answer);
        let due = self.begun.is_none_or(|begun| now >= begun + PAUSE);
        if due && !shared.under_way {
            shared.under_way = true;
            self.begun = Some(now);
            let (host, resolver, shared) = (host.to_owned(), resolver.clone(), self.shared.clone());
            tokio::spawn(async move {
                let answer = resolver.look_up(&host, TIMEOUT).await;
                let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                shared.under_way = false;
                shared.answer = answer;
            });
        }
        drop(shared);
        self.take(&answer, now);
    }

    /// Takes in an answer; an empty one tells nothing.
    pub(crate) fn take(&mut self, answer: &[IpAddr], now: Instant) {
        if answer.is_empty() {
            return;
        }
        self.left.retain(|(_, at)| now < *at + TURNS);
        if self
            .left
            .iter()
            .any(|(machine, _)| answer.contains(machine))
        {
            self.left.retain(|(machine, _)| !answer.contains(machine));
            self.returned.retain(|at| now < *at + TURNS);
            self.returned.push(now);
        }
        for (machine, without) in &mut self.machines {
            *without = match answer.contains(machine) {
                true => 0,
                false => *without + 1,
            };
        }
        let gone = self
            .machines
            .iter()
            .filter(|(_, without)| *without >= ANSWERS);
        self.left.extend(gone.map(|(machine, _)| (*machine, now)));
        self.left.drain(..self.left.len().saturating_sub(LEFT));
        self.machines.retain(|(_, without)| *without < ANSWERS);
        for machine in answer {
            if !self.machines.iter().any(|(known, _)| known == machine) {
                self.machines.push((*machine, 0));
            }
        }
    }

    /// Whether the name no longer means the machine at `at`.
    pub(crate) fn has_left(&self, at: IpAddr) -> bool {
        !self.machines.is_empty() && !self.machines.iter().any(|(machine, _)| *machine == at)
    }

    /// Whether a machine that has left is likely to come back: machines have of late, and it has left of late.
    pub(crate) fn may_return(&self, at: IpAddr, now: Instant) -> bool {
        let returned = self.returned.iter().filter(|at| now < **at + TURNS);
        let of_late = |(machine, left): &(IpAddr, Instant)| *machine == at && now < *left + TURNS;
        returned.count() >= RETURNS && self.left.iter().any(of_late)
    }

    /// Its machines, where they are several servers: a machine has one address of each family.
    pub(crate) fn several(&mut self) -> Option<Vec<IpAddr>> {
        let meant = self.machines();
        let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = meant.partition(IpAddr::is_ipv4);
        self.is_several |= v4.len() > 1 || v6.len() > 1;
        let mut all: Vec<IpAddr> = self.machines.iter().map(|(machine, _)| *machine).collect();
        all.sort_unstable();
        self.is_several.then_some(all)
    }

    /// The machines that it means, by the last answer.
    pub(crate) fn machines(&self) -> impl Iterator<Item = IpAddr> {
        let meant = self.machines.iter().filter(|(_, without)| *without == 0);
        meant.map(|(machine, _)| *machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn a_machine_has_left_when_two_answers_lack_it() {
        let (mut name, now) = (Name::default(), Instant::now());
        assert!(!name.has_left(at(1)), "nothing is known yet");
        name.take(&[at(1)], now);
        name.take(&[at(2)], now);
        assert!(!name.has_left(at(1)), "one answer is none");
        name.take(&[at(1)], now);
        name.take(&[at(2)], now);
        name.take(&[], now);
        assert!(!name.has_left(at(1)), "no answer tells nothing");
        name.take(&[at(2)], now);
        assert!(name.has_left(at(1)));
        assert!(!name.may_return(at(1), now));
        assert_eq!(name.machines().collect::<Vec<_>>(), [at(2)]);
    }

    #[test]
    fn machines_that_take_turns_are_expected_back() {
        let (mut name, start) = (Name::default(), Instant::now());
        let mut answers = |machines: &[u8], seconds| {
            let now = start + Duration::from_secs(seconds);
            for machine in machines {
                name.take(&[at(*machine)], now);
            }
            (name.has_left(at(1)), name.may_return(at(1), now))
        };
        assert_eq!(answers(&[1, 2, 2], 3), (true, false));
        let once = answers(&[1, 3, 3], 6);
        assert_eq!(once, (true, false), "one return");
        assert_eq!(answers(&[2, 3, 2, 3], 30), (true, true));
        assert_eq!(answers(&[2, 3, 2, 3], 67), (true, false), "for too long");
        assert!(name.left.len() <= LEFT);
    }

    #[test]
    fn one_thread_looks_a_name_up_for_all() {
        let resolver = Resolver::default();
        let now = Instant::now();
        let threads = |resolver: &Resolver| {
            let under_way = resolver.under_way.lock().expect("nobody panics");
            under_way.get("a name.invalid").map_or(0, |one| one.threads)
        };
        // As if the resolver hung: these threads never end.
        let hangs = |begun| {
            let answer = watch::channel(Vec::new()).0;
            let one = LookUp {
                threads: 1,
                begun,
                answer,
            };
            let mut under_way = resolver.under_way.lock().expect("nobody panics");
            under_way.insert("a name.invalid".into(), one);
        };
        hangs(now);
        let answer = resolver.begin("a name.invalid", now + HANGS / 2);
        assert_eq!(threads(&resolver), 1);
        resolver.end("a name.invalid", vec![at(1)]);
        let answer = answer.expect("it was under way");
        assert_eq!(*answer.borrow(), [at(1)]);
        assert_eq!(threads(&resolver), 0);
    }
}

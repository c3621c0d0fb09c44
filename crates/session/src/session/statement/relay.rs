//! Bytes in flight: follows a server's answer and hands it to the client as it comes. Rows are
//! never parsed; what OK packets say of the session is noted for [`crate::session::statement::fold`].

use std::future::poll_fn;
use std::io;
use std::num::NonZeroU32;
use std::task::Poll;

use millrace_backend::connect::server_error;
use millrace_backend::error::ServerError;
use millrace_backend::pool::Lease;
use millrace_engine::refusals::{Refusals, proves_nothing};
use millrace_protocol::ok::{Change, ErrPacket, OkPacket, parse_eof, rewrite_ok, status_offset};
use millrace_protocol::packet::{HEADER, header};
use millrace_protocol::response::{Event, Expect, Tracker};
use millrace_protocol::{Capabilities, Status};
use millrace_topology::{GtidSet, Waits};

use crate::error::error_packet;
use crate::error::{Abort, ClientError};
use crate::session::Session;
use crate::session::statement::rule_actions::too_slow;

/// How an answer ended.
pub(in crate::session) enum RelayOutcome {
    /// Read to its end and forwarded; what it said is in the session's `outcome`.
    Whole,
    /// An error that the caller wanted for itself; nothing was forwarded.
    Held(Box<ServerError>),
    /// The server connection broke before anything was forwarded.
    Lost,
    /// It was closed before the server read the command.
    Unasked(Box<ServerError>),
}

/// What to do with an answer on its way.
#[derive(Default)]
pub(in crate::session) struct Plan {
    /// Errors to hold back, if they come first.
    pub(in crate::session) hold: Refusals,
    /// The number to show the client for a prepared statement.
    pub(in crate::session) statement: Option<NonZeroU32>,
    /// Throw the answer away.
    pub(in crate::session) discard: bool,
    /// Sum up definitions and rows.
    pub(in crate::session) sums: bool,
    /// The statement opens a cursor, where it has rows.
    pub(in crate::session) cursor: bool,
    /// How many messages its OK is to count, where the server does not know: those of the statement before.
    pub(in crate::session) warnings: Option<u16>,
}

/// So many bytes of several results are held back.
const TOGETHER_MAX: usize = 64 * 1024;

/// The number in `Rows matched: 2  Changed: 1  Warnings: 0`.
fn matched_rows(info: &[u8]) -> Option<u64> {
    let rest = info.strip_prefix(b"Rows matched: ")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

/// Appends a column count for a client that caches definitions: they follow.
fn put_column_count(out: &mut Vec<u8>, packet: &[u8]) {
    let length = packet.len() - HEADER + 1;
    out.extend_from_slice(&[length as u8, 0, 0, packet[3]]);
    out.extend_from_slice(&packet[HEADER..]);
    out.push(1);
}

/// What of a connection's buffer is understood and not yet with the client. What is rewritten stands in a buffer of its
/// own; nearly all answers need none.
#[derive(Debug, Default)]
struct Window {
    /// Bytes before it are forwarded or rewritten.
    start: usize,
    /// Bytes before it are understood.
    at: usize,
    /// What goes to the client before the bytes from `start` on.
    out: Vec<u8>,
}

impl Window {
    /// Bytes that wait for the client.
    fn len(&self) -> usize {
        self.at - self.start + self.out.len()
    }

    /// Nothing of the answer was rewritten or sent.
    fn is_whole(&self) -> bool {
        self.start == 0 && self.out.is_empty()
    }

    /// What is understood so far goes before what is about to be written into `out`.
    fn take(&mut self, buffer: &[u8]) {
        self.out.extend_from_slice(&buffer[self.start..self.at]);
        self.start = self.at;
    }

    /// The client does not get the next `len` bytes as they are.
    fn leave_out(&mut self, len: usize) {
        self.at += len;
        self.start = self.at;
    }

    /// What waits for the client.
    fn bytes<'a>(&'a mut self, buffer: &'a [u8]) -> &'a [u8] {
        if self.out.is_empty() {
            return &buffer[self.start..self.at];
        }
        self.take(buffer);
        &self.out
    }
}

impl Session {
    /// Relays one answer from the leased connection to the client.
    pub(in crate::session) async fn relay(
        &mut self,
        lease: &mut Lease,
        expect: Expect,
        plan: &Plan,
    ) -> Result<RelayOutcome, Abort> {
        let mut tracker = self.tracker(lease, expect, plan);
        self.running.outcome.clear();
        let mut window = Window::default();
        loop {
            match tracker.next(&lease.buffer[window.at..]) {
                Event::Pass(len) => {
                    if plan.sums {
                        let passed = &lease.buffer[window.at..window.at + len];
                        self.running.outcome.sum.add(passed);
                    }
                    window.at += len;
                }
                Event::ColumnCount { len } => {
                    let packet = &lease.buffer[window.at..window.at + len];
                    if plan.sums {
                        self.running.outcome.sum.add(packet);
                    }
                    window.take(&lease.buffer);
                    put_column_count(&mut window.out, packet);
                    window.leave_out(len);
                }
                Event::Ok { len, .. } => {
                    if !self.relay_ok(lease, plan, &mut window, len) {
                        return self.lost(lease);
                    }
                }
                Event::Eof { len, .. } => self.relay_eof(lease, &mut window, len),
                Event::MarkedDefinitionsEnd { len } => {
                    let (at, capabilities) = (window.at, lease.capabilities);
                    clear_state_flag(&mut lease.buffer[at..at + len], capabilities);
                    window.at += len;
                }
                Event::Err { len } => {
                    let begun = tracker.has_begun();
                    if let Some(ended) = self.relay_error(lease, plan, &mut window, len, begun) {
                        return ended;
                    }
                }
                Event::PrepareOk {
                    len,
                    id,
                    columns,
                    params,
                    warnings,
                } => {
                    self.running.outcome.warnings = warnings;
                    if let Some(number) = plan.statement {
                        let field = window.at + HEADER + 1;
                        lease.buffer[field..field + 4].copy_from_slice(&number.get().to_le_bytes());
                    }
                    self.running.outcome.prepared = Some((id, columns, params));
                    window.at += len;
                }
                Event::LocalInfile { len } => {
                    window.at += len;
                    window.take(&lease.buffer);
                    lease.buffer.drain(..window.at);
                    (window.start, window.at) = (0, 0);
                    self.send(&window.out).await?;
                    window.out.clear();
                    self.running.outcome.forwarded = true;
                    if Box::pin(self.upload(lease)).await.is_err() {
                        lease.broken = true;
                        return Err(Abort::Client(io::ErrorKind::BrokenPipe.into()));
                    }
                    tracker.infile_sent();
                }
                // Only a client that wants them has a connection on which they are sent.
                Event::Progress { len }
                    if self.client.capabilities.contains(Capabilities::PROGRESS) =>
                {
                    window.at += len;
                }
                Event::Progress { len } => {
                    window.take(&lease.buffer);
                    window.leave_out(len);
                }
                Event::NeedMore
                    if plan.hold.contains(Refusals::LACKS_LATER) && window.len() < TOGETHER_MAX =>
                {
                    if self.fill(lease).await?.is_err() {
                        return self.lost(lease);
                    }
                }
                Event::NeedMore => {
                    if !plan.discard && window.len() > 0 {
                        self.running.outcome.forwarded = true;
                        self.running.add_to_fill(window.bytes(&lease.buffer));
                        if let Err(failure) = self.send(window.bytes(&lease.buffer)).await {
                            // The rest of the answer is of no use to anyone.
                            lease.broken = true;
                            return Err(failure);
                        }
                        window.out.clear();
                    }
                    lease.buffer.drain(..window.at);
                    (window.start, window.at) = (0, 0);
                    if self.fill(lease).await?.is_err() {
                        return self.lost(lease);
                    }
                }
                Event::Malformed => return self.lost(lease),
                Event::Done => break,
            }
        }
        self.running.outcome.rows = tracker.rows();
        self.running.outcome.result_sets = tracker.result_sets();
        if !plan.discard && window.len() > 0 {
            self.running.outcome.forwarded = true;
            let last = window.bytes(&lease.buffer);
            self.running.add_to_fill(last);
            if !self.send_now(last)? {
                self.send(last).await?;
            }
        }
        lease.buffer.drain(..window.at);
        lease.answered();
        lease.leave_room();
        if self.running.outcome.has_status {
            lease.status = self.running.outcome.status;
        }
        Ok(RelayOutcome::Whole)
    }

    /// Follows the answer.
    fn tracker(&self, lease: &Lease, expect: Expect, plan: &Plan) -> Tracker {
        let mut tracker = Tracker::new(expect, lease.capabilities);
        // Servers are never asked to leave definitions out: which of them a client still has right
        // cannot be known when its statements run on several connections.
        let cached = Capabilities::CACHE_METADATA;
        if self.client.capabilities.contains(cached) && !lease.capabilities.contains(cached) {
            tracker = tracker.showing_counts();
        }
        if plan.cursor {
            tracker = tracker.opening_cursor();
        }
        tracker
    }

    /// An OK packet, of `len` bytes; false where it cannot be read.
    fn relay_ok(
        &mut self,
        lease: &mut Lease,
        plan: &Plan,
        window: &mut Window,
        len: usize,
    ) -> bool {
        let at = window.at;
        // What an error left to be told is of what Millrace tracks.
        let bare = !std::mem::take(&mut lease.erred);
        let rewrite = self.note_ok(lease, at, len);
        if let Some(count) = plan.warnings {
            let capabilities = lease.capabilities;
            put_warnings(&mut lease.buffer[at..at + len], capabilities, count);
        }
        if self.running.ends.writes || lease.in_transaction() {
            self.note_end(lease);
        }
        if !rewrite || plan.discard {
            window.at += len;
            return true;
        }
        window.take(&lease.buffer);
        let packet = &lease.buffer[at..at + len];
        let (server, client) = (lease.capabilities, self.client.capabilities);
        let tracks = &self.image.vars.tracks;
        let kept = |change: &Change<'_>| tracks.keeps(change);
        let again = self.is_another_transaction(lease);
        let told = |status| told_status(status, lease.family, bare, again);
        let rewritten = rewrite_ok(&mut window.out, packet, server, client, kept, told);
        window.leave_out(len);
        rewritten.is_ok()
    }

    /// An EOF packet, of `len` bytes.
    fn relay_eof(&mut self, lease: &mut Lease, window: &mut Window, len: usize) {
        let at = window.at;
        window.at += len;
        let Ok((status, warnings)) = parse_eof(&lease.buffer[at + HEADER..at + len]) else {
            return;
        };
        self.running.outcome.status = status;
        self.running.outcome.has_status = true;
        self.running.outcome.warnings = warnings;
        self.running.outcome.ended_ok = false;
        if status.contains(Status::SESSION_STATE_CHANGED) {
            self.running.outcome.end_marked = true;
            // MariaDB sets the flag for no reason (observed).
            self.running.outcome.state_changed |= lease.family == millrace_sql::Family::MySql;
            let capabilities = lease.capabilities;
            clear_state_flag(&mut lease.buffer[at..at + len], capabilities);
        }
    }

    /// An error packet, of `len` bytes. Answers what ends the relay with it; else it is for the client. `begun`: a part
    /// of the answer came before it.
    fn relay_error(
        &mut self,
        lease: &mut Lease,
        plan: &Plan,
        window: &mut Window,
        len: usize,
        begun: bool,
    ) -> Option<Result<RelayOutcome, Abort>> {
        let at = window.at;
        lease.erred = true;
        let parsed = ErrPacket::parse(&lease.buffer[at + HEADER..at + len])
            .map(|error| Box::new(server_error(&error)));
        let Ok(error) = parsed else {
            return Some(self.lost(lease));
        };
        let unshown = !self.running.outcome.forwarded;
        let first = unshown && window.is_whole();
        if first && at == 0 && !begun && lease.is_unasked() {
            (lease.broken, lease.closed_before) = (true, true);
            return Some(Ok(RelayOutcome::Unasked(error)));
        }
        // What may be asked elsewhere may also have answered in part, as long as none of it was shown.
        let may_hold = first || (unshown && plan.hold.contains(Refusals::LACKS));
        if may_hold && plan.hold.has(&error) {
            lease.buffer.drain(..at + len);
            lease.answered();
            // It was refused before it had changed anything.
            lease.effects_noted();
            return Some(Ok(RelayOutcome::Held(error)));
        }
        let error = match self.in_place_of(&error, plan) {
            Some(other) => {
                window.take(&lease.buffer);
                error_packet(&other).encode(&mut window.out, lease.buffer[at + 3]);
                window.leave_out(len);
                Box::new(other.error.clone())
            }
            None => {
                window.at += len;
                error
            }
        };
        self.running.outcome.error = Some(error);
        if self.may_have_committed(lease) {
            self.running.outcome.committed_untold = true;
            // Before the client is told: whoever hears of the error from it may ask for what stands.
            self.worker.shared.written.count_untracked();
        }
        None
    }

    /// Whether something may stand after an error, which tells no position: an open transaction that the statement has
    /// committed before it failed, parts of what it did itself, rows of tables without transactions.
    fn may_have_committed(&self, lease: &Lease) -> bool {
        let (ends, open) = (&self.running.ends, lease.in_transaction());
        let undone = ends.stays && open && !self.image.autocommit_off();
        !undone && (ends.writes || (open && !ends.stays))
    }

    /// The answer under way says that a transaction is open, as did the one before, and that something was
    /// committed.
    fn is_another_transaction(&self, lease: &Lease) -> bool {
        let open = lease.in_transaction() && self.running.outcome.status.contains(Status::IN_TRANS);
        open && self.running.outcome.positioned && self.running.outcome.variables.is_empty()
    }

    /// What the client is told instead of a server's error.
    fn in_place_of(&self, error: &ServerError, plan: &Plan) -> Option<ClientError> {
        if plan.discard {
            None
        } else if error.code == 1317 && self.handle.has_timed_out() {
            Some(too_slow())
        } else if plan.hold.contains(Refusals::UNPROVEN) && proves_nothing(error) {
            self.count_unknown();
            Some(ClientError::unknown_after(error))
        } else {
            None
        }
    }

    /// The server's end, or what it sent cannot be read.
    fn lost(&self, lease: &mut Lease) -> Result<RelayOutcome, Abort> {
        lease.broken = true;
        if self.running.outcome.forwarded {
            // As without Millrace: the connection breaks in the middle of the answer.
            self.count_failed(Some(lease.server));
            Err(Abort::Client(io::ErrorKind::ConnectionAborted.into()))
        } else {
            Ok(RelayOutcome::Lost)
        }
    }

    /// Notes what an OK packet says; true if it must be rewritten for the client.
    fn note_ok(&mut self, lease: &Lease, at: usize, len: usize) -> bool {
        let payload = &lease.buffer[at + HEADER..at + len];
        let Ok(ok) = OkPacket::parse(payload, lease.capabilities) else {
            return false;
        };
        self.running.outcome.status = ok.status;
        self.running.outcome.has_status = true;
        self.running.outcome.warnings = ok.warnings;
        self.running.outcome.ended_ok = ok.header == millrace_protocol::ok::OK;
        if self.running.outcome.ended_ok {
            self.running.outcome.affected_rows = ok.affected_rows;
            self.running.outcome.insert_id = ok.last_insert_id;
            self.running.outcome.matched = matched_rows(ok.info);
        }
        if !ok.status.contains(Status::SESSION_STATE_CHANGED) {
            return false;
        }
        for change in ok.changes() {
            match change {
                Ok(Change::Gtids(gtids)) => self.note_written(lease, gtids),
                Ok(Change::SystemVariable { name, value }) if name == b"last_gtid" => {
                    if !value.is_empty() {
                        self.note_written(lease, value);
                    }
                }
                Ok(Change::SystemVariable { name, value }) => {
                    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
                    self.running
                        .outcome
                        .variables
                        .push((name.into(), value.into()));
                }
                Ok(Change::Schema(schema)) => self.running.outcome.schema = Some(schema.into()),
                Ok(Change::StateChanged(changed)) => self.running.outcome.state_changed |= changed,
                Ok(_) => {}
                Err(_) => self.running.outcome.state_changed = true,
            }
        }
        true
    }

    /// Whether the statement has committed something that its server does not tell the position of.
    fn note_end(&mut self, lease: &Lease) {
        let open = self.running.outcome.status.contains(Status::IN_TRANS);
        // One transaction may have ended and another begun.
        if !open || (lease.in_transaction() && !self.running.ends.stays) {
            self.note_untold(lease.server);
        }
    }

    /// Notes where something was written, before the client is told that it was: whoever hears of it
    /// from the client may ask for it at once.
    fn note_written(&mut self, lease: &Lease, position: &[u8]) {
        if self.worker.cluster.waits_of(lease.server) == Waits::Cluster {
            // Some clusters tell one too. Their nodes say that they have it before it is visible there
            // (observed on MariaDB 10.11 with a binary log), so it is of no use.
            return;
        }
        self.running.outcome.positioned = true;
        match GtidSet::parse(self.image.reads.position.family(), position) {
            Ok(written) => {
                self.announce(&written);
                self.image.reads.position.union(&written);
                self.worker.cluster.wrote(&written);
            }
            // What is not understood makes the session read from the primary.
            Err(_) => self.image.reads.unknown = true,
        }
    }

    /// Waits for more from the server; the inner error is the server's end. The session's own end breaks
    /// the statement off; for a client that is gone, [`Session::run`] looks.
    async fn fill(&mut self, lease: &mut Lease) -> Result<io::Result<()>, Abort> {
        let filled = poll_fn(|cx| {
            self.handle.register(cx);
            if self.handle.has_ended() {
                return Poll::Ready(None);
            }
            lease.poll_fill(cx).map(Some)
        })
        .await;
        match filled {
            Some(Ok(0)) => Ok(Err(io::ErrorKind::UnexpectedEof.into())),
            Some(Ok(_)) => Ok(Ok(())),
            Some(Err(error)) => Ok(Err(error)),
            None => {
                lease.broken = true;
                Err(Abort::Ended)
            }
        }
    }

    /// LOAD DATA LOCAL: hands the client's file to the server. A server that waits for a lock takes
    /// nothing meanwhile, for as long as its own limits allow.
    async fn upload(&mut self, lease: &mut Lease) -> Result<(), Abort> {
        let limit = lease.set_user_timeout(0);
        let uploaded = self.upload_packets(lease).await;
        if let Some(limit) = limit {
            lease.set_user_timeout(limit);
        }
        uploaded
    }

    /// Hands the client's packets to the server up to the empty one.
    async fn upload_packets(&mut self, lease: &mut Lease) -> Result<(), Abort> {
        let mut in_packet = 0;
        loop {
            if in_packet == 0
                && let Some(next) = header(&self.client.inbuf)
            {
                if next.len == 0 {
                    lease.send_content(&self.client.inbuf[..HEADER]).await?;
                    self.client.inbuf.drain(..HEADER);
                    return Ok(());
                }
                in_packet = HEADER + next.len as usize;
            }
            let ready = in_packet.min(self.client.inbuf.len());
            if ready > 0 {
                lease.send_content(&self.client.inbuf[..ready]).await?;
                self.client.inbuf.drain(..ready);
                in_packet -= ready;
                continue;
            }
            if self.read_client().await? == 0 {
                return Err(Abort::Client(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

/// The flags of an OK whose changes are left out. MySQL tells of a transaction that came after another by
/// the flag alone (`again`); MariaDB sets it for no reason (both observed). `bare`: the flag alone may
/// stand for a change of the client's.
fn told_status(status: Status, family: millrace_sql::Family, bare: bool, again: bool) -> Status {
    let changed = Status::SESSION_STATE_CHANGED;
    match family {
        millrace_sql::Family::MySql if again => status | changed,
        millrace_sql::Family::MySql if bare => status,
        millrace_sql::Family::MySql => status - changed,
        millrace_sql::Family::MariaDb => status - changed,
    }
}

fn put_warnings(packet: &mut [u8], capabilities: Capabilities, count: u16) {
    if let Ok(offset) = status_offset(packet, capabilities)
        && let Some(field) = packet.get_mut(offset + 2..offset + 4)
    {
        field.copy_from_slice(&count.to_le_bytes());
    }
}

fn clear_state_flag(packet: &mut [u8], capabilities: Capabilities) {
    if let Ok(offset) = status_offset(packet, capabilities) {
        let flag = Status::SESSION_STATE_CHANGED.bits().to_le_bytes();
        packet[offset] &= !flag[0];
        packet[offset + 1] &= !flag[1];
    }
}

//! One server connection: its stream, the state that is set on it, and small control queries.
//! Does not decide who may use it.

mod set_up;

use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use millrace_engine::books::{BLANK_ID, Books};
use millrace_engine::state::{SessionState, frame_query};
use millrace_protocol::command::COM_STMT_CLOSE;
use millrace_protocol::handshake::Attributes;
use millrace_protocol::ok::{Change, ErrPacket, OkPacket};
use millrace_protocol::response::{Event, Expect, Tracker};
use millrace_protocol::resultset::{Reply, Rows, parse_text_rows};
use millrace_protocol::{Capabilities, Status, packet};
use millrace_sql::Family;
use millrace_topology::ServerId;

use crate::buffers::{BufferPool, READ_BUFFER};
use crate::connect::{Opened, server_error};
use crate::error::{BackendError, ServerError, closed};
use crate::exchange::Exchange;
use crate::fresh::Version;
use crate::prepared::Prepared;
use crate::questions::Questions;
use crate::stream::Stream;

/// Counts a connection against its server's limit for as long as it lives.
#[derive(Debug)]
pub struct Permit(Arc<AtomicUsize>);

impl Permit {
    /// Takes one place below `limit`, where there is one.
    pub fn take(count: &Arc<AtomicUsize>, limit: usize) -> Option<Permit> {
        let mut open = count.load(Ordering::Relaxed);
        while open < limit {
            let taken =
                count.compare_exchange_weak(open, open + 1, Ordering::AcqRel, Ordering::Relaxed);
            match taken {
                Ok(_) => return Some(Permit(count.clone())),
                Err(now) => open = now,
            }
        }
        None
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A connection that is logged in and prepared for tracking.
#[derive(Debug)]
pub struct Conn {
    /// The stream. Written by [`Conn::send`] alone, so that every command's answer is owed.
    pub(crate) stream: Stream,
    /// Bytes read and not yet consumed.
    pub buffer: Vec<u8>,
    /// Where the room for them comes from.
    pub buffers: Rc<BufferPool>,
    /// The server.
    pub server: ServerId,
    /// The server's number for it, as in its process list.
    pub thread_id: u32,
    /// The flags agreed on.
    pub capabilities: Capabilities,
    /// The server's family.
    pub family: Family,
    /// Status flags of the last answer.
    pub status: Status,
    /// What it has of its login.
    pub login: LoginFacts,
    /// What is set on it.
    pub state: Rc<SessionState>,
    /// What it remembers of the sessions that have used it.
    pub books: Books,
    /// Prepared statements it holds.
    pub prepared: Prepared,
    /// It was reset, or its user changed: in a cluster it waits for nothing any more (MariaDB 10.11, observed:
    /// `wsrep_sync_wait` is without effect then).
    pub ignores_sync_wait: bool,
    /// Where its questions are counted, if it is of the monitor's account.
    pub(crate) questions: Option<Questions>,
    /// Coarse time of last use, in the worker's ticks.
    pub used: u64,
    /// Not to be used again: an unfinished answer, a KILL, an error.
    pub broken: bool,
    /// The kernel has given it up, as nothing was heard of the server: others may have come to the
    /// same end.
    pub path_lost: bool,
    /// Its last answer but those of Millrace's own was an error.
    pub erred: bool,
    /// What SET TRANSACTION said for the next transaction may still wait on it: only that a transaction is
    /// open tells that it was used up. Whoever had the connection next would have it.
    pub one_shot: bool,
    /// The server had closed it before it read what was sent last: none of that was run.
    pub closed_before: bool,
    /// Its server is taken for dead: nobody waits for what it has to say.
    pub down: Rc<Cell<bool>>,
    permit: Option<Permit>,
    exchange: Exchange,
}

/// What a connection has of where it leads and of its last login. No statement changes it.
#[derive(Debug)]
pub struct LoginFacts {
    /// The machine that it was opened to: see [`Address::at`](crate::connect::Address).
    pub at: Option<IpAddr>,
    /// Which of the machines that the server's name has meant it leads to, by its pool's count.
    pub place: u32,
    /// When it was opened.
    pub opened: Instant,
    /// The version of its server's accounts and global variables when it logged in.
    pub version: Version,
    /// The number of the collation that its results had after the login or reset; 0 where that is not known.
    pub results_number: u16,
    /// See [`Opened::tells_variables`].
    pub tells_variables: bool,
    /// `@@wait_timeout` as a login finds it; seconds.
    wait_timeout: Option<u64>,
    nonce: Vec<u8>,
    plugin: String,
    /// What it tells of Millrace at a change of user, encoded once: the connections that ask about logins change
    /// theirs all the time.
    attributes: Option<Attributes>,
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.quit();
        if let Some(questions) = &self.questions {
            questions.end(self.exchange.owed() as usize);
        }
    }
}

/// COM_PING.
const PING: [u8; 5] = [1, 0, 0, 0, 0x0e];

/// COM_QUIT, which has no answer.
const QUIT: [u8; 5] = [1, 0, 0, 0, 1];

/// A row of a control query: the columns' text, none for NULL.
pub type Row = Vec<Option<Vec<u8>>>;

impl Conn {
    /// Wraps a fresh login. `set_up` must follow before a session's statement.
    pub fn new(opened: Opened, server: ServerId, family: Family, permit: Option<Permit>) -> Conn {
        Conn {
            stream: opened.stream,
            buffer: opened.buffer,
            buffers: Rc::default(),
            server,
            thread_id: opened.greeting.thread_id,
            capabilities: opened.capabilities,
            family,
            status: opened.status,
            state: Rc::default(),
            books: Books::new(server),
            prepared: Prepared::default(),
            login: LoginFacts {
                at: None,
                place: 0,
                opened: Instant::now(),
                version: 0,
                results_number: 0,
                tells_variables: opened.tells_variables,
                wait_timeout: None,
                nonce: opened.greeting.nonce.to_vec(),
                plugin: opened.greeting.auth_plugin,
                attributes: None,
            },
            ignores_sync_wait: false,
            questions: None,
            used: 0,
            broken: false,
            path_lost: false,
            erred: false,
            one_shot: false,
            closed_before: false,
            down: Rc::default(),
            permit,
            exchange: Exchange::default(),
        }
    }

    /// Whether it speaks query attributes, so that COM_QUERY has a list before the text.
    pub fn has_attributes(&self) -> bool {
        self.capabilities.contains(Capabilities::QUERY_ATTRIBUTES)
    }

    /// Appends a text command in this connection's form.
    pub fn frame_query(&self, out: &mut Vec<u8>, text: &[u8]) {
        frame_query(out, self.has_attributes(), text);
    }

    /// Writes commands that the server answers so many times.
    ///
    /// # Errors
    /// When the connection is broken; it is not clean any more.
    pub async fn send(&mut self, bytes: &[u8], answers: usize) -> io::Result<()> {
        if let Some(questions) = &self.questions {
            questions.put(answers);
        }
        self.exchange
            .write(u32::try_from(answers).unwrap_or(u32::MAX));
        self.stream.send(bytes).await?;
        self.exchange.written();
        Ok(())
    }

    /// Writes a session's statement, with what goes ahead of it. The connection is clean again
    /// only after [`Conn::effects_noted`].
    ///
    /// # Errors
    /// As for [`Conn::send`].
    pub async fn send_statement(&mut self, bytes: &[u8], answers: usize) -> io::Result<()> {
        let sent = self.send_statement_now(bytes, answers)?;
        match sent == bytes.len() {
            true => Ok(()),
            false => self.send_rest(&bytes[sent..]).await,
        }
    }

    /// As much of it as the socket takes at once; answers how many bytes that is. The rest is for
    /// [`Conn::send_rest`].
    ///
    /// # Errors
    /// As for [`Conn::send`].
    #[inline]
    pub fn send_statement_now(&mut self, bytes: &[u8], answers: usize) -> io::Result<usize> {
        self.exchange.owe_effects();
        self.exchange
            .write(u32::try_from(answers).unwrap_or(u32::MAX));
        let sent = self.stream.send_now(bytes)?;
        if sent == bytes.len() {
            self.exchange.written();
        }
        Ok(sent)
    }

    /// Writes the rest of a statement.
    ///
    /// # Errors
    /// As for [`Conn::send`].
    pub async fn send_rest(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.send(bytes).await?;
        self.exchange.written();
        Ok(())
    }

    /// Writes a part of what the server has asked for: a local file's content.
    ///
    /// # Errors
    /// As for [`Conn::send`].
    pub async fn send_content(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.send(bytes, 0).await
    }

    /// An answer was read to its last byte, and what is meant for a client is with it.
    pub fn answered(&mut self) {
        match self.exchange.answered() {
            false => self.broken = true,
            true => {
                if let Some(questions) = &self.questions {
                    questions.end(1);
                }
            }
        }
    }

    /// What the session's statement changed on the connection is in its books.
    pub fn effects_noted(&mut self) {
        self.exchange.effects_noted();
    }

    /// Whether everything about it is known: no answer is owed or half read, nothing was said that
    /// nobody had asked for, and what statements changed was noted. Only such a connection goes back
    /// to its pool.
    pub fn is_clean(&self) -> bool {
        !self.broken && self.exchange.is_over() && self.buffer.is_empty()
    }

    /// Whether it is silent, as a clean connection is until it is asked something.
    pub fn is_quiet(&mut self) -> bool {
        self.buffer.is_empty() && self.stream.is_quiet()
    }

    /// As [`Stream::set_user_timeout`].
    pub fn set_user_timeout(&self, limit: u32) -> Option<u32> {
        self.stream.set_user_timeout(limit)
    }

    /// The same, of this very moment; costs a system call.
    pub fn is_quiet_now(&mut self) -> bool {
        self.buffer.is_empty() && self.stream.is_quiet_now()
    }

    /// Asks for a sign of life (COM_PING).
    ///
    /// # Errors
    /// When the connection is broken.
    pub async fn ping(&mut self) -> Result<(), BackendError> {
        self.send(&PING, 1).await?;
        self.read_answer(Expect::Simple).await?;
        Ok(())
    }

    /// What the server has said unasked before it closed the connection, as far as that is an error.
    /// Does not wait.
    pub fn farewell(&mut self) -> Option<ServerError> {
        let _ = self.poll_fill(&mut Context::from_waker(Waker::noop()));
        let len = packet::whole(&self.buffer)?;
        let error = ErrPacket::parse(&self.buffer[packet::HEADER..len]).ok()?;
        Some(server_error(&error))
    }

    /// For how many seconds the server lets it be idle, where that is known.
    pub fn wait_timeout(&self) -> Option<u64> {
        let set = self.state.reported("wait_timeout");
        set.and_then(|set| std::str::from_utf8(set).ok()?.parse().ok())
            .or(self.login.wait_timeout)
    }

    /// The packet of `len` bytes at the front of what was read is no answer, but the server's word that
    /// it has closed the connection (4031, say): what was sent last was not read. The numbers of an
    /// answer's packets begin with 1 (manual, "MySQL Packets"; observed on 9.7).
    pub fn is_unasked(&self) -> bool {
        packet::header(&self.buffer).is_some_and(|header| header.seq == 0)
    }

    /// The stream alone, for somebody who speaks to the server without books: replication.
    pub fn into_stream(mut self) -> Stream {
        std::mem::replace(&mut self.stream, Stream::Gone)
    }

    /// Takes its leave of the server (COM_QUIT), which would count a connection that just ends as
    /// aborted. Not in the middle of a client's statement, see [`Exchange::may_take_leave`]. Does not wait:
    /// what the socket has no room for is left out.
    fn quit(&mut self) {
        if matches!(self.stream, Stream::Gone) || !self.exchange.may_take_leave() {
            return;
        }
        // Without regard to how long the task has run already: that would look like a full socket.
        let _ = pin!(tokio::task::unconstrained(self.stream.send(&QUIT)))
            .poll(&mut Context::from_waker(Waker::noop()));
    }

    /// Polls for more bytes from the server.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let buffers = &self.buffers;
        let make_room = |buffer: &mut Vec<u8>| {
            if buffer.is_empty() && buffer.capacity() < READ_BUFFER {
                *buffer = buffers.take();
            } else if buffer.capacity() - buffer.len() < 1024 {
                buffer.reserve(READ_BUFFER);
            }
        };
        let polled = self.stream.poll_read_into(cx, &mut self.buffer, make_room);
        if polled.is_pending() {
            self.leave_room();
            if self.down.get() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        if let Poll::Ready(Err(error)) = &polled {
            self.path_lost = is_path_lost(error);
        }
        polled
    }

    /// Gives back the room that it reads into, if there is nothing in it: after an answer.
    pub fn leave_room(&mut self) {
        if self.buffer.is_empty() && self.buffer.capacity() != 0 {
            self.buffers.give(std::mem::take(&mut self.buffer));
        }
    }

    /// Waits for more bytes from the server; its end of stream is an error.
    pub async fn fill(&mut self) -> io::Result<()> {
        match std::future::poll_fn(|cx| self.poll_fill(cx)).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Runs one text statement for Millrace's own use and answers its result's rows.
    pub async fn query(&mut self, text: &str) -> Result<Vec<Row>, BackendError> {
        Ok(self
            .query_named(text)
            .await?
            .map_or_else(Vec::new, |rows| rows.rows))
    }

    /// Several queries in one send, run by the server one after the other; each's rows. After an
    /// error the connection is of no more use, as the answers to the rest are still to come.
    pub async fn query_each<const N: usize>(
        &mut self,
        texts: [&str; N],
    ) -> Result<[Vec<Row>; N], BackendError> {
        let mut out = Vec::new();
        for text in texts {
            self.frame_query(&mut out, text.as_bytes());
        }
        self.send(&out, N).await?;
        let mut rows = [const { Vec::new() }; N];
        for rows in &mut rows {
            *rows = self.read_rows().await?;
        }
        Ok(rows)
    }

    /// Like [`Conn::query`], with the columns; none where the statement has no result set.
    pub async fn query_named(&mut self, text: &str) -> Result<Option<Rows>, BackendError> {
        let mut out = Vec::new();
        self.frame_query(&mut out, text.as_bytes());
        self.send(&out, 1).await?;
        let bytes = self.read_answer(Expect::Query).await?;
        match parse_text_rows(&bytes, self.capabilities)?.0 {
            Reply::Rows(rows) => Ok(Some(rows)),
            Reply::Ok { .. } | Reply::Err { .. } => Ok(None),
        }
    }

    /// Like [`Conn::query_named`], for answers in ASCII: whatever character set results are in, as
    /// far as it has the letters of ASCII (utf16 and its like put zeros between them).
    pub async fn ask(&mut self, text: &str) -> Result<Option<Rows>, BackendError> {
        let mut rows = self.query_named(text).await?;
        let cells = rows
            .iter_mut()
            .flat_map(|rows| rows.rows.iter_mut().flatten());
        for cell in cells.flatten() {
            cell.retain(|byte| *byte != 0);
        }
        Ok(rows)
    }

    /// Reads the answer of a text command into memory. Only for answers known to be small.
    pub async fn read_rows(&mut self) -> Result<Vec<Row>, BackendError> {
        let bytes = self.read_answer(Expect::Query).await?;
        match parse_text_rows(&bytes, self.capabilities)?.0 {
            Reply::Rows(rows) => Ok(rows.rows),
            Reply::Ok { .. } | Reply::Err { .. } => Ok(Vec::new()),
        }
    }

    /// Reads a whole answer's bytes; an ERR packet becomes an error. Whatever the server tells
    /// about the session is folded into nothing: for commands of Millrace's own.
    pub async fn read_answer(&mut self, expect: Expect) -> Result<Vec<u8>, BackendError> {
        let mut tracker = Tracker::new(expect, self.capabilities);
        let mut answer = Vec::new();
        loop {
            let taken = match tracker.next(&self.buffer) {
                Event::Pass(len)
                | Event::ColumnCount { len }
                | Event::MarkedDefinitionsEnd { len }
                | Event::PrepareOk { len, .. } => len,
                Event::Progress { len } => {
                    self.buffer.drain(..len);
                    continue;
                }
                Event::Ok { len, .. } | Event::Eof { len, .. } => {
                    self.status = tracker.status();
                    len
                }
                Event::Err { len } => {
                    let error =
                        ErrPacket::parse(&self.buffer[4..len]).map(|error| server_error(&error));
                    if answer.is_empty() && self.is_unasked() {
                        (self.broken, self.closed_before) = (true, true);
                        return Err(closed(&error?));
                    }
                    self.buffer.drain(..len);
                    self.answered();
                    return Err(BackendError::Server(error?));
                }
                Event::LocalInfile { .. } => {
                    self.broken = true;
                    return Err(BackendError::Protocol(
                        "unexpected request for a local file",
                    ));
                }
                Event::NeedMore => {
                    if let Err(error) = self.fill().await {
                        self.broken = true;
                        return Err(error.into());
                    }
                    continue;
                }
                Event::Malformed => {
                    self.broken = true;
                    return Err(BackendError::Protocol("malformed packet"));
                }
                Event::Done => {
                    self.answered();
                    self.leave_room();
                    return Ok(answer);
                }
            };
            answer.extend_from_slice(&self.buffer[..taken]);
            self.buffer.drain(..taken);
        }
    }

    /// What a server says that closes on a packet longer than its `max_allowed_packet` (1153,
    /// ER_NET_PACKET_TOO_LARGE), as far as it can still be read: it does so before it has been sent the
    /// whole. For a connection that could not be written to; it is of no use afterwards.
    pub async fn refused_length(&mut self) -> Option<ServerError> {
        const LIMIT: Duration = Duration::from_secs(1);
        let reading = async {
            loop {
                while let Some(len) = packet::whole(&self.buffer) {
                    if let Ok(error) = ErrPacket::parse(&self.buffer[packet::HEADER..len])
                        && error.code == 1153
                    {
                        return Some(server_error(&error));
                    }
                    self.buffer.drain(..len);
                }
                self.fill().await.ok()?;
            }
        };
        tokio::time::timeout(LIMIT, reading).await.ok()?
    }

    /// Asks what the last user might still want to know and keeps it for that session. For a
    /// connection that is about to be closed.
    pub async fn save_unread(&mut self) -> Result<(), BackendError> {
        let Some(store) = self.books.take_store() else {
            return Ok(());
        };
        let seq = self.books.last_seq();
        // First the warnings: any other statement clears them.
        if self.books.unread().diagnostics {
            let warnings = warnings(self.query("SHOW WARNINGS").await?);
            store.keep(seq).warnings = Some(warnings);
        }
        let rows = self.query(SAVE_NUMBERS).await?;
        self.books.set_insert_id(BLANK_ID);
        let mut saved = store.keep(seq);
        saved.last_insert_id = number(&rows, 0);
        saved.found_rows = number(&rows, 1);
        drop(saved);
        self.books.saved();
        Ok(())
    }

    /// Closes a prepared statement by the server's number for it, which has no answer.
    pub async fn close_statement(&mut self, id: u32) {
        let mut out = Vec::with_capacity(CLOSE);
        frame_close(&mut out, id);
        self.broken |= self.send(&out, 0).await.is_err();
    }

    /// Closes prepared statements until there are no more than `most`. Does not wait: for a connection in
    /// no use, whose socket has room. One that does not take it is cut.
    pub fn hold_at_most(&mut self, most: usize) {
        let mut out = Vec::new();
        while let Some(id) = self.prepared.pop_beyond(most, |_| true) {
            frame_close(&mut out, id);
        }
        if out.is_empty() {
            return;
        }
        // Without regard to how long the task has run already: that would look like a full socket.
        let sent = pin!(tokio::task::unconstrained(self.send(&out, 0)))
            .poll(&mut Context::from_waker(Waker::noop()));
        if !matches!(sent, Poll::Ready(Ok(()))) {
            self.broken = true;
            self.stream = Stream::Gone;
        }
    }

    /// Whether an open transaction or the like stands in the way of lending it to another.
    pub fn in_transaction(&self) -> bool {
        self.status.contains(Status::IN_TRANS)
    }

    /// Ends it, and keeps its place. Nothing is sent on it any more.
    pub(crate) fn hang_up(&mut self) {
        self.quit();
        self.broken = true;
        self.stream = Stream::Gone;
    }

    /// Stands in the place of another, which was ended.
    pub(crate) fn succeed(&mut self, ended: &mut Conn) {
        self.permit = ended.permit.take();
    }

    /// Takes it out of its server's count early: for connections that leave the pools for good.
    pub fn release_permit(&mut self) {
        self.permit = None;
    }
}

/// What the kernel says when it has given a connection up (tcp(7), TCP_USER_TIMEOUT).
fn is_path_lost(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
    )
}

/// Asks for the numbers of the session before, and takes its LAST_INSERT_ID() off the connection:
/// the parts of a select list are worked out in their order. Without LIMIT, `sql_select_limit=0`
/// would keep the server from working out anything (observed).
pub const SAVE_NUMBERS: &str = "SELECT CAST(LAST_INSERT_ID() AS UNSIGNED),FOUND_ROWS(),\
    LAST_INSERT_ID(18446744073709551615) LIMIT 1";

/// The length of [`frame_close`]'s packet; bytes.
const CLOSE: usize = packet::HEADER + 5;

fn frame_close(out: &mut Vec<u8>, id: u32) {
    out.extend_from_slice(&[5, 0, 0, 0, COM_STMT_CLOSE]);
    out.extend_from_slice(&id.to_le_bytes());
}

/// The rows of SHOW WARNINGS.
pub fn warnings(rows: Vec<Row>) -> Vec<[Box<[u8]>; 3]> {
    rows.into_iter()
        .map(|row| {
            let mut cells = row.into_iter().map(|cell| cell.unwrap_or_default());
            [(); 3].map(|()| cells.next().unwrap_or_default().into())
        })
        .collect()
}

/// A number in ASCII.
fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A number in a control query's first row, whatever character set results are in.
pub fn number(rows: &[Row], column: usize) -> Option<u64> {
    let cell = rows.first()?.get(column)?.as_deref()?;
    let digits: Vec<u8> = cell.iter().copied().filter(|byte| *byte != 0).collect();
    std::str::from_utf8(&digits).ok()?.parse().ok()
}

/// What an OK packet says about variables, folded by a callback: `(name, value)`.
pub fn reported_variables(ok: &OkPacket<'_>, mut each: impl FnMut(&[u8], &[u8])) {
    for change in ok.changes().flatten() {
        if let Change::SystemVariable { name, value } = change {
            each(name, value);
        }
    }
}

/// The error that tells a client its server connection broke while a statement ran: the server's own
/// for it. 2013 is what clients call it, but one that comes from a server they take for a malformed
/// packet (MariaDB Connector/C, for all codes of clients).
pub fn lost_connection() -> ServerError {
    ServerError::new(1158, b"08S01", "Got an error reading communication packets")
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use millrace_protocol::handshake::Greeting;

    use super::*;

    async fn conn() -> io::Result<(Conn, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let ours = tokio::net::UnixStream::from_std(ours)?;
        ours.writable().await?;
        let opened = Opened {
            stream: Stream::Plain(ours.into()),
            greeting: Greeting {
                server_version: "9.7.4".into(),
                thread_id: 1,
                nonce: [1; 20],
                capabilities: Capabilities::default(),
                collation: 255,
                status: Status::default(),
                auth_plugin: "caching_sha2_password".into(),
            },
            capabilities: Capabilities::default(),
            status: Status::default(),
            tells_variables: false,
            buffer: Vec::new(),
        };
        let mut conn = Conn::new(opened, ServerId(0), Family::MySql, None);
        for id in 1..=3 {
            conn.prepared.add(id, 10 + id as u32);
        }
        Ok((conn, theirs))
    }

    #[tokio::test]
    async fn what_it_has_too_many_is_closed_without_a_wait() -> io::Result<()> {
        let (mut conn, mut server) = conn().await?;
        conn.hold_at_most(3);
        conn.hold_at_most(1);
        assert!(!conn.broken && conn.stream.is_quiet());
        assert_eq!(conn.prepared.len(), 1);
        let mut closed = [0; 2 * CLOSE];
        server.read_exact(&mut closed)?;
        let expected = [
            [5, 0, 0, 0, 0x19, 11, 0, 0, 0],
            [5, 0, 0, 0, 0x19, 12, 0, 0, 0],
        ];
        assert_eq!(closed[..], expected.concat());
        Ok(())
    }

    #[tokio::test]
    async fn one_that_takes_nothing_is_cut() -> io::Result<()> {
        let (mut conn, _server) = conn().await?;
        let Stream::Plain(plain) = &conn.stream else {
            return Ok(());
        };
        while plain.try_write(&[0; 4096])? > 0 {}
        while plain.try_write(&[0])? > 0 {}
        conn.hold_at_most(1);
        assert!(conn.broken && !conn.stream.is_quiet());
        Ok(())
    }
}

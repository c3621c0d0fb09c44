//! Follows a server's response in its bytes: says what the next bytes are and whether
//! the response has ended. Owns no bytes, parses no row, decides nothing.

use crate::ok::{self, EOF, ERR, OK};
use crate::packet::{HEADER, MAX_PAYLOAD, Malformed, Reader, header, whole};
use crate::{Capabilities, Status};

/// What a response is to be read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// COM_QUERY, COM_PROCESS_INFO: text results.
    Query,
    /// COM_STMT_PREPARE.
    Prepare,
    /// COM_STMT_EXECUTE and COM_STMT_BULK_EXECUTE: binary results.
    Execute,
    /// COM_STMT_FETCH: rows without definitions.
    Fetch,
    /// COM_FIELD_LIST: definitions without rows.
    FieldList,
    /// COM_STATISTICS: one packet of text, or ERR.
    Statistics,
    /// OK, EOF or ERR.
    Simple,
    /// COM_CHANGE_USER: authentication packets are passed until OK or ERR.
    ChangeUser,
    /// COM_SET_OPTION: EOF, OK or ERR.
    SetOption,
    /// COM_BINLOG_DUMP and its kin: packets without end, until EOF or ERR.
    BinlogStream,
}

/// What the next bytes of a response are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes to pass on unchanged: many packets, or part of one.
    Pass(usize),
    /// The whole packet with a column count, asked for with [`Tracker::showing_counts`].
    ColumnCount { len: usize },
    /// A whole OK packet, header 0x00, or 0xFE under DEPRECATE_EOF. `last`: no more
    /// results follow.
    Ok { len: usize, last: bool },
    /// A whole classic EOF packet that ends rows or opens a cursor.
    Eof { len: usize, last: bool },
    /// A whole classic EOF packet between definitions and rows, with news of the session's state in its flags.
    MarkedDefinitionsEnd { len: usize },
    /// A whole ERR packet, which ends the response.
    Err { len: usize },
    /// The first packet of a successful prepare; definitions follow.
    PrepareOk {
        len: usize,
        id: u32,
        columns: u16,
        params: u16,
        warnings: u16,
    },
    /// The server asks for a file: pass this packet, send the client's data up to its
    /// empty packet, call [`Tracker::infile_sent`], then read on.
    LocalInfile { len: usize },
    /// A MariaDB progress report: pass or drop.
    Progress { len: usize },
    /// Nothing can be said before more bytes have come.
    NeedMore,
    /// The response is complete; what follows in the buffer belongs to the next one.
    Done,
    /// The server does not speak the protocol: the connection is of no more use.
    Malformed,
}

/// Where in a response the next packet stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The first packet of a result.
    First,
    /// That many packets to pass unseen, then `Next`.
    Packets {
        left: u32,
        then: Next,
    },
    /// The EOF after column definitions, which can open a cursor instead of rows.
    DefinitionsEnd,
    /// Rows (or definitions, or events), until EOF, OK or ERR.
    Rows,
    Done,
    Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    DefinitionsEnd,
    Rows,
    Done,
    First,
}

/// First byte of the packet that asks for a file (MySQL manual, "LOCAL INFILE
/// Request").
const LOCAL_INFILE: u8 = 0xFB;

/// Under these flags a column count is followed by a byte that says whether definitions
/// follow.
pub(crate) const METADATA_FLAG: Capabilities =
    Capabilities::OPTIONAL_RESULTSET_METADATA.union(Capabilities::CACHE_METADATA);

/// Column counts are events of their own.
const COUNTS: u8 = 1;

/// The statement may open a cursor instead of sending rows.
const CURSOR: u8 = 2;

/// Payload bytes of the shortest OK packet; a classic EOF has five.
const OK_MIN: usize = 7;

/// Follows one response.
///
/// ```
/// use millrace_protocol::response::{Event, Expect, Tracker};
/// use millrace_protocol::Capabilities;
/// let mut tracker = Tracker::new(Expect::Simple, Capabilities::PROTOCOL_41);
/// let ok = [7, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0];
/// assert_eq!(tracker.next(&ok[..5]), Event::NeedMore);
/// assert_eq!(tracker.next(&ok), Event::Ok { len: 11, last: true });
/// assert_eq!(tracker.next(&[]), Event::Done);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Tracker {
    caps: Capabilities,
    rows: u64,
    /// Bytes of the frame in progress that have not come yet.
    owed: u32,
    result_sets: u32,
    state: State,
    status: Status,
    expect: Expect,
    /// The next frame continues the packet before it.
    continued: bool,
    started: bool,
    infile: bool,
    /// [`COUNTS`] and [`CURSOR`].
    told: u8,
    /// The result set in progress holds OUT parameters, which the EOF before its rows
    /// has said.
    out_params: bool,
}

impl Tracker {
    /// A tracker for the response to a command, on a server connection with `caps`,
    /// the flags that both sides agreed on.
    pub fn new(expect: Expect, caps: Capabilities) -> Self {
        let state = match expect {
            Expect::Fetch | Expect::FieldList | Expect::BinlogStream => State::Rows,
            _ => State::First,
        };
        Self {
            caps,
            rows: 0,
            owed: 0,
            result_sets: 0,
            state,
            status: Status::empty(),
            expect,
            continued: false,
            started: false,
            infile: false,
            told: 0,
            out_params: false,
        }
    }

    /// The same, with [`Event::ColumnCount`] for each result set, so that a caller can put the
    /// packet in another form.
    pub fn showing_counts(self) -> Self {
        Self {
            told: self.told | COUNTS,
            ..self
        }
    }

    /// The same, for an execution that asked for a cursor. All others send their rows whatever the
    /// status says: a routine's own open cursors set the same flag (observed on both families).
    pub fn opening_cursor(self) -> Self {
        Self {
            told: self.told | CURSOR,
            ..self
        }
    }

    /// Looks at the unconsumed bytes `buf` and says what those at its front are. The
    /// caller consumes exactly the bytes named and calls again with what is left, and
    /// with more where the answer is [`Event::NeedMore`].
    ///
    /// At most one OK, EOF or ERR packet has to be held whole in `buf`; one of 16 MiB
    /// or more is taken as [`Event::Malformed`].
    #[inline]
    pub fn next(&mut self, buf: &[u8]) -> Event {
        if buf.is_empty() && self.state != State::Done {
            return Event::NeedMore;
        }
        let results = self.result_sets;
        match self.pass(buf) {
            0 => self.decide(buf),
            len if self.shows_counts() && self.result_sets > results => Event::ColumnCount { len },
            passed => Event::Pass(passed),
        }
    }

    /// The client has sent its file, or the empty packet alone to refuse.
    pub fn infile_sent(&mut self) {
        self.infile = false;
    }

    /// Whether the server waits for the client's file.
    pub fn wants_infile(&self) -> bool {
        self.infile
    }

    /// Whether the response is complete.
    pub fn is_done(&self) -> bool {
        self.state == State::Done && self.owed == 0 && !self.continued
    }

    /// Whether any byte of the response has been seen.
    pub fn started(&self) -> bool {
        self.started
    }

    /// Whether a packet before the one at hand was part of the response.
    pub fn has_begun(&self) -> bool {
        self.rows > 0 || self.result_sets > 0 || !self.status.is_empty()
    }

    /// Status flags of the last OK or EOF.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Rows of the current or last result set (definitions for COM_FIELD_LIST).
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Result sets begun, not counting results that are a mere OK.
    pub fn result_sets(&self) -> u32 {
        self.result_sets
    }

    /// How many bytes at the front of `buf` can go on unseen.
    fn pass(&mut self, buf: &[u8]) -> usize {
        let mut at = 0;
        if self.owed > 0 {
            self.started = true;
            at = buf.len().min(self.owed as usize);
            self.owed -= at as u32;
        }
        while at < buf.len() {
            let before = at;
            let shown = self.shows_counts() && self.state == State::First && !self.continued;
            if shown && at > 0 {
                break;
            }
            at = match self.state {
                _ if self.continued => self.pass_continuation(buf, at),
                State::Rows => self.pass_rows(buf, at),
                State::Packets { left, then } => self.pass_packets(buf, at, left, then),
                State::First => self.pass_first(buf, at),
                State::DefinitionsEnd => self.pass_definitions_end(buf, at),
                State::Done | State::Broken => at,
            };
            if at == before {
                break;
            }
            self.started = true;
            if shown {
                break;
            }
        }
        at
    }

    /// Steps over the frame at `at` with `len` bytes of payload as far as it is there.
    #[inline]
    fn step(&mut self, buf: &[u8], at: usize, len: usize) -> usize {
        self.continued = len == MAX_PAYLOAD;
        let end = at + HEADER + len;
        if end <= buf.len() {
            return end;
        }
        self.owed = (end - buf.len()) as u32;
        buf.len()
    }

    fn pass_continuation(&mut self, buf: &[u8], at: usize) -> usize {
        match header(&buf[at..]) {
            Some(header) => self.step(buf, at, header.len as usize),
            None => at,
        }
    }

    /// Rows, up to a packet that is none.
    fn pass_rows(&mut self, buf: &[u8], mut at: usize) -> usize {
        let end_below = self.end_below();
        let mut rows = 0;
        while let Some((len, first)) = peek(buf, at) {
            let end = at + HEADER + len;
            if first < EOF && (1..MAX_PAYLOAD).contains(&len) && end <= buf.len() {
                // Nearly all of them: here whole, and beginning like no other packet.
                rows += 1;
                at = end;
                continue;
            }
            let special = first >= EOF && len < if first == EOF { end_below } else { MAX_PAYLOAD };
            if special || len == 0 {
                break;
            }
            rows += 1;
            at = self.step(buf, at, len);
            if self.continued {
                break;
            }
        }
        self.rows += rows;
        at
    }

    /// Packets whose content does not matter, except that an ERR can come between.
    fn pass_packets(&mut self, buf: &[u8], mut at: usize, mut left: u32, then: Next) -> usize {
        while left > 0 {
            match peek(buf, at) {
                None | Some((0, _) | (_, ERR)) => break,
                Some((len, _)) => at = self.step(buf, at, len),
            }
            left -= 1;
            if self.continued {
                break;
            }
        }
        self.state = packets(left, then);
        at
    }

    /// The first packet of a result where it can be passed: a column count, the text of
    /// COM_STATISTICS, the authentication packets of COM_CHANGE_USER.
    fn pass_first(&mut self, buf: &[u8], at: usize) -> usize {
        let Some((len, first)) = peek(buf, at) else {
            return at;
        };
        match self.expect {
            Expect::Query | Expect::Execute => self.pass_column_count(buf, at, len, first),
            Expect::Statistics if first != ERR && len > 0 => {
                self.pass_packets(buf, at, 1, Next::Done)
            }
            Expect::ChangeUser if !matches!(first, OK | ERR) && len > 0 => {
                self.pass_packets(buf, at, 1, Next::First)
            }
            _ => at,
        }
    }

    fn pass_column_count(&mut self, buf: &[u8], at: usize, len: usize, first: u8) -> usize {
        if matches!(first, OK | LOCAL_INFILE | EOF | ERR) {
            return at;
        }
        let Some(payload) = buf.get(at + HEADER..at + HEADER + len) else {
            return at;
        };
        let Ok((columns, defined)) = column_count(payload, self.caps) else {
            return at;
        };
        self.rows = 0;
        self.result_sets += 1;
        let then = if self.caps.contains(Capabilities::DEPRECATE_EOF) {
            Next::Rows
        } else {
            Next::DefinitionsEnd
        };
        self.state = packets(if defined { columns } else { 0 }, then);
        at + HEADER + len
    }

    /// The EOF between definitions and rows, unless it opens a cursor and so ends the
    /// response, or has a flag that is not for every client.
    fn pass_definitions_end(&mut self, buf: &[u8], at: usize) -> usize {
        let Some((5, EOF)) = peek(buf, at) else {
            return at;
        };
        match eof_status(&buf[at..]) {
            Some(status) if !self.opens_cursor(status) && !is_marked(status) => {
                self.begin_rows(status);
                at + HEADER + 5
            }
            _ => at,
        }
    }

    fn begin_rows(&mut self, status: Status) {
        self.out_params = status.contains(Status::PS_OUT_PARAMS | Status::MORE_RESULTS);
        self.state = State::Rows;
    }

    #[inline]
    fn shows_counts(&self) -> bool {
        self.told & COUNTS != 0
    }

    fn opens_cursor(&self, status: Status) -> bool {
        self.told & CURSOR != 0 && status.contains(Status::CURSOR_EXISTS)
    }

    /// Packets of this length and more are rows although they start with 0xFE: a value
    /// of 16 MiB or more (MySQL manual, "EOF_Packet", "OK_Packet").
    #[inline]
    fn end_below(&self) -> usize {
        if self.caps.contains(Capabilities::DEPRECATE_EOF) {
            MAX_PAYLOAD
        } else {
            9
        }
    }

    /// The packet at the front of `buf`, which cannot be passed unseen.
    fn decide(&mut self, buf: &[u8]) -> Event {
        match self.state {
            State::Done if self.is_done() => return Event::Done,
            State::Broken => return Event::Malformed,
            _ => self.started = true,
        }
        let Some((len, _)) = peek(buf, 0) else {
            return Event::NeedMore;
        };
        if len == 0 || len == MAX_PAYLOAD {
            return self.broken();
        }
        let Some(end) = whole(buf) else {
            return Event::NeedMore;
        };
        let payload = &buf[HEADER..end];
        let event = match (self.state, payload[0]) {
            (_, ERR) => self.err(end, payload),
            (State::DefinitionsEnd, EOF) => self.definitions_end(end, payload),
            (State::Rows, EOF) => self.end(end, payload),
            (State::First, OK) if self.expect == Expect::Prepare => self.prepared(end, payload),
            (State::First, OK) => self.ok(end, payload),
            (State::First, EOF) if self.expect != Expect::Prepare => self.end(end, payload),
            (State::First, LOCAL_INFILE) if self.runs_statement() => {
                self.infile = true;
                Ok(Event::LocalInfile { len: end })
            }
            _ => Err(Malformed),
        };
        event.unwrap_or_else(|Malformed| self.broken())
    }

    fn broken(&mut self) -> Event {
        self.state = State::Broken;
        Event::Malformed
    }

    fn runs_statement(&self) -> bool {
        matches!(self.expect, Expect::Query | Expect::Execute)
    }

    fn err(&mut self, len: usize, payload: &[u8]) -> Result<Event, Malformed> {
        let code = Reader::new(&payload[1..]).u16()?;
        if code == 0xFFFF && self.caps.contains(Capabilities::PROGRESS) {
            return Ok(Event::Progress { len });
        }
        self.state = State::Done;
        Ok(Event::Err { len })
    }

    /// The EOF between definitions and rows where it is not passed unseen, or one that opens a cursor.
    fn definitions_end(&mut self, len: usize, payload: &[u8]) -> Result<Event, Malformed> {
        let status = ok::parse_eof(payload)?.0;
        if !is_marked(status) || self.opens_cursor(status) {
            return self.end(len, payload);
        }
        self.begin_rows(status);
        Ok(Event::MarkedDefinitionsEnd { len })
    }

    /// An OK with header 0xFE or a classic EOF.
    fn end(&mut self, len: usize, payload: &[u8]) -> Result<Event, Malformed> {
        if payload.len() >= OK_MIN && self.caps.contains(Capabilities::DEPRECATE_EOF) {
            return self.ok(len, payload);
        }
        let (status, _) = ok::parse_eof(payload)?;
        let last = self.result_ended(status);
        Ok(Event::Eof { len, last })
    }

    fn ok(&mut self, len: usize, payload: &[u8]) -> Result<Event, Malformed> {
        let mut reader = Reader::new(&payload[1..]);
        reader.lenenc_int()?;
        reader.lenenc_int()?;
        let status = Status::from_bits_retain(reader.u16()?);
        let last = self.result_ended(status);
        Ok(Event::Ok { len, last })
    }

    /// Only statements have several results. After OUT parameters there is always
    /// another, but MySQL's EOF behind their row does not say so, only the one before
    /// it (observed without DEPRECATE_EOF).
    fn result_ended(&mut self, status: Status) -> bool {
        self.status = status;
        let more = std::mem::take(&mut self.out_params) || status.contains(Status::MORE_RESULTS);
        let more = more && self.runs_statement();
        self.state = if more { State::First } else { State::Done };
        !more
    }

    /// MySQL manual, "COM_STMT_PREPARE Response".
    fn prepared(&mut self, len: usize, payload: &[u8]) -> Result<Event, Malformed> {
        let mut reader = Reader::new(&payload[1..]);
        let id = reader.u32()?;
        let columns = reader.u16()?;
        let params = reader.u16()?;
        reader.u8()?;
        let warnings = reader.u16()?;
        let optional = self
            .caps
            .contains(Capabilities::OPTIONAL_RESULTSET_METADATA);
        let defined = !optional || reader.is_empty() || reader.u8()? != 0;
        let ends = u32::from(!self.caps.contains(Capabilities::DEPRECATE_EOF));
        // Definitions that are left out leave their EOF behind (observed on MySQL).
        let group = |n: u16| match n {
            0 => 0,
            n => ends + if defined { u32::from(n) } else { 0 },
        };
        let left = group(params) + group(columns);
        self.state = packets(left, Next::Done);
        Ok(Event::PrepareOk {
            len,
            id,
            columns,
            params,
            warnings,
        })
    }
}

/// The server tells that the session's state has changed (MariaDB also where it has not).
fn is_marked(status: Status) -> bool {
    status.contains(Status::SESSION_STATE_CHANGED)
}

/// Payload length and first payload byte of the frame at `at`, once both are there. An
/// empty frame shows the length alone.
#[inline]
fn peek(buf: &[u8], at: usize) -> Option<(usize, u8)> {
    let rest = buf.get(at..)?;
    if let Some(&[a, b, c, _, first]) = rest.first_chunk::<5>() {
        let len = u32::from_le_bytes([a, b, c, 0]) as usize;
        return Some((len, if len == 0 { 0 } else { first }));
    }
    match rest {
        [0, 0, 0, _] => Some((0, 0)),
        _ => None,
    }
}

fn packets(left: u32, then: Next) -> State {
    match (left, then) {
        (0, Next::DefinitionsEnd) => State::DefinitionsEnd,
        (0, Next::Rows) => State::Rows,
        (0, Next::Done) => State::Done,
        (0, Next::First) => State::First,
        _ => State::Packets { left, then },
    }
}

fn eof_status(packet: &[u8]) -> Option<Status> {
    let payload = packet.get(HEADER..HEADER + 5)?;
    Some(ok::parse_eof(payload).ok()?.0)
}

/// Columns of a result set and whether their definitions follow. Both families put the
/// flag for that behind the count (observed; MySQL's manual shows it in front).
pub(crate) fn column_count(payload: &[u8], caps: Capabilities) -> Result<(u32, bool), Malformed> {
    let mut reader = Reader::new(payload);
    let columns = reader.lenenc_int()?;
    let defined = !caps.intersects(METADATA_FLAG) || reader.u8()? != 0;
    if columns == 0 || !reader.is_empty() {
        return Err(Malformed);
    }
    Ok((u32::try_from(columns).map_err(|_| Malformed)?, defined))
}

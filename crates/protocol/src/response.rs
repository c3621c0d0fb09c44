//! Follows a server's response in its bytes: says what the next bytes are and whether
//! the response has ended. Owns no bytes, parses no row, decides nothing.

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
    /// A whole OK packet, header 0x00, or 0xFE under DEPRECATE_EOF. `last`: no more
    /// results follow.
    Ok { len: usize, last: bool },
    /// A whole classic EOF packet that ends rows or opens a cursor.
    Eof { len: usize, last: bool },
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

/// Follows one response.
#[derive(Clone, Copy, Debug)]
pub struct Tracker {
    expect: Expect,
    caps: Capabilities,
    done: bool,
    started: bool,
    status: Status,
    rows: u64,
    result_sets: u32,
}

impl Tracker {
    /// A tracker for the response to a command, on a connection with `caps`.
    pub fn new(expect: Expect, caps: Capabilities) -> Self {
        Self {
            expect,
            caps,
            done: false,
            started: false,
            status: Status::empty(),
            rows: 0,
            result_sets: 0,
        }
    }

    /// Looks at the unconsumed bytes `buf` and says what those at its front are. The
    /// caller consumes exactly the bytes named and calls again.
    pub fn next(&mut self, buf: &[u8]) -> Event {
        let _ = (self.expect, self.caps, buf);
        Event::NeedMore
    }

    /// The client has sent its file (or refused to).
    pub fn infile_sent(&mut self) {}

    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Whether any byte of the response has been seen.
    pub fn started(&self) -> bool {
        self.started
    }

    /// Status flags of the last OK or EOF.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Rows of the current or last result set.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Result sets begun, not counting results that are a mere OK.
    pub fn result_sets(&self) -> u32 {
        self.result_sets
    }
}

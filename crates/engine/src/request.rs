//! A command on its way to a server: what the client asked for, and what is known of it.

use std::rc::Rc;

use millrace_protocol::command::COM_STMT_EXECUTE;
use millrace_protocol::packet;
use millrace_protocol::response::Expect;
use millrace_routing::rules::Directions;
use millrace_sql::{Access, Kind, Show, Statement};

/// What a command asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// A statement's text (COM_QUERY).
    Query,
    /// A statement to prepare, and the number that the client will know it by (COM_STMT_PREPARE).
    Prepare(u32),
    /// What is prepared (COM_STMT_EXECUTE, COM_STMT_BULK_EXECUTE).
    Execute,
    /// Rows of a cursor (COM_STMT_FETCH).
    Fetch,
    /// A cursor's end (COM_STMT_RESET).
    CloseCursor,
    /// Another database (COM_INIT_DB).
    Use,
    /// A sign of life, on a connection that is kept (COM_PING).
    Ping,
    /// A table's columns (COM_FIELD_LIST).
    FieldList,
    /// The server's counters (COM_STATISTICS).
    Statistics,
    /// The server's connections (COM_PROCESS_INFO).
    ProcessInfo,
    /// The end of a connection (COM_PROCESS_KILL).
    Kill,
    /// The binary log (COM_REGISTER_SLAVE, COM_BINLOG_DUMP and their like).
    Replicate,
    /// COM_CREATE_DB, COM_SHUTDOWN and others that servers hardly know any more.
    Administer,
}

impl Task {
    /// What the server answers.
    pub fn expect(self) -> Expect {
        match self {
            Task::Query | Task::ProcessInfo => Expect::Query,
            Task::Prepare(_) => Expect::Prepare,
            Task::Execute => Expect::Execute,
            Task::Fetch => Expect::Fetch,
            Task::FieldList => Expect::FieldList,
            Task::Statistics => Expect::Statistics,
            Task::CloseCursor
            | Task::Use
            | Task::Ping
            | Task::Kill
            | Task::Replicate
            | Task::Administer => Expect::Simple,
        }
    }

    /// The kind of the statement that says the same as a command without a text; where there is none,
    /// [`Kind::Command`].
    pub fn kind(self) -> Kind {
        match self {
            Task::Query | Task::Execute => Kind::Unknown,
            Task::Prepare(_) | Task::Fetch | Task::CloseCursor => Kind::Command,
            Task::Ping => Kind::Ping,
            Task::Replicate => Kind::Command,
            Task::Use => Kind::Use,
            // What it leaves is not known.
            Task::FieldList => Kind::Unknown,
            Task::Statistics => Kind::Show(Show::Status),
            Task::ProcessInfo => Kind::Show(Show::Processlist),
            Task::Kill => Kind::Kill,
            Task::Administer => Kind::Admin,
        }
    }
}

/// What is sent to the server.
pub enum Main<'a> {
    /// The client's packet as it is.
    Packet(&'a [u8]),
    /// A packet in which a prepared statement's number is to be replaced by the connection's.
    Execute {
        /// The whole packet, framed.
        packet: &'a [u8],
        /// The client's number.
        id: u32,
        /// What the packet says of the parameters' types.
        types: Types,
    },
}

/// What an execution's packet says of the types of its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Types {
    /// There is nothing to say, or it is not known.
    None,
    /// It brings them.
    Sent,
    /// It leaves them out, as clients do after the first execution: a server connection that was
    /// not told them before must be told.
    LeftOut,
}

/// A command on its way to a server.
pub struct Request<'a> {
    /// What it asks for.
    pub task: Task,
    /// What is sent.
    pub main: Main<'a>,
    /// What its text is.
    pub class: &'a Statement,
    /// For EXECUTE: the prepared statement's own class and text.
    pub inner: Option<(&'a Statement, &'a [u8])>,
    /// What rules and hints say about it.
    pub directions: Option<Rc<Directions>>,
    /// What it needs after stored routines and views were looked at.
    pub access: Access,
}

impl<'a> Request<'a> {
    /// A command that is sent as it came. `class`: what its text is, or of [`Task::kind`].
    pub fn packet(
        task: Task,
        packet: &'a [u8],
        class: &'a Statement,
        access: Access,
    ) -> Request<'a> {
        Request {
            task,
            main: Main::Packet(packet),
            class,
            inner: None,
            directions: None,
            access,
        }
    }

    /// A command about the client's prepared statement `id`.
    pub fn prepared(
        task: Task,
        (packet, id, types): (&'a [u8], u32, Types),
        class: &'a Statement,
        access: Access,
    ) -> Request<'a> {
        Request {
            main: Main::Execute { packet, id, types },
            ..Request::packet(task, packet, class, access)
        }
    }

    /// The same under what rules and hints say.
    pub fn directed(self, directions: Option<Rc<Directions>>) -> Request<'a> {
        Request { directions, ..self }
    }

    /// It is only prepared: nothing is run.
    pub fn prepares(&self) -> bool {
        matches!(self.task, Task::Prepare(_))
    }

    /// What is run: of an EXECUTE, the statement that was prepared.
    pub fn runs(&self) -> &'a Statement {
        self.inner.map_or(self.class, |(inner, _)| inner)
    }

    /// Whether it is an execution that opens a cursor if it has rows: one that asks for that, of anything but a
    /// routine, whose results are sent whole.
    #[inline]
    pub fn opens_cursor(&self) -> bool {
        let Main::Execute { packet, .. } = self.main else {
            return false;
        };
        asks_for_cursor(packet) && is_plain_execution(packet) && self.class.kind != Kind::Call
    }

    /// Whether what surrounds the statement lets a transaction run it again: MariaDB's bulk executions and those that
    /// open a cursor are more than one statement and one answer.
    #[inline]
    pub fn is_replayable_outside(&self) -> bool {
        match self.main {
            Main::Packet(_) => self.inner.is_none(),
            Main::Execute { packet, .. } => {
                is_plain_execution(packet) && packet.len() > FLAGS_AT && !asks_for_cursor(packet)
            }
        }
    }
}

/// Where an execution's flags stand in its packet: behind the statement's number.
const FLAGS_AT: usize = packet::HEADER + 5;

/// The lowest bits of the flags ask for a cursor.
fn asks_for_cursor(packet: &[u8]) -> bool {
    packet.get(FLAGS_AT).is_some_and(|flags| flags & 7 != 0)
}

/// Whether an execution's packet is COM_STMT_EXECUTE.
#[inline]
pub fn is_plain_execution(packet: &[u8]) -> bool {
    packet.get(packet::HEADER) == Some(&COM_STMT_EXECUTE)
}

//! What a client asks for: commands split into borrowed arguments, and the packets
//! that Millrace itself sends. Reads no SQL.

use crate::Capabilities;
use crate::packet::{Malformed, Reader, Writer};
use crate::response::Expect;
use crate::types::binary_value;

pub const COM_SLEEP: u8 = 0x00;
pub const COM_QUIT: u8 = 0x01;
pub const COM_INIT_DB: u8 = 0x02;
pub const COM_QUERY: u8 = 0x03;
pub const COM_FIELD_LIST: u8 = 0x04;
pub const COM_CREATE_DB: u8 = 0x05;
pub const COM_DROP_DB: u8 = 0x06;
pub const COM_REFRESH: u8 = 0x07;
pub const COM_SHUTDOWN: u8 = 0x08;
pub const COM_STATISTICS: u8 = 0x09;
pub const COM_PROCESS_INFO: u8 = 0x0A;
pub const COM_CONNECT: u8 = 0x0B;
pub const COM_PROCESS_KILL: u8 = 0x0C;
pub const COM_DEBUG: u8 = 0x0D;
pub const COM_PING: u8 = 0x0E;
pub const COM_TIME: u8 = 0x0F;
pub const COM_DELAYED_INSERT: u8 = 0x10;
pub const COM_CHANGE_USER: u8 = 0x11;
pub const COM_BINLOG_DUMP: u8 = 0x12;
pub const COM_TABLE_DUMP: u8 = 0x13;
pub const COM_CONNECT_OUT: u8 = 0x14;
pub const COM_REGISTER_SLAVE: u8 = 0x15;
pub const COM_STMT_PREPARE: u8 = 0x16;
pub const COM_STMT_EXECUTE: u8 = 0x17;
pub const COM_STMT_SEND_LONG_DATA: u8 = 0x18;
pub const COM_STMT_CLOSE: u8 = 0x19;
pub const COM_STMT_RESET: u8 = 0x1A;
pub const COM_SET_OPTION: u8 = 0x1B;
pub const COM_STMT_FETCH: u8 = 0x1C;
pub const COM_DAEMON: u8 = 0x1D;
/// MySQL's; MariaDB leaves the number unused.
pub const COM_BINLOG_DUMP_GTID: u8 = 0x1E;
pub const COM_RESET_CONNECTION: u8 = 0x1F;
pub const COM_CLONE: u8 = 0x20;
pub const COM_SUBSCRIBE_GROUP_REPLICATION_STREAM: u8 = 0x21;
/// MariaDB's.
pub const COM_STMT_BULK_EXECUTE: u8 = 0xFA;
/// MariaDB's, of old versions.
pub const COM_MULTI: u8 = 0xFE;

/// Flag of COM_STMT_EXECUTE: a parameter count follows (with QUERY_ATTRIBUTES).
pub const PARAMETER_COUNT_AVAILABLE: u8 = 8;
/// Flag of COM_STMT_BULK_EXECUTE: a result per row is wanted.
pub const SEND_UNIT_RESULTS: u16 = 64;
/// Flag of COM_STMT_BULK_EXECUTE: parameter types are in the packet.
pub const SEND_TYPES_TO_SERVER: u16 = 128;

/// COM_QUERY's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    /// Everything between the command byte and the text: parameter count, set count
    /// and the attributes themselves; empty without QUERY_ATTRIBUTES.
    pub attributes: &'a [u8],
    pub text: &'a [u8],
}

/// COM_STMT_EXECUTE's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StmtExecute<'a> {
    pub id: u32,
    /// Cursor type in the low bits, [`PARAMETER_COUNT_AVAILABLE`].
    pub flags: u8,
    pub iterations: u32,
    /// What follows; see [`StmtExecute::params`].
    pub rest: &'a [u8],
}

/// COM_STMT_EXECUTE's parameters, split but not interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecuteParams<'a> {
    /// Parameters in the packet, query attributes included.
    pub count: usize,
    pub null_bitmap: &'a [u8],
    /// Whether the packet brings types. Clients may leave them out after the first
    /// execution (MySQL manual, "COM_STMT_EXECUTE").
    pub new_params_bound: bool,
    /// Types as sent: two bytes each, with QUERY_ATTRIBUTES each followed by a name.
    pub types: &'a [u8],
    pub values: &'a [u8],
}

/// A client's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    Quit,
    InitDb(&'a [u8]),
    Query(Query<'a>),
    /// Table and, after a zero byte, a wildcard.
    FieldList(&'a [u8]),
    CreateDb(&'a [u8]),
    DropDb(&'a [u8]),
    Refresh(u8),
    Shutdown,
    Statistics,
    ProcessInfo,
    ProcessKill(u32),
    Debug,
    Ping,
    /// See [`ChangeUser::parse`](crate::handshake::ChangeUser::parse).
    ChangeUser(&'a [u8]),
    ResetConnection,
    SetOption(u16),
    StmtPrepare(&'a [u8]),
    StmtExecute(StmtExecute<'a>),
    StmtBulkExecute {
        id: u32,
        flags: u16,
        rest: &'a [u8],
    },
    StmtSendLongData {
        id: u32,
        param: u16,
        data: &'a [u8],
    },
    StmtClose(u32),
    StmtReset(u32),
    StmtFetch {
        id: u32,
        rows: u32,
    },
    /// COM_REGISTER_SLAVE, COM_BINLOG_DUMP, COM_BINLOG_DUMP_GTID, COM_TABLE_DUMP,
    /// COM_CLONE, COM_SUBSCRIBE_GROUP_REPLICATION_STREAM.
    Replication(u8),
    /// A command that is none of these.
    Other(u8),
}

impl<'a> Command<'a> {
    /// Reads a command's payload, sent over a connection with `caps`.
    pub fn parse(payload: &'a [u8], caps: Capabilities) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        let byte = reader.u8()?;
        Ok(match byte {
            COM_QUIT => Self::Quit,
            COM_INIT_DB => Self::InitDb(reader.rest()),
            COM_QUERY => Self::Query(Query::parse(reader, caps)?),
            COM_FIELD_LIST => Self::FieldList(reader.rest()),
            COM_CREATE_DB => Self::CreateDb(reader.rest()),
            COM_DROP_DB => Self::DropDb(reader.rest()),
            COM_REFRESH => Self::Refresh(reader.u8()?),
            COM_SHUTDOWN => Self::Shutdown,
            COM_STATISTICS => Self::Statistics,
            COM_PROCESS_INFO => Self::ProcessInfo,
            COM_PROCESS_KILL => Self::ProcessKill(reader.u32()?),
            COM_DEBUG => Self::Debug,
            COM_PING => Self::Ping,
            COM_CHANGE_USER => Self::ChangeUser(reader.rest()),
            COM_RESET_CONNECTION => Self::ResetConnection,
            COM_SET_OPTION => Self::SetOption(reader.u16()?),
            COM_STMT_PREPARE => Self::StmtPrepare(reader.rest()),
            COM_STMT_EXECUTE => Self::StmtExecute(StmtExecute {
                id: reader.u32()?,
                flags: reader.u8()?,
                iterations: reader.u32()?,
                rest: reader.rest(),
            }),
            COM_STMT_BULK_EXECUTE => Self::StmtBulkExecute {
                id: reader.u32()?,
                flags: reader.u16()?,
                rest: reader.rest(),
            },
            COM_STMT_SEND_LONG_DATA => Self::StmtSendLongData {
                id: reader.u32()?,
                param: reader.u16()?,
                data: reader.rest(),
            },
            COM_STMT_CLOSE => Self::StmtClose(reader.u32()?),
            COM_STMT_RESET => Self::StmtReset(reader.u32()?),
            COM_STMT_FETCH => Self::StmtFetch {
                id: reader.u32()?,
                rows: reader.u32()?,
            },
            COM_REGISTER_SLAVE
            | COM_BINLOG_DUMP
            | COM_BINLOG_DUMP_GTID
            | COM_TABLE_DUMP
            | COM_CLONE
            | COM_SUBSCRIBE_GROUP_REPLICATION_STREAM => Self::Replication(byte),
            other => Self::Other(other),
        })
    }

    /// Whether the server answers the command at all.
    pub fn has_response(&self) -> bool {
        self.expect().is_some()
    }

    /// How to read the server's answer; `None` where there is none. A command that is
    /// not known is taken to answer OK or ERR, as the servers do.
    pub fn expect(&self) -> Option<Expect> {
        Some(match self {
            Self::Quit | Self::StmtSendLongData { .. } | Self::StmtClose(_) => return None,
            Self::Query(_) | Self::ProcessInfo => Expect::Query,
            Self::FieldList(_) => Expect::FieldList,
            Self::Statistics => Expect::Statistics,
            Self::ChangeUser(_) => Expect::ChangeUser,
            Self::SetOption(_) => Expect::SetOption,
            Self::StmtPrepare(_) => Expect::Prepare,
            Self::StmtExecute(_) | Self::StmtBulkExecute { .. } => Expect::Execute,
            Self::StmtFetch { .. } => Expect::Fetch,
            Self::Replication(COM_REGISTER_SLAVE) => Expect::Simple,
            Self::Replication(_) => Expect::BinlogStream,
            _ => Expect::Simple,
        })
    }
}

impl<'a> Query<'a> {
    fn parse(mut reader: Reader<'a>, caps: Capabilities) -> Result<Self, Malformed> {
        let body = reader.peek();
        if caps.contains(Capabilities::QUERY_ATTRIBUTES) {
            skip_attributes(&mut reader)?;
        }
        let (attributes, text) = body.split_at(body.len() - reader.remaining());
        Ok(Self { attributes, text })
    }
}

/// Steps over COM_QUERY's attributes (MySQL manual, "COM_QUERY").
fn skip_attributes(reader: &mut Reader<'_>) -> Result<(), Malformed> {
    let count = reader.lenenc_int()?;
    let _sets = reader.lenenc_int()?;
    if count == 0 {
        return Ok(());
    }
    let count = param_count(reader, count)?;
    let nulls = reader.bytes(count.div_ceil(8))?;
    if reader.u8()? != 1 {
        return Err(Malformed);
    }
    let mut kinds = Vec::with_capacity(count);
    for _ in 0..count {
        kinds.push(reader.u16()? as u8);
        reader.lenenc_bytes()?;
    }
    for (at, kind) in kinds.into_iter().enumerate() {
        if nulls[at / 8] & (1 << (at % 8)) == 0 {
            binary_value(reader, kind)?;
        }
    }
    Ok(())
}

/// A count that the rest of the packet can hold, at two bytes a parameter, so that a
/// lie cannot make us allocate.
fn param_count(reader: &Reader<'_>, count: u64) -> Result<usize, Malformed> {
    let count = usize::try_from(count).map_err(|_| Malformed)?;
    if count > reader.remaining() {
        return Err(Malformed);
    }
    Ok(count)
}

impl<'a> StmtExecute<'a> {
    /// Whether a cursor is asked for.
    pub fn wants_cursor(&self) -> bool {
        self.flags & 7 != 0
    }

    /// Splits the parameters of a statement that was prepared with `params` of them.
    pub fn params(
        &self,
        params: usize,
        caps: Capabilities,
    ) -> Result<ExecuteParams<'a>, Malformed> {
        let mut reader = Reader::new(self.rest);
        let attributes = caps.contains(Capabilities::QUERY_ATTRIBUTES);
        let mut count = params;
        if attributes && (params > 0 || self.flags & PARAMETER_COUNT_AVAILABLE != 0) {
            let sent = reader.lenenc_int()?;
            count = param_count(&reader, sent)?;
        }
        if count == 0 {
            return Ok(ExecuteParams {
                count,
                null_bitmap: &[],
                new_params_bound: false,
                types: &[],
                values: reader.rest(),
            });
        }
        let null_bitmap = reader.bytes(count.div_ceil(8))?;
        let new_params_bound = reader.u8()? == 1;
        let before = reader.peek();
        if new_params_bound {
            for _ in 0..count {
                reader.u16()?;
                if attributes {
                    reader.lenenc_bytes()?;
                }
            }
        }
        Ok(ExecuteParams {
            count,
            null_bitmap,
            new_params_bound,
            types: &before[..before.len() - reader.remaining()],
            values: reader.rest(),
        })
    }
}

/// Appends COM_STMT_EXECUTE again with the statement `id` and, where the client left
/// them out, the `types` of an earlier execution (as [`ExecuteParams::types`] gave
/// them over a connection with the same `caps`). Returns the next sequence number.
pub fn execute_with_types(
    out: &mut Vec<u8>,
    id: u32,
    execute: &StmtExecute<'_>,
    params: &ExecuteParams<'_>,
    types: &[u8],
    caps: Capabilities,
) -> u8 {
    let mut writer = Writer::new(out, 0);
    writer
        .u8(COM_STMT_EXECUTE)
        .u32(id)
        .u8(execute.flags)
        .u32(execute.iterations);
    if params.count == 0 {
        writer.bytes(execute.rest);
        return writer.finish();
    }
    if caps.contains(Capabilities::QUERY_ATTRIBUTES) {
        writer.lenenc_int(params.count as u64);
    }
    let types = if params.new_params_bound {
        params.types
    } else {
        types
    };
    writer
        .bytes(params.null_bitmap)
        .u8(u8::from(!types.is_empty()))
        .bytes(types)
        .bytes(params.values);
    writer.finish()
}

/// Appends a COM_QUERY without attributes for a connection with `caps`.
pub fn encode_query(out: &mut Vec<u8>, text: &[u8], caps: Capabilities) -> u8 {
    let mut writer = Writer::new(out, 0);
    writer.u8(COM_QUERY);
    if caps.contains(Capabilities::QUERY_ATTRIBUTES) {
        writer.u8(0).u8(1);
    }
    writer.bytes(text);
    writer.finish()
}

/// Appends a command with raw arguments; returns the next sequence number.
pub fn encode_command(out: &mut Vec<u8>, command: u8, args: &[u8]) -> u8 {
    let mut writer = Writer::new(out, 0);
    writer.u8(command).bytes(args);
    writer.finish()
}

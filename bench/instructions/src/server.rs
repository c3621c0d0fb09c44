//! A server that answers from a script: MySQL 9.7 as far as Millrace asks it anything here. On a
//! Unix socket, whose bytes are with the other side when the write returns, so that every run takes
//! the same steps; and without a thread of its own: it answers when it is told to.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use millrace_protocol::command::{
    COM_CHANGE_USER, COM_QUIT, COM_STMT_EXECUTE, COM_STMT_PREPARE, Command,
    PARAMETER_COUNT_AVAILABLE,
};
use millrace_protocol::handshake::{ClientHello, Family, Greeting};
use millrace_protocol::ok::{Change, OkFields, encode_ok, put_change};
use millrace_protocol::packet::{self, Writer};
use millrace_protocol::resultset::{Cell, ColumnDef, TextResult};
use millrace_protocol::{Capabilities, Status};

use crate::world::{EXECUTED, SQL_MODE, UUID};

/// What such a server offers, without TLS and compression.
const OFFERED: Capabilities = CLIENT
    .union(Capabilities::CONNECT_WITH_DB)
    .union(Capabilities::CONNECT_ATTRS)
    .union(Capabilities::MULTI_STATEMENTS);

/// What MySQL's own client library asks for.
pub(crate) const CLIENT: Capabilities = Capabilities::LONG_PASSWORD
    .union(Capabilities::LONG_FLAG)
    .union(Capabilities::PROTOCOL_41)
    .union(Capabilities::TRANSACTIONS)
    .union(Capabilities::SECURE_CONNECTION)
    .union(Capabilities::MULTI_RESULTS)
    .union(Capabilities::PS_MULTI_RESULTS)
    .union(Capabilities::PLUGIN_AUTH)
    .union(Capabilities::PLUGIN_AUTH_LENENC)
    .union(Capabilities::CAN_HANDLE_EXPIRED_PASSWORDS)
    .union(Capabilities::SESSION_TRACK)
    .union(Capabilities::DEPRECATE_EOF)
    .union(Capabilities::QUERY_ATTRIBUTES);

/// utf8mb4_0900_ai_ci.
pub(crate) const COLLATION: u8 = 255;

/// sysbench's point select; ids of one length.
pub(crate) fn point_select(at: u32) -> Vec<u8> {
    format!("SELECT c FROM sbtest1 WHERE id={}", id(at)).into_bytes()
}

/// sysbench's update of an indexed column.
pub(crate) fn update(at: u32) -> Vec<u8> {
    format!("UPDATE sbtest1 SET k=k+1 WHERE id={}", id(at)).into_bytes()
}

fn id(at: u32) -> u32 {
    100_000 + at % 900_000
}

/// Appends the execution of prepared statement `statement` with an id, as MySQL's library sends it.
pub(crate) fn execute(out: &mut Vec<u8>, statement: u32, at: u32) {
    const LONGLONG: u16 = 8;
    let mut writer = Writer::new(out, 0);
    writer
        .u8(COM_STMT_EXECUTE)
        .u32(statement)
        .u8(PARAMETER_COUNT_AVAILABLE)
        .u32(1)
        .lenenc_int(1)
        .bytes(&[0])
        .u8(1)
        .u16(LONGLONG)
        .lenenc_bytes(b"")
        .u64(u64::from(id(at)));
    writer.finish();
}

/// Appends the answer of a select of so many rows from sysbench's table: one column as in the point
/// select, all four in a longer result.
pub(crate) fn rows(count: u32, binary: bool, out: &mut Vec<u8>, capabilities: Capabilities) {
    const C: &[u8] = b"68487932199-96439406143-93774651418-41631865787-96406072701-20604855487-\
        25459966574-28203206787-41238978918-19503783441";
    const PAD: &[u8] = b"22195207048-70116052123-74140395089-76317954521-98694025897";
    let mut result = if count == 1 {
        TextResult::new(vec![column("c")])
    } else {
        let numbers = ["id", "k"].map(ColumnDef::integer);
        TextResult::new([&numbers[..], &["c", "pad"].map(column)].concat())
    };
    for at in 0..count {
        let number = Cell::Int(i64::from(id(at)));
        if count == 1 {
            result.row(&[Cell::Bytes(C)]);
        } else {
            result.row(&[number, number, Cell::Bytes(C), Cell::Bytes(PAD)]);
        }
    }
    if binary {
        result.encode_binary(out, 1, capabilities, &idle());
    } else {
        result.encode(out, 1, capabilities, &idle());
    }
}

fn column(name: &str) -> ColumnDef {
    ColumnDef {
        schema: b"sbtest".into(),
        table: b"sbtest1".into(),
        org_table: b"sbtest1".into(),
        org_name: name.into(),
        ..ColumnDef::text(name, u16::from(COLLATION))
    }
}

fn idle() -> OkFields<'static> {
    OkFields {
        status: Status::AUTOCOMMIT,
        ..OkFields::default()
    }
}

/// One server.
pub(crate) struct Server {
    path: PathBuf,
    listener: UnixListener,
    clients: Vec<Client>,
    is_primary: bool,
    /// The last transaction.
    executed: u64,
    next_thread: u32,
}

/// A connection to it.
struct Client {
    socket: UnixStream,
    unread: Vec<u8>,
    /// None before the login.
    capabilities: Option<Capabilities>,
    next_statement: u32,
    left: bool,
}

impl Server {
    /// Listens on `path`.
    pub(crate) fn new(path: PathBuf, is_primary: bool) -> anyhow::Result<Server> {
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        listener.set_nonblocking(true)?;
        Ok(Server {
            path,
            listener,
            clients: Vec::new(),
            is_primary,
            executed: EXECUTED,
            next_thread: 1,
        })
    }

    /// Where it listens.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Answers everything that has come in; false where there was nothing.
    pub(crate) fn answer(&mut self) -> anyhow::Result<bool> {
        let mut any = false;
        while let Some(socket) = unless_blocked(self.listener.accept())? {
            self.greet(socket.0)?;
            any = true;
        }
        for at in 0..self.clients.len() {
            let mut input = std::mem::take(&mut self.clients[at].unread);
            let left = !receive(&mut self.clients[at].socket, &mut input)?;
            let (mut out, mut done) = (Vec::new(), 0);
            while let Some(length) = packet::whole(&input[done..]) {
                let payload = packet::payload(&input[done..done + length]).into_owned();
                let sequence = input[done + 3].wrapping_add(1);
                self.reply(at, &payload, sequence, &mut out)?;
                done += length;
            }
            input.drain(..done);
            any |= done > 0 || left;
            self.clients[at].unread = input;
            self.clients[at].left |= left;
            if !self.clients[at].left {
                self.clients[at].socket.write_all(&out)?;
            }
        }
        self.clients.retain(|client| !client.left);
        Ok(any)
    }

    fn greet(&mut self, socket: UnixStream) -> anyhow::Result<()> {
        socket.set_nonblocking(true)?;
        let greeting = Greeting {
            server_version: "9.7.0".to_owned(),
            thread_id: self.next_thread,
            nonce: *b"abcdefghijklmnopqrst",
            capabilities: OFFERED,
            collation: COLLATION,
            status: Status::AUTOCOMMIT,
            auth_plugin: "caching_sha2_password".to_owned(),
        };
        self.next_thread += 1;
        let mut out = Vec::new();
        greeting.encode(&mut out, 0);
        (&socket).write_all(&out)?;
        self.clients.push(Client {
            socket,
            unread: Vec::new(),
            capabilities: None,
            next_statement: 1,
            left: false,
        });
        Ok(())
    }

    fn reply(
        &mut self,
        at: usize,
        payload: &[u8],
        sequence: u8,
        out: &mut Vec<u8>,
    ) -> anyhow::Result<()> {
        let client = &mut self.clients[at];
        let Some(capabilities) = client.capabilities else {
            let Ok(ClientHello::Response(hello)) =
                ClientHello::parse(payload, OFFERED, Family::MySql)
            else {
                bail!("a login that the script does not know");
            };
            // Every account has the empty password.
            let agreed = hello.capabilities & OFFERED;
            client.capabilities = Some(agreed);
            encode_ok(out, sequence, agreed, &idle());
            return Ok(());
        };
        match payload.first() {
            Some(&COM_QUIT) => client.left = true,
            Some(&COM_CHANGE_USER) => {
                encode_ok(out, sequence, capabilities, &idle());
            }
            Some(&COM_STMT_PREPARE) => {
                let id = client.next_statement;
                client.next_statement += 1;
                prepared(id, capabilities, out);
            }
            Some(&COM_STMT_EXECUTE) => rows(1, true, out, capabilities),
            _ => match Command::parse(payload, capabilities) {
                Ok(Command::InitDb(name)) => {
                    let mut session = Vec::new();
                    put_change(&mut session, &Change::Schema(name));
                    let done = OkFields {
                        session: &session,
                        ..idle()
                    };
                    encode_ok(out, sequence, capabilities, &done);
                }
                Ok(Command::Query(query)) => {
                    let text = String::from_utf8_lossy(query.text).into_owned();
                    self.query(&text, capabilities, out)?;
                }
                other => bail!("the script does not know {other:?}"),
            },
        }
        Ok(())
    }

    fn query(
        &mut self,
        text: &str,
        capabilities: Capabilities,
        out: &mut Vec<u8>,
    ) -> anyhow::Result<()> {
        let mut table = |names: &[&str], cells: &[&str]| {
            let columns = names.iter().map(|name| column(name)).collect();
            let mut result = TextResult::new(columns);
            if !cells.is_empty() {
                let cells: Vec<_> = cells.iter().map(|c| Cell::Bytes(c.as_bytes())).collect();
                result.row(&cells);
            }
            result.encode(out, 1, capabilities, &idle());
        };
        let read_only = if self.is_primary { "0" } else { "1" };
        match text {
            _ if text.starts_with("SELECT c FROM sbtest1") => rows(1, false, out, capabilities),
            _ if text.starts_with("SELECT WAIT_FOR_EXECUTED_GTID_SET") => table(&["w"], &["0"]),
            _ if text.starts_with("UPDATE sbtest1") => {
                self.executed += 1;
                let gtid = format!("{UUID}:{}", self.executed);
                let mut session = Vec::new();
                put_change(&mut session, &Change::Gtids(gtid.as_bytes()));
                let done = OkFields {
                    affected_rows: 1,
                    info: b"Rows matched: 1  Changed: 1  Warnings: 0",
                    session: &session,
                    ..idle()
                };
                encode_ok(out, 1, capabilities, &done);
            }
            _ if text.starts_with("SET ") => {
                encode_ok(out, 1, capabilities, &idle());
            }
            _ if text.starts_with("SELECT @@character_set_client") => table(
                &["client", "results", "collation", "time_zone", "timeout"],
                &["utf8mb4", "utf8mb4", "utf8mb4_0900_ai_ci", "UTC", "28800"],
            ),
            _ if text.starts_with("SELECT @@version") => {
                let uuid = if self.is_primary { UUID } else { "replica" };
                let executed = format!("{UUID}:1-{EXECUTED}");
                table(
                    &["v"; 10],
                    &[
                        "9.7.0", uuid, "1", read_only, read_only, "0", "ON", &executed, SQL_MODE,
                        "",
                    ],
                );
            }
            "SHOW GLOBAL STATUS LIKE 'Threads_running'" => {
                table(&["Variable_name", "Value"], &["Threads_running", "2"])
            }
            "SHOW REPLICA STATUS" if self.is_primary => table(&["Source_Host"], &[]),
            "SHOW REPLICA STATUS" => table(
                &[
                    "Source_Host",
                    "Source_Port",
                    "Source_UUID",
                    "Replica_IO_Running",
                    "Replica_SQL_Running",
                    "Seconds_Behind_Source",
                ],
                &["db1", "3306", UUID, "Yes", "Yes", "0"],
            ),
            // What a login gives never changes.
            _ if text.starts_with("SHOW SESSION VARIABLES WHERE") => {
                table(&["Variable_name", "Value"], &["time_zone", "UTC"])
            }
            _ if text.starts_with("SHOW GLOBAL STATUS WHERE Variable_name IN ('Com_grant'") => {
                table(&["Variable_name", "Value"], &["Com_grant", "0"])
            }
            _ if text.starts_with("SELECT SHA2(") => table(&["h", "i", "a"], &["00", "", "1"]),
            "SELECT @@GLOBAL.session_track_system_variables" => table(
                &["v"],
                &["time_zone,autocommit,character_set_client,character_set_results"],
            ),
            // `app@%`, and no proxy user.
            _ if text.starts_with("SELECT HEX(CONVERT(CURRENT_USER()") => {
                table(&["u", "p"], &["6170704025", ""]);
            }
            // The client's account, which asks for nothing.
            _ if text.contains("FROM mysql.user WHERE") => {
                table(
                    &["u"; 13],
                    &[
                        "1", "app", "app", "%", "0", "0", "0", "", "", "0", "0", "", "",
                    ],
                );
            }
            _ if text.contains("FROM mysql.proxies_priv WHERE") => table(&["c", "h", "p"], &[]),
            // A few of them: they come back in a SET that costs only when a connection opens.
            "SHOW GLOBAL VARIABLES LIKE 'aurora_version'" => {
                table(&["Variable_name", "Value"], &[])
            }
            "SHOW GLOBAL VARIABLES" => table(&["Variable_name", "Value"], &["time_zone", "UTC"]),
            "SHOW SESSION VARIABLES" => table(&["Variable_name", "Value"], &["time_zone", "UTC"]),
            _ if text.contains("replication_group_members") => table(&["MEMBER_ID"], &[]),
            // No views, routines or triggers.
            _ if text.contains("FROM information_schema.") => table(&["none"], &[]),
            other => bail!("the script does not know {other:?}"),
        }
        Ok(())
    }
}

/// The answer to a prepare: one parameter and one column.
fn prepared(id: u32, capabilities: Capabilities, out: &mut Vec<u8>) {
    let mut writer = Writer::new(out, 1);
    writer.u8(0).u32(id).u16(1).u16(1).u8(0).u16(0);
    let sequence = writer.finish();
    let sequence = ColumnDef::integer("?").encode(out, sequence, capabilities);
    column("c").encode(out, sequence, capabilities);
}

/// Reads what there is; false where the other side has closed.
pub(crate) fn receive(socket: &mut UnixStream, into: &mut Vec<u8>) -> anyhow::Result<bool> {
    let mut chunk = [0; 4096];
    loop {
        match unless_blocked(socket.read(&mut chunk)) {
            // Closed with something unread: the monitor's connections, when it ends.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error.into()),
            Ok(Some(0)) => return Ok(false),
            Ok(Some(read)) => into.extend_from_slice(&chunk[..read]),
            Ok(None) => return Ok(true),
        }
    }
}

fn unless_blocked<T>(result: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

//! What came back for a command: each packet decoded, kept whole, and printed comparably.

use std::fmt::Write;

use sha1::{Digest, Sha1};

use super::binary::decode_row;
use super::codec::Reader;
use super::consts::{ProtocolNames, cap, status};

/// Values longer than this are printed as a head, a length and a digest.
const PRINT_MAX: usize = 240;

/// The longest error message that is shown whole, in bytes: what the servers have room for.
const MESSAGE_MAX: usize = 512;

/// An OK packet, also in its guise as the end of a result set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OkPacket {
    pub affected: u64,
    pub insert_id: u64,
    pub status: u16,
    pub warnings: u16,
    pub info: Vec<u8>,
    /// Session-track entries: type and decoded text.
    pub track: Vec<(u8, String)>,
    /// The header was 0xFE: it ends rows.
    pub ends_rows: bool,
}

/// An error packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrPacket {
    pub code: u16,
    pub state: String,
    pub message: String,
}

impl std::fmt::Display for ErrPacket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ERROR {} ({}): {}", self.code, self.state, self.message)
    }
}

impl std::error::Error for ErrPacket {}

/// A column definition, every field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    pub catalog: Vec<u8>,
    pub schema: Vec<u8>,
    pub table: Vec<u8>,
    pub org_table: Vec<u8>,
    pub name: Vec<u8>,
    pub org_name: Vec<u8>,
    /// MariaDB's extended metadata, raw; `None` where it was not negotiated.
    pub extended: Option<Vec<u8>>,
    pub charset: u16,
    pub length: u32,
    pub typ: u8,
    pub flags: u16,
    pub decimals: u8,
    /// Only in answers to COM_FIELD_LIST.
    pub default: Option<Vec<u8>>,
}

/// One packet's meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    Ok(OkPacket),
    Err(ErrPacket),
    Eof {
        warnings: u16,
        status: u16,
    },
    /// Starts a result set. The flag is MariaDB's "metadata follows".
    ColumnCount {
        count: u64,
        metadata: bool,
    },
    Column(Box<Column>),
    TextRow(Vec<Option<Vec<u8>>>),
    BinaryRow(Vec<u8>),
    LocalInfile(Vec<u8>),
    PrepareOk {
        id: u32,
        columns: u16,
        params: u16,
        warnings: u16,
    },
    Raw(Vec<u8>),
    Progress,
    /// The connection ended.
    Closed(String),
    /// Nothing more came in time.
    Timeout,
}

/// One packet of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub seq: u8,
    pub chunks: usize,
    pub item: Item,
}

/// The whole reply to a command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reply {
    pub events: Vec<Event>,
}

impl OkPacket {
    pub(crate) fn parse(body: &[u8], capabilities: u64) -> Option<Self> {
        let mut r = Reader::new(body);
        let header = r.u8()?;
        let mut ok = OkPacket {
            affected: r.lenenc()?,
            insert_id: r.lenenc()?,
            status: r.u16()?,
            warnings: r.u16()?,
            ends_rows: header == 0xfe,
            ..OkPacket::default()
        };
        if capabilities & cap::SESSION_TRACK == 0 {
            ok.info = r.rest().to_vec();
            return Some(ok);
        }
        if !r.is_empty() {
            ok.info = r.lenenc_bytes()?.to_vec();
        }
        if ok.status & status::STATE_CHANGED != 0 && !r.is_empty() {
            ok.track = parse_track(r.lenenc_bytes()?)?;
        }
        if !r.is_empty() {
            ok.info.extend_from_slice(b" TRAILING BYTES: ");
            ok.info.extend_from_slice(r.rest());
        }
        Some(ok)
    }
}

fn parse_track(block: &[u8]) -> Option<Vec<(u8, String)>> {
    let mut out = Vec::new();
    let mut r = Reader::new(block);
    while !r.is_empty() {
        let kind = r.u8()?;
        let data = r.lenenc_bytes()?;
        let mut d = Reader::new(data);
        let text = match kind {
            0 => {
                let mut pairs = Vec::new();
                while !d.is_empty() {
                    let name = printable(d.lenenc_bytes()?);
                    pairs.push(format!("{name}={}", printable(d.lenenc_bytes()?)));
                }
                pairs.join(",")
            }
            1 | 4 | 5 => printable(d.lenenc_bytes()?),
            3 => {
                d.u8()?;
                printable(d.lenenc_bytes()?)
            }
            _ => printable(data),
        };
        out.push((kind, text));
    }
    Some(out)
}

impl ErrPacket {
    pub(crate) fn parse(body: &[u8]) -> Option<Self> {
        let mut r = Reader::new(body);
        r.u8()?;
        let code = r.u16()?;
        let mut state = String::new();
        if r.rest().first() == Some(&b'#') {
            r.u8()?;
            state = printable(r.bytes(5)?);
        }
        Some(Self {
            code,
            state,
            message: printable_up_to(r.rest(), MESSAGE_MAX),
        })
    }
}

impl Column {
    pub(crate) fn parse(body: &[u8], capabilities: u64) -> Option<Self> {
        let mut r = Reader::new(body);
        let mut text = || r.lenenc_bytes().map(<[u8]>::to_vec);
        let (catalog, schema, table) = (text()?, text()?, text()?);
        let (org_table, name, org_name) = (text()?, text()?, text()?);
        let extended = match capabilities & cap::MARIADB_EXTENDED_METADATA {
            0 => None,
            _ => Some(r.lenenc_bytes()?.to_vec()),
        };
        r.lenenc()?;
        let (charset, length, typ) = (r.u16()?, r.u32()?, r.u8()?);
        let (flags, decimals) = (r.u16()?, r.u8()?);
        r.bytes(2)?;
        let default = match r.rest() {
            [] => None,
            [0xfb] => Some(b"<NULL>".to_vec()),
            _ => Some(r.lenenc_bytes()?.to_vec()),
        };
        Some(Self {
            catalog,
            schema,
            table,
            org_table,
            name,
            org_name,
            extended,
            charset,
            length,
            typ,
            flags,
            decimals,
            default,
        })
    }

    fn render(&self) -> String {
        let mut out = format!(
            "column {} catalog={} schema={} table={} org_table={} org_name={} charset={} length={} type={} flags={:#06x} decimals={}",
            printable(&self.name),
            printable(&self.catalog),
            printable(&self.schema),
            printable(&self.table),
            printable(&self.org_table),
            printable(&self.org_name),
            self.charset,
            self.length,
            self.typ,
            self.flags,
            self.decimals,
        );
        if let Some(extended) = &self.extended {
            let _ = write!(out, " extended={}", printable(extended));
        }
        if let Some(default) = &self.default {
            let _ = write!(out, " default={}", printable(default));
        }
        out
    }
}

/// Bytes as one line of ASCII; other bytes as `\xNN`; long ones as head, length and digest.
pub fn printable(bytes: &[u8]) -> String {
    printable_up_to(bytes, PRINT_MAX)
}

fn printable_up_to(bytes: &[u8], max: usize) -> String {
    let shown = if bytes.len() > max {
        &bytes[..48]
    } else {
        bytes
    };
    let mut out = String::with_capacity(shown.len());
    for b in shown {
        match b {
            b'\\' => out.push_str("\\\\"),
            b' '..=b'~' => out.push(char::from(*b)),
            b'\n' => out.push_str("\\n"),
            _ => {
                let _ = write!(out, "\\x{b:02x}");
            }
        }
    }
    if bytes.len() > max {
        let digest: String = Sha1::digest(bytes)
            .iter()
            .take(8)
            .map(|b| format!("{b:02x}"))
            .collect();
        let _ = write!(out, "...({} bytes, sha1 {digest})", bytes.len());
    }
    out
}

fn status_names(bits: u16) -> String {
    ProtocolNames::flags(u64::from(bits), status::NAMES)
}

impl OkPacket {
    fn render(&self) -> String {
        let mut out = format!(
            "{} affected={} insert_id={} status={} warnings={} info={:?}",
            if self.ends_rows { "end" } else { "OK" },
            self.affected,
            self.insert_id,
            status_names(self.status),
            self.warnings,
            printable(&self.info),
        );
        for (kind, text) in &self.track {
            let name = match kind {
                0 => "variable",
                1 => "schema",
                2 => "state",
                3 => "gtids",
                4 => "trx_characteristics",
                5 => "trx_state",
                _ => "unknown",
            };
            let _ = write!(out, " track[{name}:{text}]");
        }
        out
    }
}

impl Reply {
    /// The first error, if any.
    pub fn err(&self) -> Option<&ErrPacket> {
        self.events.iter().find_map(|e| match &e.item {
            Item::Err(err) => Some(err),
            _ => None,
        })
    }

    /// The last OK (or end of rows).
    pub fn ok(&self) -> Option<&OkPacket> {
        self.events.iter().rev().find_map(|e| match &e.item {
            Item::Ok(ok) => Some(ok),
            _ => None,
        })
    }

    /// The connection ended or went silent during this reply.
    pub fn broken(&self) -> Option<String> {
        self.events.iter().find_map(|e| match &e.item {
            Item::Closed(why) => Some(format!("closed: {why}")),
            Item::Timeout => Some("timeout".to_owned()),
            _ => None,
        })
    }

    /// The status flags of the last OK or EOF.
    pub fn status(&self) -> Option<u16> {
        self.events.iter().rev().find_map(|e| match &e.item {
            Item::Ok(ok) => Some(ok.status),
            Item::Eof { status, .. } => Some(*status),
            _ => None,
        })
    }

    /// The columns, of all result sets.
    pub fn columns(&self) -> Vec<&Column> {
        self.events
            .iter()
            .filter_map(|e| match &e.item {
                Item::Column(column) => Some(&**column),
                _ => None,
            })
            .collect()
    }

    /// The rows of all result sets as text, NULL as `None`.
    pub fn rows(&self) -> Vec<Vec<Option<String>>> {
        let mut columns: Vec<&Column> = Vec::new();
        let mut rows = Vec::new();
        for event in &self.events {
            match &event.item {
                Item::ColumnCount { .. } => columns.clear(),
                Item::Column(column) => columns.push(column),
                Item::TextRow(row) => rows.push(
                    row.iter()
                        .map(|v| v.as_ref().map(|v| String::from_utf8_lossy(v).into_owned()))
                        .collect(),
                ),
                Item::BinaryRow(body) => rows.push(decode_row(body, &columns).unwrap_or_default()),
                _ => {}
            }
        }
        rows
    }

    /// The first value of the first row; `None` for NULL and for no row.
    pub fn scalar(&self) -> Option<String> {
        self.rows().into_iter().next()?.into_iter().next()?
    }

    /// The id of a prepared statement.
    pub fn statement_id(&self) -> Option<(u32, u16)> {
        self.events.iter().find_map(|e| match &e.item {
            Item::PrepareOk { id, params, .. } => Some((*id, *params)),
            _ => None,
        })
    }

    /// Puts `columns` where the server has left definitions out, as if it had sent them.
    pub fn fill_in(&mut self, columns: &[Column]) {
        let mut filled: Vec<Event> = Vec::with_capacity(self.events.len());
        let mut more = 0_u8;
        for mut event in std::mem::take(&mut self.events) {
            event.seq = event.seq.wrapping_add(more);
            let left_out = match &mut event.item {
                Item::ColumnCount { count, metadata } if !*metadata => {
                    *metadata = usize::try_from(*count) == Ok(columns.len());
                    *metadata
                }
                _ => false,
            };
            let mut seq = event.seq;
            filled.push(event);
            for column in columns.iter().filter(|_| left_out) {
                seq = seq.wrapping_add(1);
                more = more.wrapping_add(1);
                filled.push(Event {
                    seq,
                    chunks: 1,
                    item: Item::Column(Box::new(column.clone())),
                });
            }
        }
        self.events = filled;
    }

    /// One line for each packet. Statement ids are left out: they are handles, not data.
    pub fn render(&self) -> Vec<String> {
        let mut columns: Vec<&Column> = Vec::new();
        let mut out = Vec::new();
        for event in &self.events {
            if matches!(
                event.item,
                Item::ColumnCount { .. } | Item::PrepareOk { .. }
            ) {
                columns.clear();
            }
            if let Item::Column(column) = &event.item {
                columns.push(column);
            }
            let chunks = if event.chunks > 1 {
                format!(" ({} parts)", event.chunks)
            } else {
                String::new()
            };
            out.push(format!(
                "{:>3}{chunks} {}",
                event.seq,
                event.item.render(&columns)
            ));
        }
        out
    }
}

impl Item {
    fn render(&self, columns: &[&Column]) -> String {
        match self {
            Item::Ok(ok) => ok.render(),
            Item::Err(err) => err.to_string(),
            Item::Eof { warnings, status } => {
                format!("EOF warnings={warnings} status={}", status_names(*status))
            }
            Item::ColumnCount { count, metadata } => {
                format!(
                    "columns {count}{}",
                    if *metadata { "" } else { " (no metadata)" }
                )
            }
            Item::Column(column) => column.render(),
            Item::TextRow(row) => format!("row {}", render_values(row)),
            Item::BinaryRow(body) => match decode_row(body, columns) {
                Some(row) => {
                    let row: Vec<_> = row.into_iter().map(|v| v.map(String::into_bytes)).collect();
                    format!("binary row {}", render_values(&row))
                }
                None => format!("binary row, undecoded {}", printable(body)),
            },
            Item::LocalInfile(name) => format!("LOCAL INFILE {}", printable(name)),
            Item::PrepareOk {
                columns,
                params,
                warnings,
                ..
            } => {
                format!("prepared columns={columns} params={params} warnings={warnings}")
            }
            Item::Raw(body) => format!("raw {}", printable(body)),
            Item::Progress => "progress".to_owned(),
            Item::Closed(_) => "CLOSED".to_owned(),
            Item::Timeout => "TIMEOUT".to_owned(),
        }
    }
}

fn render_values(row: &[Option<Vec<u8>>]) -> String {
    let mut out = String::new();
    for value in row {
        match value {
            Some(value) => {
                let _ = write!(out, "|{}", printable(value));
            }
            None => out.push_str("|<NULL>"),
        }
    }
    out.push('|');
    out
}

//! OK, EOF and ERR packets and the session tracking inside OK: read, written and
//! rewritten for a client. Judges nothing of what they say.

use crate::packet::{HEADER, Malformed, Reader, Writer, payload, put_lenenc_bytes, whole};
use crate::{Capabilities, Status};

/// First byte of an OK packet.
pub const OK: u8 = 0x00;
/// First byte of an EOF packet, and of the OK packet that ends rows under
/// [`Capabilities::DEPRECATE_EOF`].
pub const EOF: u8 = 0xFE;
/// First byte of an ERR packet.
pub const ERR: u8 = 0xFF;

/// An OK packet (MySQL manual, "OK_Packet").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OkPacket<'a> {
    /// [`OK`] or [`EOF`].
    pub header: u8,
    pub affected_rows: u64,
    pub last_insert_id: u64,
    pub status: Status,
    pub warnings: u16,
    /// Human readable, such as `Rows matched: 1  Changed: 1  Warnings: 0`.
    pub info: &'a [u8],
    /// Session tracking entries as they came; see [`changes`](Self::changes).
    pub session: &'a [u8],
}

impl<'a> OkPacket<'a> {
    /// Reads the payload of an OK packet that came over a connection with `caps`.
    pub fn parse(payload: &'a [u8], caps: Capabilities) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        let header = reader.u8()?;
        if header != OK && header != EOF {
            return Err(Malformed);
        }
        let affected_rows = reader.lenenc_int()?;
        let last_insert_id = reader.lenenc_int()?;
        let status = Status::from_bits_retain(reader.u16()?);
        let warnings = reader.u16()?;
        let (info, session) = tail(&mut reader, caps, status)?;
        Ok(Self {
            header,
            affected_rows,
            last_insert_id,
            status,
            warnings,
            info,
            session,
        })
    }

    /// The session changes that the server tells of.
    pub fn changes(&self) -> Changes<'a> {
        Changes {
            entries: Reader::new(self.session),
            pairs: None,
        }
    }
}

/// The info string and the session entries. Servers write the info with its length
/// also where SESSION_TRACK is off, though the manual says it runs to the end
/// (observed on both families); both forms are read.
fn tail<'a>(
    reader: &mut Reader<'a>,
    caps: Capabilities,
    status: Status,
) -> Result<(&'a [u8], &'a [u8]), Malformed> {
    if reader.is_empty() {
        return Ok((&[], &[]));
    }
    if caps.contains(Capabilities::SESSION_TRACK) {
        let info = reader.lenenc_bytes()?;
        let changed = status.contains(Status::SESSION_STATE_CHANGED) && !reader.is_empty();
        let session = match changed {
            true => changes(reader)?,
            false => &[],
        };
        return Ok((info, session));
    }
    let raw = reader.rest();
    let mut counted = Reader::new(raw);
    match counted.lenenc_bytes() {
        Ok(info) if counted.is_empty() => Ok((info, &[])),
        _ => Ok((raw, &[])),
    }
}

/// The session entries. MariaDB puts zeros before them where a database in a wide character set was chosen
/// (one for utf16 and ucs2, three for utf32; observed on 10.11): none of what it tells is to be lost for that.
fn changes<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let mut entries = reader.lenenc_bytes()?;
    while entries.is_empty() && !reader.is_empty() {
        entries = reader.lenenc_bytes()?;
    }
    Ok(entries)
}

/// One change of session state (MySQL manual, "Session State Information").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    SystemVariable {
        name: &'a [u8],
        value: &'a [u8],
    },
    Schema(&'a [u8]),
    /// Whether some state changed that cannot be told in detail.
    StateChanged(bool),
    Gtids(&'a [u8]),
    /// Statements that start a transaction like the present one.
    TransactionCharacteristics(&'a [u8]),
    /// Eight letters such as `T___W___`.
    TransactionState(&'a [u8]),
    /// Another kind, with its data.
    Other(u8, &'a [u8]),
}

/// Iterator over [`Change`]s; ends after the first error.
#[derive(Clone, Debug)]
pub struct Changes<'a> {
    entries: Reader<'a>,
    /// What is left of a system variable entry that holds several pairs.
    pairs: Option<Reader<'a>>,
}

impl<'a> Changes<'a> {
    fn step(&mut self) -> Result<Option<Change<'a>>, Malformed> {
        if let Some(mut pairs) = self.pairs.take() {
            return self.pair(&mut pairs).map(Some);
        }
        if self.entries.is_empty() {
            return Ok(None);
        }
        let kind = self.entries.u8()?;
        let data = self.entries.lenenc_bytes()?;
        let mut reader = Reader::new(data);
        Ok(Some(match kind {
            0 => self.pair(&mut reader)?,
            1 => Change::Schema(reader.lenenc_bytes()?),
            // The only entry whose data are not a string with a length of its own.
            2 => Change::StateChanged(data == b"1"),
            3 => {
                reader.u8()?;
                Change::Gtids(reader.lenenc_bytes()?)
            }
            4 => Change::TransactionCharacteristics(reader.lenenc_bytes()?),
            5 => Change::TransactionState(reader.lenenc_bytes()?),
            other => Change::Other(other, data),
        }))
    }

    fn pair(&mut self, reader: &mut Reader<'a>) -> Result<Change<'a>, Malformed> {
        let name = reader.lenenc_bytes()?;
        let value = reader.lenenc_bytes()?;
        self.pairs = (!reader.is_empty()).then_some(*reader);
        Ok(Change::SystemVariable { name, value })
    }
}

impl<'a> Iterator for Changes<'a> {
    type Item = Result<Change<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.entries = Reader::new(&[]);
            self.pairs = None;
        }
        step.transpose()
    }
}

/// Appends one session tracking entry.
pub fn put_change(out: &mut Vec<u8>, change: &Change<'_>) {
    let mut data = Vec::new();
    let kind = match *change {
        Change::SystemVariable { name, value } => {
            put_lenenc_bytes(&mut data, name);
            put_lenenc_bytes(&mut data, value);
            0
        }
        Change::Schema(name) => {
            put_lenenc_bytes(&mut data, name);
            1
        }
        Change::StateChanged(yes) => {
            data.push(if yes { b'1' } else { b'0' });
            2
        }
        Change::Gtids(gtids) => {
            data.push(0);
            put_lenenc_bytes(&mut data, gtids);
            3
        }
        Change::TransactionCharacteristics(text) => {
            put_lenenc_bytes(&mut data, text);
            4
        }
        Change::TransactionState(text) => {
            put_lenenc_bytes(&mut data, text);
            5
        }
        Change::Other(kind, raw) => {
            data.extend_from_slice(raw);
            kind
        }
    };
    out.push(kind);
    put_lenenc_bytes(out, &data);
}

/// Appends the OK packet at the start of `packet` (header included, came over a
/// connection with `server_caps`) as a client with `client_caps` may see it, with the
/// same sequence number: of the session changes only those that `keep` accepts, and
/// none for a client without SESSION_TRACK. An OK that ends rows becomes an EOF for a
/// client without DEPRECATE_EOF.
///
/// `status` maps the flags. SESSION_STATE_CHANGED is set where a change is left; by itself it stands for a
/// change without an entry, as in a packet that came without any.
/// A packet that cannot be read is an error, and nothing is appended.
pub fn rewrite_ok(
    out: &mut Vec<u8>,
    packet: &[u8],
    server_caps: Capabilities,
    client_caps: Capabilities,
    mut keep: impl FnMut(&Change<'_>) -> bool,
    status: impl FnOnce(Status) -> Status,
) -> Result<(), Malformed> {
    if whole(packet) != Some(packet.len()) {
        return Err(Malformed);
    }
    let seq = packet[HEADER - 1];
    let payload = payload(packet);
    let ok = OkPacket::parse(&payload, server_caps)?;
    let mut session = Vec::new();
    if client_caps.contains(Capabilities::SESSION_TRACK) {
        for change in ok.changes() {
            let change = change?;
            if keep(&change) {
                put_change(&mut session, &change);
            }
        }
    }
    let mut flags = ok.status;
    if ok.changes().next().is_some() {
        flags -= Status::SESSION_STATE_CHANGED;
    }
    let fields = OkFields {
        affected_rows: ok.affected_rows,
        last_insert_id: ok.last_insert_id,
        status: status(flags),
        warnings: ok.warnings,
        info: ok.info,
        session: &session,
    };
    if ok.header == EOF {
        encode_end(out, seq, client_caps, &fields);
    } else {
        encode_ok(out, seq, client_caps, &fields);
    }
    Ok(())
}

/// What goes into an OK packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OkFields<'a> {
    pub affected_rows: u64,
    pub last_insert_id: u64,
    pub status: Status,
    pub warnings: u16,
    pub info: &'a [u8],
    /// Entries made by [`put_change`]; left out for a client without SESSION_TRACK. SESSION_STATE_CHANGED
    /// goes with them; in `status` it stands for a change without an entry.
    pub session: &'a [u8],
}

/// Appends an OK packet with header 0x00; returns the next sequence number.
pub fn encode_ok(out: &mut Vec<u8>, seq: u8, caps: Capabilities, fields: &OkFields<'_>) -> u8 {
    put_ok(out, seq, caps, OK, fields)
}

/// Appends what ends a result set's rows for a client with `caps`: an OK packet with
/// header 0xFE under DEPRECATE_EOF, else an EOF packet. Returns the next sequence
/// number.
pub fn encode_end(out: &mut Vec<u8>, seq: u8, caps: Capabilities, fields: &OkFields<'_>) -> u8 {
    if caps.contains(Capabilities::DEPRECATE_EOF) {
        put_ok(out, seq, caps, EOF, fields)
    } else {
        encode_eof(out, seq, fields.status, fields.warnings)
    }
}

fn put_ok(out: &mut Vec<u8>, seq: u8, caps: Capabilities, header: u8, fields: &OkFields<'_>) -> u8 {
    let mut status = fields.status;
    let changed = status.contains(Status::SESSION_STATE_CHANGED) || !fields.session.is_empty();
    let tracked = changed && caps.contains(Capabilities::SESSION_TRACK);
    status.set(Status::SESSION_STATE_CHANGED, tracked);
    let mut writer = Writer::new(out, seq);
    writer
        .u8(header)
        .lenenc_int(fields.affected_rows)
        .lenenc_int(fields.last_insert_id)
        .u16(status.bits())
        .u16(fields.warnings);
    if tracked || !fields.info.is_empty() {
        writer.lenenc_bytes(fields.info);
    }
    if tracked {
        writer.lenenc_bytes(fields.session);
    }
    writer.finish()
}

/// Appends a classic EOF packet; returns the next sequence number.
pub fn encode_eof(out: &mut Vec<u8>, seq: u8, status: Status, warnings: u16) -> u8 {
    let status = status - Status::SESSION_STATE_CHANGED;
    let mut writer = Writer::new(out, seq);
    writer.u8(EOF).u16(warnings).u16(status.bits());
    writer.finish()
}

/// Status and warnings of a classic EOF packet's payload.
pub fn parse_eof(payload: &[u8]) -> Result<(Status, u16), Malformed> {
    let mut reader = Reader::new(payload);
    if reader.u8()? != EOF {
        return Err(Malformed);
    }
    let warnings = reader.u16()?;
    Ok((Status::from_bits_retain(reader.u16()?), warnings))
}

/// Where in `packet` (header included) the two bytes of an OK or EOF packet's status
/// flags are, for changing them in place.
pub fn status_offset(packet: &[u8], caps: Capabilities) -> Result<usize, Malformed> {
    let payload = packet.get(HEADER..).ok_or(Malformed)?;
    let mut reader = Reader::new(payload);
    let first = reader.u8()?;
    let at = if first == EOF && !caps.contains(Capabilities::DEPRECATE_EOF) {
        3
    } else {
        reader.lenenc_int()?;
        reader.lenenc_int()?;
        payload.len() - reader.remaining()
    };
    let offset = HEADER + at;
    if packet.len() < offset + 2 {
        return Err(Malformed);
    }
    Ok(offset)
}

/// An ERR packet (MySQL manual, "ERR_Packet").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrPacket<'a> {
    pub code: u16,
    /// SQLSTATE; `HY000` where the packet has none, as those sent in place of a
    /// greeting.
    pub state: [u8; 5],
    pub message: &'a [u8],
}

impl<'a> ErrPacket<'a> {
    /// Reads an ERR packet's payload, with or without SQLSTATE.
    pub fn parse(payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        if reader.u8()? != ERR {
            return Err(Malformed);
        }
        let code = reader.u16()?;
        let rest = reader.rest();
        if let Some((&state, message)) = rest
            .strip_prefix(b"#")
            .and_then(<[u8]>::split_first_chunk::<5>)
        {
            return Ok(Self {
                code,
                state,
                message,
            });
        }
        Ok(Self {
            code,
            state: *b"HY000",
            message: rest,
        })
    }

    /// Appends the packet with its SQLSTATE; returns the next sequence number.
    pub fn encode(&self, out: &mut Vec<u8>, seq: u8) -> u8 {
        let mut writer = Writer::new(out, seq);
        writer
            .u8(ERR)
            .u16(self.code)
            .u8(b'#')
            .bytes(&self.state)
            .bytes(self.message);
        writer.finish()
    }

    /// Appends the packet without SQLSTATE, as it is sent in place of a greeting.
    pub fn encode_before_greeting(&self, out: &mut Vec<u8>) -> u8 {
        let mut writer = Writer::new(out, 0);
        writer.u8(ERR).u16(self.code).bytes(self.message);
        writer.finish()
    }
}

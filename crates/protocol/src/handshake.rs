//! Connection phase packets: greeting, client's response, authentication packets and
//! COM_CHANGE_USER. Decides nothing about who may log in.

use std::fmt;
use std::sync::Arc;

pub use millrace_base::Family;

use crate::ok::{EOF, ERR, ErrPacket, OK};
use crate::packet::{Malformed, Reader, Writer, put_lenenc_bytes};
use crate::{Capabilities, Status};

/// The server's first packet (MySQL manual, "HandshakeV10"; MariaDB manual,
/// "Connection").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// As sent, with the `5.5.5-` that MariaDB before 11 puts in front.
    pub server_version: String,
    pub thread_id: u32,
    pub nonce: [u8; 20],
    pub capabilities: Capabilities,
    pub collation: u8,
    pub status: Status,
    pub auth_plugin: String,
}

impl Greeting {
    /// Reads a greeting's payload. The inner error is the ERR packet that a server
    /// which refuses the connection sends instead (1040, 1129, 1130).
    pub fn parse(payload: &[u8]) -> Result<Result<Self, ErrPacket<'_>>, Malformed> {
        let mut reader = Reader::new(payload);
        match reader.u8()? {
            ERR => return ErrPacket::parse(payload).map(Err),
            10 => {}
            _ => return Err(Malformed),
        }
        let server_version = lossy(reader.nul_bytes()?);
        let thread_id = reader.u32()?;
        let mut nonce = [0; 20];
        nonce[..8].copy_from_slice(reader.bytes(8)?);
        reader.u8()?;
        let low = reader.u16()?;
        let collation = reader.u8()?;
        let status = Status::from_bits_retain(reader.u16()?);
        let high = reader.u16()?;
        let nonce_len = reader.u8()?;
        reader.bytes(6)?;
        let extended = reader.u32()?;
        let basic = u32::from(low) | (u32::from(high) << 16);
        // MySQL leaves these bytes zero and sets bit 0; so do MariaDB's ancestors.
        let has_extended = basic & Capabilities::LONG_PASSWORD.basic() == 0;
        let capabilities =
            Capabilities::from_halves(basic, if has_extended { extended } else { 0 });
        if !capabilities.contains(Capabilities::SECURE_CONNECTION) {
            return Err(Malformed);
        }
        let tail = reader.bytes(usize::from(nonce_len).saturating_sub(8).max(13))?;
        nonce[8..].copy_from_slice(&tail[..12]);
        // Some old servers do not end the name with a zero (MySQL bug 59453).
        let auth_plugin = lossy(reader.nul_bytes_or_rest());
        Ok(Ok(Self {
            server_version,
            thread_id,
            nonce,
            capabilities,
            collation,
            status,
            auth_plugin,
        }))
    }

    /// Appends the greeting as a packet; returns the next sequence number.
    pub fn encode(&self, out: &mut Vec<u8>, seq: u8) -> u8 {
        let basic = self.capabilities.basic();
        let extended = self.capabilities.has_extended_half();
        let mut writer = Writer::new(out, seq);
        writer
            .u8(10)
            .nul_bytes(self.server_version.as_bytes())
            .u32(self.thread_id)
            .bytes(&self.nonce[..8])
            .u8(0)
            .u16(basic as u16)
            .u8(self.collation)
            .u16(self.status.bits())
            .u16((basic >> 16) as u16)
            .u8(21)
            .bytes(&[0; 6])
            .u32(if extended {
                self.capabilities.extended()
            } else {
                0
            })
            .bytes(&self.nonce[8..])
            .u8(0)
            .nul_bytes(self.auth_plugin.as_bytes());
        writer.finish()
    }

    /// MariaDB names itself in its version (observed: `5.5.5-10.11.x-MariaDB-…`).
    pub fn family(&self) -> Family {
        if self.server_version.contains("MariaDB") {
            Family::MariaDb
        } else {
            Family::MySql
        }
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Connection attributes, names and values, as they are in the packet. They are many, and few are ever looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Length-encoded strings, in pairs; whole ones.
    block: Arc<[u8]>,
}

impl Attributes {
    /// Reads the packet's block. Its length must be there and true; what is in it, servers do not look at before the
    /// login is done (observed on both families).
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let block = reader.lenenc_bytes()?.into();
        Ok(Attributes { block })
    }

    /// Names with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut reader = Reader::new(&self.block);
        std::iter::from_fn(move || Some((reader.lenenc_bytes().ok()?, reader.lenenc_bytes().ok()?)))
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Attributes {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(pairs: I) -> Self {
        let mut block = Vec::new();
        for (name, value) in pairs {
            put_lenenc_bytes(&mut block, name.as_bytes());
            put_lenenc_bytes(&mut block, value.as_bytes());
        }
        let block = block.into();
        Attributes { block }
    }
}

/// The client's answer to the greeting (MySQL manual, "HandshakeResponse41"). Its
/// `Debug` keeps quiet about the authentication response, which can be a password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HandshakeResponse {
    /// As the client sent them; what holds on the connection is what the server's
    /// greeting offered as well.
    pub capabilities: Capabilities,
    /// Largest packet the client takes, in bytes.
    pub max_packet: u32,
    pub collation: u8,
    pub user: Vec<u8>,
    pub auth_response: Vec<u8>,
    pub database: Option<Vec<u8>>,
    pub plugin: Option<Vec<u8>>,
    pub attributes: Attributes,
    /// Of zstd, 1 to 22; 0 where the client did not say.
    pub zstd_level: u8,
}

/// The client's first packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientHello {
    /// A request to start TLS; the response comes again inside.
    SslRequest {
        capabilities: Capabilities,
        max_packet: u32,
        collation: u8,
    },
    Response(HandshakeResponse),
    /// A client from before 4.1: see [`OldResponse`].
    TooOld,
}

impl ClientHello {
    /// Reads the client's first payload, sent in answer to a greeting that offered
    /// `server_caps`, as a server of the family would.
    pub fn parse(
        payload: &[u8],
        server_caps: Capabilities,
        family: Family,
    ) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        let low = reader.u16()?;
        if u32::from(low) & Capabilities::PROTOCOL_41.basic() == 0 {
            return Ok(Self::TooOld);
        }
        let high = reader.u16()?;
        let max_packet = reader.u32()?;
        let collation = reader.u8()?;
        reader.bytes(19)?;
        let extended = reader.u32()?;
        let basic = u32::from(low) | (u32::from(high) << 16);
        let mut capabilities = Capabilities::from_halves(basic, 0);
        if capabilities.has_extended_half() && server_caps.has_extended_half() {
            capabilities = Capabilities::from_halves(basic, extended);
        }
        if reader.is_empty() && capabilities.contains(Capabilities::SSL) {
            return Ok(Self::SslRequest {
                capabilities,
                max_packet,
                collation,
            });
        }
        let mut response = HandshakeResponse {
            capabilities,
            max_packet,
            collation,
            ..HandshakeResponse::default()
        };
        match family {
            Family::MySql => response.read_as_mysql(&mut reader)?,
            Family::MariaDb => response.read_as_mariadb(&mut reader)?,
        }
        if response.has(Capabilities::ZSTD_COMPRESSION) && !reader.is_empty() {
            response.zstd_level = reader.u8()?;
        }
        Ok(Self::Response(response))
    }
}

/// The response of a client from before 4.1 ([`ClientHello::TooOld`]).
#[derive(Clone, Default, PartialEq, Eq)]
pub struct OldResponse {
    pub capabilities: Capabilities,
    pub user: Vec<u8>,
    pub auth_response: Vec<u8>,
    pub database: Option<Vec<u8>>,
}

impl OldResponse {
    /// Reads the client's first payload.
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        let mut old = Self {
            capabilities: Capabilities::from_halves(u32::from(reader.u16()?), 0),
            ..Self::default()
        };
        // The longest packet that it takes.
        reader.bytes(3)?;
        old.user = reader.nul_bytes()?.to_vec();
        old.auth_response = if old.capabilities.contains(Capabilities::SECURE_CONNECTION) {
            short_bytes(&mut reader)?.to_vec()
        } else {
            reader.nul_bytes_or_rest().to_vec()
        };
        if old.capabilities.contains(Capabilities::CONNECT_WITH_DB) {
            old.database = some_name(reader.nul_bytes()?);
        }
        Ok(old)
    }
}

impl fmt::Debug for OldResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OldResponse")
            .field("capabilities", &self.capabilities)
            .field("user", &lossy(&self.user))
            .field("database", &self.database.as_deref().map(lossy))
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for HandshakeResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandshakeResponse")
            .field("capabilities", &self.capabilities)
            .field("max_packet", &self.max_packet)
            .field("collation", &self.collation)
            .field("user", &lossy(&self.user))
            .field("database", &self.database.as_deref().map(lossy))
            .field("plugin", &self.plugin.as_deref().map(lossy))
            .field("attributes", &self.attributes.iter().count())
            .field("zstd_level", &self.zstd_level)
            .finish_non_exhaustive()
    }
}

impl HandshakeResponse {
    fn has(&self, flag: Capabilities) -> bool {
        self.capabilities.contains(flag)
    }

    /// Every name ends with its zero (observed on 9.7).
    fn read_as_mysql(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        self.user = reader.nul_bytes()?.to_vec();
        self.auth_response = match self.has(Capabilities::PLUGIN_AUTH_LENENC) {
            true => reader.lenenc_bytes()?.to_vec(),
            false => short_bytes(reader)?.to_vec(),
        };
        if self.has(Capabilities::CONNECT_WITH_DB) {
            self.database = some_name(reader.nul_bytes()?);
        }
        if self.has(Capabilities::PLUGIN_AUTH) {
            self.plugin = some_name(reader.nul_bytes().unwrap_or_default());
        }
        if self.has(Capabilities::CONNECT_ATTRS) {
            self.attributes = Attributes::read(reader)?;
        }
        Ok(())
    }

    /// The end of the packet ends names as well (observed on 10.11). A plugin's name that is not there at all is another
    /// thing than an empty one.
    fn read_as_mariadb(&mut self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        self.user = reader.nul_bytes()?.to_vec();
        self.auth_response = if !self.has(Capabilities::SECURE_CONNECTION) {
            reader.nul_bytes_or_rest()
        } else if self.has(Capabilities::PLUGIN_AUTH_LENENC) {
            reader.lenenc_bytes()?
        } else {
            short_bytes(reader)?
        }
        .to_vec();
        if self.has(Capabilities::CONNECT_WITH_DB) {
            self.database = some_name(reader.nul_bytes_or_rest());
        }
        if self.has(Capabilities::PLUGIN_AUTH) && !reader.is_empty() {
            self.plugin = Some(reader.nul_bytes_or_rest().to_vec());
        }
        if self.has(Capabilities::CONNECT_ATTRS) {
            self.attributes = Attributes::read(reader)?;
        }
        Ok(())
    }

    /// Appends the response as a packet; returns the next sequence number. Fields that
    /// `capabilities` do not announce are left out.
    pub fn encode(&self, out: &mut Vec<u8>, seq: u8) -> u8 {
        let has = |flag| self.capabilities.contains(flag);
        let mut writer = Writer::new(out, seq);
        put_hello(
            &mut writer,
            self.capabilities,
            self.max_packet,
            self.collation,
        );
        writer.nul_bytes(&self.user);
        if has(Capabilities::PLUGIN_AUTH_LENENC) {
            writer.lenenc_bytes(&self.auth_response);
        } else if has(Capabilities::SECURE_CONNECTION) {
            put_short(&mut writer, &self.auth_response);
        } else {
            writer.nul_bytes(&self.auth_response);
        }
        if has(Capabilities::CONNECT_WITH_DB) {
            writer.nul_bytes(self.database.as_deref().unwrap_or_default());
        }
        if has(Capabilities::PLUGIN_AUTH) {
            writer.nul_bytes(self.plugin.as_deref().unwrap_or_default());
        }
        if has(Capabilities::CONNECT_ATTRS) {
            writer.lenenc_bytes(&self.attributes.block);
        }
        if has(Capabilities::ZSTD_COMPRESSION) {
            writer.u8(self.zstd_level);
        }
        writer.finish()
    }
}

/// Appends a request to start TLS; returns the next sequence number.
pub fn encode_ssl_request(
    out: &mut Vec<u8>,
    seq: u8,
    capabilities: Capabilities,
    max_packet: u32,
    collation: u8,
) -> u8 {
    let mut writer = Writer::new(out, seq);
    put_hello(
        &mut writer,
        capabilities | Capabilities::SSL,
        max_packet,
        collation,
    );
    writer.finish()
}

fn put_hello(writer: &mut Writer<'_>, capabilities: Capabilities, max_packet: u32, collation: u8) {
    let extended = if capabilities.has_extended_half() {
        capabilities.extended()
    } else {
        0
    };
    writer
        .u32(capabilities.basic())
        .u32(max_packet)
        .u8(collation)
        .bytes(&[0; 19])
        .u32(extended);
}

/// A string with its length in one byte; cut at 255 bytes, which no plugin reaches.
fn put_short(writer: &mut Writer<'_>, bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(255)];
    writer.u8(bytes.len() as u8).bytes(bytes);
}

/// A string with its length in one byte.
fn short_bytes<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Malformed> {
    let len = reader.u8()?;
    reader.bytes(usize::from(len))
}

fn some_name(name: &[u8]) -> Option<Vec<u8>> {
    (!name.is_empty()).then(|| name.to_vec())
}

/// The server asks for another plugin (MySQL manual, "AuthSwitchRequest").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthSwitch {
    pub plugin: String,
    /// Without the final zero that follows a nonce of 20 bytes. Other plugins' data
    /// are as sent: ed25519's 32 bytes have no final zero.
    pub nonce: Vec<u8>,
}

impl AuthSwitch {
    /// Reads the payload; a lone 0xFE means mysql_old_password.
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        if reader.u8()? != EOF {
            return Err(Malformed);
        }
        if reader.is_empty() {
            return Ok(Self {
                plugin: "mysql_old_password".to_owned(),
                nonce: Vec::new(),
            });
        }
        Self::read(&mut reader)
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let plugin = lossy(reader.nul_bytes_or_rest());
        let data = reader.rest();
        let nonce = match data {
            [nonce @ .., 0] if nonce.len() == 20 => nonce,
            _ => data,
        };
        Ok(Self {
            plugin,
            nonce: nonce.to_vec(),
        })
    }

    /// Appends the packet; returns the next sequence number.
    pub fn encode(&self, out: &mut Vec<u8>, seq: u8) -> u8 {
        let mut writer = Writer::new(out, seq);
        writer
            .u8(EOF)
            .nul_bytes(self.plugin.as_bytes())
            .bytes(&self.nonce);
        if self.nonce.len() == 20 {
            writer.u8(0);
        }
        writer.finish()
    }
}

/// Appends a plugin's data from the server (MySQL manual, "AuthMoreData"); returns the
/// next sequence number.
pub fn encode_auth_more(out: &mut Vec<u8>, seq: u8, data: &[u8]) -> u8 {
    let mut writer = Writer::new(out, seq);
    writer.u8(1).bytes(data);
    writer.finish()
}

/// A packet that the server sends while the client logs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAuthPacket<'a> {
    /// Logged in; the payload is an [`OkPacket`](crate::ok::OkPacket).
    Ok,
    Err(ErrPacket<'a>),
    Switch(AuthSwitch),
    /// The next factor of MULTI_FACTOR authentication.
    NextFactor(AuthSwitch),
    /// The plugin's data.
    More(&'a [u8]),
}

impl<'a> ServerAuthPacket<'a> {
    /// Reads a payload that came over a connection with `caps`. Servers put 0x01 in
    /// front of a plugin's data only where it could be mistaken for something else, so
    /// any other first byte is data as well.
    pub fn parse(payload: &'a [u8], caps: Capabilities) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        match reader.u8()? {
            OK => Ok(Self::Ok),
            1 => Ok(Self::More(reader.rest())),
            2 if caps.contains(Capabilities::MULTI_FACTOR) => {
                AuthSwitch::read(&mut reader).map(Self::NextFactor)
            }
            EOF => AuthSwitch::parse(payload).map(Self::Switch),
            ERR => ErrPacket::parse(payload).map(Self::Err),
            _ => Ok(Self::More(payload)),
        }
    }
}

/// COM_CHANGE_USER (MySQL manual, "COM_CHANGE_USER"). Its `Debug` keeps quiet about
/// the authentication response.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ChangeUser {
    pub user: Vec<u8>,
    pub auth_response: Vec<u8>,
    /// Empty for none.
    pub database: Vec<u8>,
    /// `None` where the client ends its packet before it.
    pub collation: Option<u16>,
    pub plugin: Option<Vec<u8>>,
    pub attributes: Attributes,
}

impl fmt::Debug for ChangeUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChangeUser")
            .field("user", &lossy(&self.user))
            .field("database", &lossy(&self.database))
            .field("collation", &self.collation)
            .field("plugin", &self.plugin.as_deref().map(lossy))
            .field("attributes", &self.attributes.iter().count())
            .finish_non_exhaustive()
    }
}

impl ChangeUser {
    /// Reads the payload without its command byte, as a server of the family would.
    pub fn parse(body: &[u8], caps: Capabilities, family: Family) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let mut change = Self {
            user: reader.nul_bytes()?.to_vec(),
            ..Self::default()
        };
        let is_short = caps.contains(Capabilities::SECURE_CONNECTION) || family == Family::MySql;
        change.auth_response = match is_short {
            true => short_bytes(&mut reader)?.to_vec(),
            false => reader.nul_bytes()?.to_vec(),
        };
        if reader.is_empty() {
            return Err(Malformed);
        }
        change.database = reader.nul_bytes_or_rest().to_vec();
        if reader.remaining() >= 2 {
            change.collation = Some(reader.u16()?);
        }
        if caps.contains(Capabilities::PLUGIN_AUTH) {
            if reader.is_empty() {
                return Err(Malformed);
            }
            change.plugin = some_name(reader.nul_bytes_or_rest());
        }
        if caps.contains(Capabilities::CONNECT_ATTRS) {
            change.attributes = Attributes::read(&mut reader)?;
        }
        Ok(change)
    }

    /// Appends the command as a packet; returns the next sequence number.
    pub fn encode(&self, out: &mut Vec<u8>, caps: Capabilities) -> u8 {
        let mut writer = Writer::new(out, 0);
        writer
            .u8(crate::command::COM_CHANGE_USER)
            .nul_bytes(&self.user);
        if caps.contains(Capabilities::SECURE_CONNECTION) {
            put_short(&mut writer, &self.auth_response);
        } else {
            writer.nul_bytes(&self.auth_response);
        }
        writer.nul_bytes(&self.database);
        if let Some(collation) = self.collation {
            writer.u16(collation);
            if caps.contains(Capabilities::PLUGIN_AUTH) {
                writer.nul_bytes(self.plugin.as_deref().unwrap_or_default());
            }
            if caps.contains(Capabilities::CONNECT_ATTRS) {
                writer.lenenc_bytes(&self.attributes.block);
            }
        }
        writer.finish()
    }
}

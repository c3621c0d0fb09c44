//! The server's first packet, read field by field.

use super::codec::Reader;
use super::consts::{ProtocolNames, cap, status};

/// A protocol version 10 handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    pub version: String,
    pub connection_id: u32,
    pub scramble: Vec<u8>,
    /// MariaDB's extended capabilities are in the upper half.
    pub capabilities: u64,
    pub charset: u8,
    pub status: u16,
    pub plugin: String,
}

impl Greeting {
    /// `None` for anything that is not a complete version 10 handshake.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let mut r = Reader::new(body);
        if r.u8()? != 10 {
            return None;
        }
        let version = String::from_utf8_lossy(r.null_terminated()?).into_owned();
        let connection_id = r.u32()?;
        let mut scramble = r.bytes(8)?.to_vec();
        r.u8()?;
        let low = u64::from(r.u16()?);
        let charset = r.u8()?;
        let status = r.u16()?;
        let mut capabilities = low | u64::from(r.u16()?) << 16;
        let scramble_len = usize::from(r.u8()?);
        r.bytes(6)?;
        let extended = u64::from(r.u32()?);
        if capabilities & cap::LONG_PASSWORD == 0 {
            capabilities |= extended << 32;
        }
        let tail = r.bytes(scramble_len.saturating_sub(8).max(13))?;
        scramble.extend_from_slice(tail.strip_suffix(&[0]).unwrap_or(tail));
        let plugin = if capabilities & cap::PLUGIN_AUTH != 0 {
            String::from_utf8_lossy(r.null_terminated()?).into_owned()
        } else {
            String::new()
        };
        Some(Self {
            version,
            connection_id,
            scramble,
            capabilities,
            charset,
            status,
            plugin,
        })
    }

    /// Every field that a proxy should show as its servers do: not the connection's own id and
    /// scramble.
    pub fn render(&self) -> String {
        format!(
            "greeting version={} charset={} status={} plugin={} capabilities={}",
            self.version,
            self.charset,
            ProtocolNames::flags(u64::from(self.status), status::NAMES),
            self.plugin,
            ProtocolNames::flags(self.capabilities, cap::NAMES),
        )
    }
}

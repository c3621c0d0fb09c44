//! Parameters of prepared statements and query attributes, from a script's words to bytes.

use std::fmt;

use super::codec::put_lenenc_bytes;
use super::consts::typ;

/// A value with its wire type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    pub typ: u8,
    pub unsigned: bool,
    /// Encoded as on the wire; `None` for NULL.
    pub bytes: Option<Vec<u8>>,
    /// Sent with COM_STMT_SEND_LONG_DATA: takes no place among the values.
    pub long: bool,
}

/// A parameter that cannot be read; the text says what was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamError(String);

impl fmt::Display for ParamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bad parameter: {}", self.0)
    }
}

impl std::error::Error for ParamError {}

impl Param {
    pub fn int(value: i64) -> Self {
        Self::fixed(typ::LONGLONG, value.to_le_bytes().to_vec())
    }

    pub fn text(value: &str) -> Self {
        Self::string(typ::VAR_STRING, value.as_bytes())
    }

    pub fn null() -> Self {
        Self {
            typ: typ::NULL,
            unsigned: false,
            bytes: None,
            long: false,
        }
    }

    fn fixed(typ: u8, bytes: Vec<u8>) -> Self {
        Self {
            typ,
            unsigned: false,
            bytes: Some(bytes),
            long: false,
        }
    }

    fn string(typ: u8, value: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(value.len() + 9);
        put_lenenc_bytes(&mut bytes, value);
        Self::fixed(typ, bytes)
    }

    /// Reads `kind:value`: tiny, short, long (32 bits), i, u, f, d, s, b (bytes), dec, date, dt,
    /// ts, time; or `null`, `null/kind`, `longdata`.
    pub fn parse(word: &[u8]) -> Result<Self, ParamError> {
        let shown = String::from_utf8_lossy(word).into_owned();
        let fail = || ParamError(shown.clone());
        if word == b"null" {
            return Ok(Self::null());
        }
        if word == b"longdata" {
            return Ok(Self {
                typ: typ::BLOB,
                unsigned: false,
                bytes: None,
                long: true,
            });
        }
        if word == b"null/i" {
            return Ok(Self {
                bytes: None,
                ..Self::int(0)
            });
        }
        if word == b"null/s" {
            return Ok(Self {
                bytes: None,
                ..Self::text("")
            });
        }
        let colon = word.iter().position(|b| *b == b':').ok_or_else(fail)?;
        let (kind, value) = (&word[..colon], &word[colon + 1..]);
        let text = || std::str::from_utf8(value).map_err(|_| fail());
        let number = || text()?.parse::<i64>().map_err(|_| fail());
        Ok(match kind {
            b"tiny" => Self::fixed(typ::TINY, vec![number()? as u8]),
            b"short" => Self::fixed(typ::SHORT, (number()? as u16).to_le_bytes().to_vec()),
            b"long" => Self::fixed(typ::LONG, (number()? as u32).to_le_bytes().to_vec()),
            b"i" => Self::int(number()?),
            b"u" => {
                let value: u64 = text()?.parse().map_err(|_| fail())?;
                Self {
                    unsigned: true,
                    ..Self::fixed(typ::LONGLONG, value.to_le_bytes().to_vec())
                }
            }
            b"f" => {
                let value: f32 = text()?.parse().map_err(|_| fail())?;
                Self::fixed(typ::FLOAT, value.to_le_bytes().to_vec())
            }
            b"d" => {
                let value: f64 = text()?.parse().map_err(|_| fail())?;
                Self::fixed(typ::DOUBLE, value.to_le_bytes().to_vec())
            }
            b"s" => Self::string(typ::VAR_STRING, value),
            b"b" => Self::string(typ::BLOB, value),
            b"dec" => Self::string(typ::NEWDECIMAL, value),
            b"date" => Self::fixed(typ::DATE, date(text()?).ok_or_else(fail)?),
            b"dt" => Self::fixed(typ::DATETIME, date(text()?).ok_or_else(fail)?),
            b"ts" => Self::fixed(typ::TIMESTAMP, date(text()?).ok_or_else(fail)?),
            b"time" => Self::fixed(typ::TIME, time(text()?).ok_or_else(fail)?),
            _ => return Err(fail()),
        })
    }
}

/// Numbers separated by anything that is not a digit.
fn numbers(text: &str) -> Option<Vec<u32>> {
    text.split(|c: char| !c.is_ascii_digit())
        .filter(|s| !s.is_empty())
        .map(|s| s.parse().ok())
        .collect()
}

/// `Y-M-D`, `Y-M-D h:m:s` or with microseconds; the shortest form that the numbers allow.
fn date(text: &str) -> Option<Vec<u8>> {
    let n = numbers(text)?;
    let mut body = Vec::new();
    if let [y, m, d, ..] = n[..] {
        body.extend_from_slice(&(y as u16).to_le_bytes());
        body.extend([m as u8, d as u8]);
    }
    if let [_, _, _, h, m, s, ..] = n[..] {
        body.extend([h as u8, m as u8, s as u8]);
    }
    if let [.., micros] = n[..]
        && n.len() == 7
    {
        body.extend_from_slice(&micros.to_le_bytes());
    }
    body.insert(0, body.len() as u8);
    Some(body)
}

/// `[-]D h:m:s[.micros]`.
fn time(text: &str) -> Option<Vec<u8>> {
    let n = numbers(text)?;
    let mut body = Vec::new();
    if let [d, h, m, s, ..] = n[..] {
        body.push(u8::from(text.starts_with('-')));
        body.extend_from_slice(&d.to_le_bytes());
        body.extend([h as u8, m as u8, s as u8]);
    }
    if let [_, _, _, _, micros] = n[..] {
        body.extend_from_slice(&micros.to_le_bytes());
    }
    body.insert(0, body.len() as u8);
    Some(body)
}

/// The null bitmap, the "types follow" flag, types (with names where given) and values, as in
/// COM_STMT_EXECUTE and in a COM_QUERY with attributes.
pub(crate) fn put_params(
    out: &mut Vec<u8>,
    params: &[Param],
    names: Option<&[String]>,
    types: bool,
) {
    let mut nulls = vec![0_u8; params.len().div_ceil(8)];
    for (i, param) in params.iter().enumerate() {
        if param.bytes.is_none() && !param.long {
            nulls[i / 8] |= 1 << (i % 8);
        }
    }
    out.extend_from_slice(&nulls);
    out.push(u8::from(types));
    if types {
        for (i, param) in params.iter().enumerate() {
            out.push(param.typ);
            out.push(if param.unsigned { 0x80 } else { 0 });
            if let Some(names) = names {
                put_lenenc_bytes(out, names.get(i).map_or(&b""[..], |n| n.as_bytes()));
            }
        }
    }
    for param in params {
        out.extend_from_slice(param.bytes.as_deref().unwrap_or(&[]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_wire_values() {
        assert_eq!(Param::parse(b"i:-1").unwrap().bytes, Some(vec![0xff; 8]));
        assert_eq!(
            Param::parse(b"s:ab").unwrap().bytes,
            Some(vec![2, b'a', b'b'])
        );
        assert_eq!(
            Param::parse(b"date:2024-02-29").unwrap().bytes,
            Some(vec![4, 0xe8, 7, 2, 29])
        );
        assert_eq!(
            Param::parse(b"time:-0 1:2:3").unwrap().bytes,
            Some(vec![8, 1, 0, 0, 0, 0, 1, 2, 3])
        );
        assert!(Param::parse(b"x:1").is_err());
        assert!(Param::parse(b"i:x").is_err());
    }

    #[test]
    fn nulls_are_in_the_bitmap() {
        let mut out = Vec::new();
        put_params(&mut out, &[Param::null(), Param::int(1)], None, false);
        assert_eq!(out[..2], [1, 0]);
        assert_eq!(out.len(), 10);
    }
}

//! Rows of the binary protocol as text. The text is exact: two rows print alike only if their
//! bytes are alike (floats keep their bits, times their raw fields).

use super::codec::Reader;
use super::consts::typ;
use super::reply::{Column, printable};

/// The values of a binary row, or `None` where it does not fit its columns.
pub fn decode_row(body: &[u8], columns: &[&Column]) -> Option<Vec<Option<String>>> {
    let mut r = Reader::new(body);
    r.u8()?;
    let nulls = r.bytes((columns.len() + 9) / 8)?;
    let mut out = Vec::with_capacity(columns.len());
    for (i, column) in columns.iter().enumerate() {
        let bit = i + 2;
        if nulls[bit / 8] & 1 << (bit % 8) != 0 {
            out.push(None);
        } else {
            out.push(Some(value(&mut r, column)?));
        }
    }
    r.is_empty().then_some(out)
}

fn value(r: &mut Reader<'_>, column: &Column) -> Option<String> {
    let unsigned = column.flags & typ::UNSIGNED_FLAG != 0;
    match column.typ {
        typ::TINY => integer(r, 1, unsigned),
        typ::SHORT | typ::YEAR => integer(r, 2, unsigned),
        typ::LONG | typ::INT24 => integer(r, 4, unsigned),
        typ::LONGLONG => integer(r, 8, unsigned),
        typ::FLOAT => {
            let bits = r.u32()?;
            Some(format!("{} ({bits:#x})", f32::from_bits(bits)))
        }
        typ::DOUBLE => {
            let bits = r.int(8)?;
            Some(format!("{} ({bits:#x})", f64::from_bits(bits)))
        }
        typ::DATE | typ::DATETIME | typ::TIMESTAMP => date(r),
        typ::TIME => time(r),
        _ => r.lenenc_bytes().map(text),
    }
}

fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => printable(bytes),
    }
}

fn integer(r: &mut Reader<'_>, width: usize, unsigned: bool) -> Option<String> {
    let raw = r.int(width)?;
    if unsigned {
        return Some(raw.to_string());
    }
    let shift = 64 - 8 * width as u32;
    Some((((raw << shift) as i64) >> shift).to_string())
}

fn date(r: &mut Reader<'_>) -> Option<String> {
    let len = r.u8()?;
    let mut f = Reader::new(r.bytes(usize::from(len))?);
    if len == 0 {
        return Some("0-0-0/0".to_owned());
    }
    let mut out = format!("{}-{}-{}", f.u16()?, f.u8()?, f.u8()?);
    if len >= 7 {
        out += &format!(" {}:{}:{}", f.u8()?, f.u8()?, f.u8()?);
    }
    if len >= 11 {
        out += &format!(".{}", f.u32()?);
    }
    Some(format!("{out}/{len}"))
}

fn time(r: &mut Reader<'_>) -> Option<String> {
    let len = r.u8()?;
    let mut f = Reader::new(r.bytes(usize::from(len))?);
    if len == 0 {
        return Some("0:0:0/0".to_owned());
    }
    let sign = if f.u8()? == 0 { "" } else { "-" };
    let days = f.u32()?;
    let mut out = format!("{sign}{days}d {}:{}:{}", f.u8()?, f.u8()?, f.u8()?);
    if len >= 12 {
        out += &format!(".{}", f.u32()?);
    }
    Some(format!("{out}/{len}"))
}

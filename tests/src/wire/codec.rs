//! Reading and writing the protocol's integers and strings. It never reads past its slice.

/// A cursor over a packet's body. Every getter returns `None` at a truncated field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.rest.split_at_checked(n)?;
        self.rest = tail;
        Some(head)
    }

    /// A little-endian integer of `n` bytes, at most eight.
    pub(crate) fn int(&mut self, n: usize) -> Option<u64> {
        let raw = self.bytes(n)?;
        Some(raw.iter().rev().fold(0, |acc, b| acc << 8 | u64::from(*b)))
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.int(1).map(|v| v as u8)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.int(2).map(|v| v as u16)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.int(4).map(|v| v as u32)
    }

    pub(crate) fn lenenc(&mut self) -> Option<u64> {
        match self.u8()? {
            0xfc => self.int(2),
            0xfd => self.int(3),
            0xfe => self.int(8),
            0xfb | 0xff => None,
            small => Some(u64::from(small)),
        }
    }

    pub(crate) fn lenenc_bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.lenenc()?;
        self.bytes(usize::try_from(len).ok()?)
    }

    pub(crate) fn null_terminated(&mut self) -> Option<&'a [u8]> {
        let end = self.rest.iter().position(|b| *b == 0)?;
        let text = self.bytes(end)?;
        self.bytes(1)?;
        Some(text)
    }
}

/// Appends a length-encoded integer.
pub(crate) fn put_lenenc(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=250 => out.push(value as u8),
        251..=0xffff => {
            out.push(0xfc);
            out.extend_from_slice(&(value as u16).to_le_bytes());
        }
        0x1_0000..=0xff_ffff => {
            out.push(0xfd);
            out.extend_from_slice(&value.to_le_bytes()[..3]);
        }
        _ => {
            out.push(0xfe);
            out.extend_from_slice(&value.to_le_bytes());
        }
    }
}

/// Appends a length-encoded string.
pub(crate) fn put_lenenc_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_lenenc(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lenenc_round_trips_at_every_boundary() {
        for value in [
            0,
            250,
            251,
            0xffff,
            0x1_0000,
            0xff_ffff,
            0x100_0000,
            u64::MAX,
        ] {
            let mut out = Vec::new();
            put_lenenc(&mut out, value);
            let mut reader = Reader::new(&out);
            assert_eq!(reader.lenenc(), Some(value));
            assert!(reader.is_empty());
        }
    }

    #[test]
    fn truncated_fields_are_none() {
        assert_eq!(Reader::new(&[0xfc, 1]).lenenc(), None);
        assert_eq!(Reader::new(&[5, b'a']).lenenc_bytes(), None);
        assert_eq!(Reader::new(b"abc").null_terminated(), None);
    }
}

//! A checksum of the bytes of an answer, however they are split. It tells by chance only that two
//! answers differ, not by anybody's will: no secret, no adversary.

/// A sum that grows with each piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    state: u64,
    /// The last bytes, fewer than a word, from the lowest.
    rest: u64,
    /// How many bits of `rest` are taken.
    bits: u32,
}

/// An odd number with an even spread of ones: 2^64 by the golden ratio.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

impl Default for Sum {
    fn default() -> Self {
        Sum {
            state: !FACTOR,
            rest: 0,
            bits: 0,
        }
    }
}

impl Sum {
    /// Adds the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        if self.bits == 0 {
            for word in words {
                self.state = mix(self.state, u64::from_le_bytes(*word));
            }
        } else {
            for word in words {
                let word = u64::from_le_bytes(*word);
                self.state = mix(self.state, self.rest | word << self.bits);
                self.rest = word >> (64 - self.bits);
            }
        }
        for byte in rest {
            self.rest |= u64::from(*byte) << self.bits;
            self.bits += 8;
            if self.bits == 64 {
                self.state = mix(self.state, self.rest);
                (self.rest, self.bits) = (0, 0);
            }
        }
    }

    /// Adds a number, apart from all bytes.
    pub fn add_number(&mut self, number: u64) {
        self.add(&[1]);
        self.add(&number.to_le_bytes());
    }

    /// The sum of all.
    pub fn value(&self) -> u64 {
        mix(mix(self.state, self.rest), u64::from(self.bits) + 1)
    }
}

/// Both halves of the product, so that every bit of either side counts.
fn mix(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ word) * u128::from(FACTOR);
    (product >> 64) as u64 ^ (product as u64).rotate_left(23)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pieces: &[&[u8]]) -> u64 {
        let mut sum = Sum::default();
        pieces.iter().for_each(|piece| sum.add(piece));
        sum.value()
    }

    #[test]
    fn splits_do_not_matter() {
        let bytes: Vec<u8> = (0..=255).chain(0..77).collect();
        let whole = of(&[&bytes]);
        for first in 0..bytes.len() {
            let (a, b) = bytes.split_at(first);
            assert_eq!(of(&[a, b]), whole, "split at {first}");
            for second in [1, 3, 8, 9].iter().filter(|second| **second < b.len()) {
                let (b, c) = b.split_at(*second);
                assert_eq!(of(&[a, b, c]), whole, "split at {first} and {second}");
            }
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(of(&single), whole);
    }

    #[test]
    fn every_bit_matters() {
        let bytes = [7u8; 40];
        let whole = of(&[&bytes]);
        for at in 0..bytes.len() * 8 {
            let mut other = bytes;
            other[at / 8] ^= 1 << (at % 8);
            assert_ne!(of(&[&other]), whole, "bit {at}");
        }
        assert_ne!(of(&[&bytes[..39]]), whole);
        assert_ne!(of(&[&[bytes.as_slice(), &[0]].concat()]), whole);
        assert_ne!(of(&[]), of(&[&[0]]));
    }

    #[test]
    fn numbers_are_no_bytes() {
        let mut number = Sum::default();
        number.add_number(5);
        assert_ne!(number.value(), of(&[&5u64.to_le_bytes()]));
    }
}

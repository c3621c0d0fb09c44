//! Maps by numbers that Millrace gives out itself.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map whose keys are numbers that Millrace gives out itself, so that nobody can choose them to
/// collide: they need no costly hash.
pub type ById<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// Spreads numbers over a map's buckets.
#[derive(Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 by the golden ratio: neighbours differ in the high bits, which maps look at too.
        self.0 = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }
}

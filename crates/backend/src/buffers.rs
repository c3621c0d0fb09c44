//! Room that is read into, lent for as long as there is something in it. Nothing is read while a
//! connection waits for an answer, so that few pieces do for many connections, and the next to read
//! has the piece that was used last: the processor still has it at hand.

use std::cell::RefCell;

/// Bytes that a read from a server has room for. A result of 10,000 rows takes an eighth more CPU with
/// 8 KiB and a twelfth more with 64; between 16 and 32 rounds differ by more than sizes do.
pub(crate) const READ_BUFFER: usize = 24 * 1024;

/// Pieces of room, of one size.
#[derive(Debug)]
pub struct BufferPool {
    size: usize,
    kept: usize,
    free: RefCell<Vec<Vec<u8>>>,
}

/// Those that connections to servers read into.
impl Default for BufferPool {
    fn default() -> BufferPool {
        BufferPool::new(READ_BUFFER, 64)
    }
}

impl BufferPool {
    /// Pieces of `size` bytes. `kept` of them at most wait for the next who reads; what is beyond goes
    /// back to the system.
    pub fn new(size: usize, kept: usize) -> BufferPool {
        BufferPool {
            size,
            kept,
            free: RefCell::default(),
        }
    }

    /// An empty piece of that size or more; give it back with [`BufferPool::give`].
    pub fn take(&self) -> Vec<u8> {
        let free = self.free.borrow_mut().pop();
        free.unwrap_or_else(|| Vec::with_capacity(self.size))
    }

    /// Takes a piece back, whatever is in it. One that is of another size, or has grown to more than twice
    /// of it for a long packet, is freed.
    pub fn give(&self, mut piece: Vec<u8>) {
        let mut free = self.free.borrow_mut();
        if (self.size..=2 * self.size).contains(&piece.capacity()) && free.len() < self.kept {
            piece.clear();
            free.push(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_piece_used_last_is_the_next() {
        let buffers = BufferPool::new(512, 2);
        let (first, mut second) = (buffers.take(), buffers.take());
        second.push(1);
        let last = second.as_ptr();
        buffers.give(first);
        buffers.give(second);
        let again = buffers.take();
        assert_eq!((again.as_ptr(), again.len()), (last, 0));
        assert!(again.capacity() >= 512);
    }

    #[test]
    fn what_is_of_another_size_or_too_many_is_not_kept() {
        let buffers = BufferPool::new(512, 3);
        for size in [0, 10, 511, 1025, 4096] {
            buffers.give(Vec::with_capacity(size));
            assert!(buffers.free.borrow().is_empty(), "{size}");
        }
        for size in [512, 1024, 600, 512] {
            buffers.give(Vec::with_capacity(size));
        }
        assert_eq!(buffers.free.borrow().len(), 3);
    }
}

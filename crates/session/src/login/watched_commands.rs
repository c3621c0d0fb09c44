//! What a client says over a connection that is handed through: only where its commands begin. COM_CHANGE_USER is a
//! login, and would be judged by the address, the TLS and the socket of Millrace instead of the client's.

use millrace_protocol::command::COM_CHANGE_USER;
use millrace_protocol::packet::HEADER;

/// Follows the client's packets. Sequence numbers count on from 0 within an exchange (MySQL's protocol documentation,
/// "Protocol Packets"), so that 0 begins a command, but for one that follows 255 in a long upload.
#[derive(Debug, Default)]
pub(super) struct Commands {
    header: [u8; HEADER],
    /// Bytes of the header that are there.
    have: usize,
    /// Bytes of the packet that are still to come.
    left: usize,
    /// The packet may be a command, and its first byte has not come yet.
    begins: bool,
    /// The packet before has a continuation.
    continued: bool,
    last: Option<u8>,
    /// It had no bytes.
    was_empty: bool,
    /// The server has said something since.
    answered: bool,
}

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing but what is for the server.
    Other,
    /// At the end, `before` bytes of a header, or one whose packet's first byte has not come.
    Incomplete { before: usize },
    /// A COM_CHANGE_USER, whose header begins `before` bytes before the end of all that was read.
    ChangesUser { before: usize },
}

impl Commands {
    /// The server says something.
    pub(super) fn answered(&mut self) {
        self.answered = true;
    }

    /// Reads on, to the first COM_CHANGE_USER.
    pub(super) fn next(&mut self, bytes: &[u8]) -> Next {
        let mut at = 0;
        while at < bytes.len() {
            if self.left > 0 {
                if std::mem::take(&mut self.begins) && bytes[at] == COM_CHANGE_USER {
                    let before = HEADER + bytes.len() - at;
                    return Next::ChangesUser { before };
                }
                let step = self.left.min(bytes.len() - at);
                self.left -= step;
                at += step;
                continue;
            }
            self.header[self.have] = bytes[at];
            self.have += 1;
            at += 1;
            if self.have < HEADER {
                continue;
            }
            let [a, b, c, sequence] = self.header;
            let length = u32::from_le_bytes([a, b, c, 0]) as usize;
            // What follows 255 is the upload's unless that one was empty: the upload's end.
            let uploads = self.last == Some(u8::MAX) && !self.answered && !self.was_empty;
            self.begins = sequence == 0 && !self.continued && !uploads;
            self.continued = length == 0xff_ffff;
            (self.have, self.left, self.was_empty) = (0, length, length == 0);
            (self.last, self.answered) = (Some(sequence), false);
        }
        match (self.have, self.begins && self.left > 0) {
            (0, false) => Next::Other,
            (0, true) => Next::Incomplete { before: HEADER },
            (have, _) => Next::Incomplete { before: have },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
        [&length[..3], &[sequence], payload].concat()
    }

    fn changes(commands: &mut Commands, bytes: &[u8]) -> bool {
        matches!(commands.next(bytes), Next::ChangesUser { .. })
    }

    #[test]
    fn a_change_is_seen_however_it_is_cut() {
        let before = [packet(0, b"\x03SELECT 1"), packet(0, b"")].concat();
        let change = packet(0, b"\x11other\0");
        let bytes = [&before[..], &change].concat();
        for cut in 0..=bytes.len() {
            let mut commands = Commands::default();
            let (mut held, mut sent) = (Vec::new(), Vec::new());
            let mut found = false;
            for piece in [&bytes[..cut], &bytes[cut..]] {
                held.extend_from_slice(piece);
                if found {
                    continue;
                }
                let next = commands.next(piece);
                let kept = match next {
                    Next::Other => 0,
                    Next::Incomplete { before } | Next::ChangesUser { before } => before,
                };
                let kept = held.split_off(held.len() - kept);
                sent.append(&mut held);
                held = kept;
                found = matches!(next, Next::ChangesUser { .. });
            }
            assert!(found, "cut at {cut}");
            assert_eq!((&sent, &held), (&before, &change), "cut at {cut}");
        }
    }

    #[test]
    fn uploads_are_no_commands() {
        let mut commands = Commands::default();
        assert!(!changes(&mut commands, &packet(0, b"\x03LOAD DATA")));
        commands.answered();
        for sequence in (2..=255).chain(0..=255).chain(0..3) {
            assert!(!changes(&mut commands, &packet(sequence, b"\x11line")));
        }
        assert!(!changes(&mut commands, &packet(3, b"")));
        commands.answered();
        assert!(changes(&mut commands, &packet(0, b"\x11other\0")));
    }

    #[test]
    fn what_follows_the_end_of_an_upload_is_a_command() {
        let mut commands = Commands::default();
        assert!(!changes(&mut commands, &packet(0, b"\x03LOAD DATA")));
        commands.answered();
        for sequence in 2..=254 {
            assert!(!changes(&mut commands, &packet(sequence, b"line")));
        }
        assert!(!changes(&mut commands, &packet(255, b"")));
        assert!(changes(&mut commands, &packet(0, b"\x11other\0")));
    }

    #[test]
    fn what_goes_on_is_no_command() {
        let mut commands = Commands::default();
        let long = packet(0, &vec![3; 0xff_ffff]);
        assert!(!changes(&mut commands, &long));
        assert!(!changes(&mut commands, &packet(1, b"\x11other\0")));
        // Without waiting for answers.
        assert!(changes(&mut commands, &packet(0, b"\x11other\0")));
    }
}

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
    /// The server has said something since.
    answered: bool,
}

impl Commands {
    /// The server says something.
    pub(super) fn answered(&mut self) {
        self.answered = true;
    }

    /// Reads on. True where a COM_CHANGE_USER begins that is not of `user`; none of `bytes` may be sent then.
    pub(super) fn changes_user(&mut self, bytes: &[u8], user: &[u8]) -> bool {
        let mut at = 0;
        while at < bytes.len() {
            if self.left > 0 {
                if std::mem::take(&mut self.begins) && bytes[at] == COM_CHANGE_USER {
                    let name = &bytes[at + 1..];
                    let is_own = name.starts_with(user) && name.get(user.len()) == Some(&0);
                    if !is_own {
                        return true;
                    }
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
            (self.have, self.left) = (0, u32::from_le_bytes([a, b, c, 0]) as usize);
            let uploads = self.last == Some(u8::MAX) && !self.answered;
            self.begins = sequence == 0 && !self.continued && !uploads;
            self.continued = self.left == 0xff_ffff;
            (self.last, self.answered) = (Some(sequence), false);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
        [&length[..3], &[sequence], payload].concat()
    }

    #[test]
    fn another_user_is_seen_however_it_is_cut() {
        let bytes = [
            packet(0, b"\x03SELECT 1"),
            packet(0, b"\x11app\0rest"),
            packet(0, b""),
            packet(0, b"\x11other\0"),
        ]
        .concat();
        let end = bytes.len() - 7;
        for cut in 0..bytes.len() {
            let mut commands = Commands::default();
            let first = commands.changes_user(&bytes[..cut], b"app");
            // The own name in two pieces is not taken for it.
            let own_is_cut = (18..22).contains(&cut);
            let seen = first || commands.changes_user(&bytes[cut..], b"app");
            assert!(seen, "cut at {cut}");
            assert_eq!(first, cut > end || own_is_cut, "cut at {cut}");
        }
    }

    #[test]
    fn uploads_are_no_commands() {
        let mut commands = Commands::default();
        assert!(!commands.changes_user(&packet(0, b"\x03LOAD DATA"), b"app"));
        commands.answered();
        for sequence in (2..=255).chain(0..=255).chain(0..3) {
            assert!(!commands.changes_user(&packet(sequence, b"\x11line"), b"app"));
        }
        assert!(!commands.changes_user(&packet(3, b""), b"app"));
        commands.answered();
        assert!(commands.changes_user(&packet(0, b"\x11other\0"), b"app"));
    }

    #[test]
    fn what_goes_on_is_no_command() {
        let mut commands = Commands::default();
        let long = packet(0, &vec![3; 0xff_ffff]);
        assert!(!commands.changes_user(&long, b"app"));
        assert!(!commands.changes_user(&packet(1, b"\x11other\0"), b"app"));
        // Without waiting for answers.
        assert!(commands.changes_user(&packet(0, b"\x11other\0"), b"app"));
    }
}

//! What a connection's server still has to answer, and whether what an answer changed has been
//! noted. A connection is clean only when nothing is open here, so whoever forgets to end an
//! exchange, returns early or is dropped in the middle of one leaves a connection that is closed.

/// The open exchanges of one connection. Everything that is begun here is ended by name; nothing
/// ends by itself.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    /// Commands that were sent and whose answers have not been read to the last byte.
    owed: u32,
    /// A write was begun and not finished: a part of a command may be on its way.
    writing: bool,
    /// A session's statement was sent, and what it changed on the connection is not noted yet.
    effects_owed: bool,
}

impl Exchange {
    /// Commands with so many answers are about to be written.
    pub(crate) fn write(&mut self, answers: u32) {
        self.owed = self.owed.saturating_add(answers);
        self.writing = true;
    }

    /// They were written to the last byte.
    pub(crate) fn written(&mut self) {
        self.writing = false;
    }

    /// An answer was read, and handed on, to its last byte. False where none was owed: the server
    /// said something that nobody had asked for.
    #[must_use]
    pub(crate) fn answered(&mut self) -> bool {
        match self.owed.checked_sub(1) {
            Some(left) => {
                self.owed = left;
                true
            }
            None => false,
        }
    }

    /// A session's statement is sent: what it changes has to be noted.
    pub(crate) fn owe_effects(&mut self) {
        self.effects_owed = true;
    }

    /// What the statement changed is noted.
    pub(crate) fn effects_noted(&mut self) {
        self.effects_owed = false;
    }

    /// So many answers have not been read.
    pub(crate) fn owed(&self) -> u32 {
        self.owed
    }

    /// Nothing is owed or half written: what is sent next is read as a command.
    pub(crate) fn is_answered(&self) -> bool {
        self.owed == 0 && !self.writing
    }

    /// What is sent next is read as a command, though perhaps after the answer to a question of Millrace's own.
    /// Servers read one command after the other, and such a question is answered soon. Behind a client's statement
    /// a command is read only when that has ended: until then a server that looks whether the client is still there
    /// (in `SLEEP` or `GET_LOCK`) would take it for a sign of life.
    pub(crate) fn may_take_leave(&self) -> bool {
        !self.writing && (self.owed == 0 || !self.effects_owed)
    }

    /// Nothing is owed, half written or not noted.
    pub(crate) fn is_over(&self) -> bool {
        self.is_answered() && !self.effects_owed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_over_only_when_everything_was_ended() {
        let mut exchange = Exchange::default();
        assert!(exchange.is_over());
        exchange.owe_effects();
        exchange.write(2);
        assert!(!exchange.is_over(), "nothing is written yet");
        exchange.written();
        assert!(exchange.answered());
        assert!(!exchange.is_over(), "one answer is owed");
        assert!(exchange.answered());
        assert!(!exchange.is_over(), "its effects are not noted");
        exchange.effects_noted();
        assert!(exchange.is_over());
        assert!(!exchange.answered(), "nobody asked for that");
    }

    #[test]
    fn leave_is_taken_behind_an_own_question_but_not_behind_a_statement() {
        let mut question = Exchange::default();
        assert!(question.may_take_leave());
        question.write(1);
        assert!(!question.may_take_leave(), "half written");
        question.written();
        assert!(question.may_take_leave());
        let mut statement = Exchange::default();
        statement.owe_effects();
        statement.write(1);
        statement.written();
        assert!(!statement.may_take_leave());
        assert!(statement.answered());
        assert!(statement.may_take_leave());
    }

    #[test]
    fn a_command_without_an_answer_can_be_half_written() {
        let mut exchange = Exchange::default();
        exchange.write(0);
        assert!(!exchange.is_over());
        exchange.written();
        assert!(exchange.is_over());
    }
}

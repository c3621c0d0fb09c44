//! Statements that administer the server, and its accounts.

use super::parser::Parser;
use crate::statement::{Access, Flags, Kind};
use crate::words::Kw;

impl Parser<'_, '_> {
    /// GRANT and REVOKE; names of accounts look like variables and are not read.
    pub(super) fn account(&mut self) {
        self.flag(Flags::IMPLICIT_COMMIT);
        self.simple(Kind::Account, Access::Write);
    }

    /// Everything that starts with a rarer word.
    pub(super) fn administration(&mut self) {
        match self.cur.kw() {
            Kw::Flush => return self.flush(),
            Kw::Backup => return self.backup(),
            Kw::Optimize
            | Kw::Repair
            | Kw::Check
            | Kw::Cache
            | Kw::Reset
            | Kw::Install
            | Kw::Uninstall
            | Kw::Change
            | Kw::Stop => self.flag(Flags::IMPLICIT_COMMIT),
            Kw::Checksum
            | Kw::Purge
            | Kw::Shutdown
            | Kw::Restart
            | Kw::Clone
            | Kw::Import
            | Kw::Binlog => {}
            _ => return self.scan_unknown(),
        }
        self.simple(Kind::Admin, Access::Write);
    }

    /// WITH READ LOCK and FOR EXPORT leave locks behind.
    fn flush(&mut self) {
        let mut read_lock = false;
        self.flag(Flags::IMPLICIT_COMMIT);
        while !self.at_end() {
            read_lock |= self.cur.is(Kw::With) && self.next.is(Kw::Read);
            read_lock |= self.cur.is(Kw::For) && self.next.is(Kw::Export);
            if self.cur.is(Kw::Status) {
                self.flag(Flags::MEASURES);
            }
            self.bump();
        }
        self.out.kind = Kind::Flush { read_lock };
        self.set_access(Access::Write);
    }

    /// MariaDB's BACKUP LOCK, BACKUP STAGE, BACKUP UNLOCK.
    fn backup(&mut self) {
        let unlock = self.next.is(Kw::Unlock);
        let kind = if unlock {
            Kind::UnlockTables
        } else {
            Kind::LockTables
        };
        self.simple(kind, Access::Write);
    }
}

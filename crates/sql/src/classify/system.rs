//! Tables that tell of the server itself, and statements that administer it.

use super::Parser;
use crate::ident::ident_eq;
use crate::statement::{Access, Flags, Kind, NameRef};
use crate::words::Kw;

/// Tables of information_schema that hold the data dictionary, as far as replicas share it. All others
/// are about the server that is asked: so are engines, sizes and statistics of tables (TABLES, PARTITIONS,
/// STATISTICS), and EVENTS, which a replica says are disabled.
const DICTIONARY: &[&str] = &[
    "administrable_role_authorizations",
    "applicable_roles",
    "character_sets",
    "check_constraints",
    "collation_character_set_applicability",
    "collations",
    "column_privileges",
    "columns",
    "columns_extensions",
    "enabled_roles",
    "geometry_columns",
    "key_column_usage",
    "keywords",
    "parameters",
    "referential_constraints",
    "role_column_grants",
    "role_routine_grants",
    "role_table_grants",
    "routines",
    "schema_privileges",
    "schemata",
    "schemata_extensions",
    "spatial_ref_sys",
    "sql_functions",
    "st_geometry_columns",
    "st_spatial_reference_systems",
    "st_units_of_measure",
    "table_constraints",
    "table_constraints_extensions",
    "table_privileges",
    "triggers",
    "user_attributes",
    "user_privileges",
    "view_routine_usage",
    "view_table_usage",
    "views",
];

impl Parser<'_, '_> {
    /// Flags what a table of a system schema tells.
    pub(super) fn note_system_table(&mut self, name: NameRef) {
        let Some(schema) = name.schema else { return };
        let schema = schema.of(self.text);
        let table = name.name.of(self.text);
        if ident_eq(schema, "information_schema") {
            self.flag(Flags::SYSTEM_SCHEMA);
            if !DICTIONARY.iter().any(|known| ident_eq(table, known)) {
                self.flag(Flags::SERVER_LOCAL);
            }
        } else if ["performance_schema", "sys", "mysql"]
            .iter()
            .any(|s| ident_eq(schema, s))
        {
            self.flag(Flags::SYSTEM_SCHEMA | Flags::SERVER_LOCAL);
        } else {
            return;
        }
        let shows_variables = [
            "session_variables",
            "global_variables",
            "variables_by_thread",
            "system_variables",
        ];
        if shows_variables.iter().any(|known| ident_eq(table, known)) {
            self.flag(Flags::SHOWS_VARIABLES);
        }
    }

    /// GRANT and REVOKE; names of accounts look like variables and are not read.
    pub(super) fn account(&mut self) {
        self.flag(Flags::IMPLICIT_COMMIT);
        self.simple(Kind::Account, Access::Write);
    }

    /// Everything that starts with a rarer word.
    pub(super) fn administration(&mut self) {
        match self.cur.kw() {
            Kw::Analyze => return self.analyze(),
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

//! Tables that tell of the server itself.

use crate::ident::ident_eq;
use crate::statement::Flags;

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

/// What a table of a system schema tells.
pub(super) fn told_by(schema: &[u8], table: &[u8]) -> Flags {
    let mut flags = Flags::empty();
    if ident_eq(schema, "information_schema") {
        flags |= Flags::SYSTEM_SCHEMA;
        if !DICTIONARY.iter().any(|known| ident_eq(table, known)) {
            flags |= Flags::SERVER_LOCAL;
        }
    } else if ["performance_schema", "sys", "mysql"]
        .iter()
        .any(|s| ident_eq(schema, s))
    {
        flags |= Flags::SYSTEM_SCHEMA | Flags::SERVER_LOCAL;
    } else {
        return Flags::empty();
    }
    let shows_variables = [
        "session_variables",
        "global_variables",
        "variables_by_thread",
        "system_variables",
    ];
    if shows_variables.iter().any(|known| ident_eq(table, known)) {
        flags |= Flags::SHOWS_VARIABLES;
    }
    flags
}

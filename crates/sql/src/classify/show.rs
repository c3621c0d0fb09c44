//! SHOW: which one, and whether its answer is the same on every server.

use super::parser::Parser;
use super::scan::Place;
use crate::lexer::Tok;
use crate::statement::{Access, Flags, Kind, Show, TableUse};
use crate::words::Kw;

/// What a SHOW tells of, beside what replicas have in common: its own server asks for the primary, as long as
/// nobody asks for replicas.
fn tells(show: Show) -> Flags {
    match show {
        Show::Metadata => Flags::empty(),
        // A client that asks for these may set them.
        Show::Variables => Flags::SHOWS_VARIABLES,
        // A replica's engines, collations and options may differ (CREATE), its statistics do (INDEX, TABLE
        // STATUS), its events are disabled; accounts may differ.
        Show::Status
        | Show::Processlist
        | Show::Replica
        | Show::Binlog
        | Show::Engine
        | Show::Profile
        | Show::Create
        | Show::Grants
        | Show::Other => Flags::SERVER_LOCAL,
    }
}

impl Parser<'_, '_> {
    pub(super) fn show(&mut self) {
        self.bump();
        while matches!(
            self.cur.kw(),
            Kw::Full | Kw::Extended | Kw::Global | Kw::Session | Kw::Local | Kw::All
        ) {
            self.bump();
        }
        let Some(show) = self.which_show() else {
            return self.show_diagnostics();
        };
        self.show_operands(show);
        self.out.kind = Kind::Show(show);
        self.flag(tells(show));
        self.access_from(Access::Read);
    }

    /// None: it is about warnings and errors.
    fn which_show(&self) -> Option<Show> {
        let show = match self.cur.kw() {
            Kw::Warnings | Kw::Errors => return None,
            Kw::Count if self.next.tok == Tok::Open => return None,
            Kw::Variables => Show::Variables,
            Kw::Status => Show::Status,
            Kw::Processlist => Show::Processlist,
            Kw::Replica | Kw::Replicas | Kw::Slave | Kw::Slaves | Kw::Relaylog => Show::Replica,
            Kw::Master | Kw::Binary | Kw::Binlog => Show::Binlog,
            Kw::Engine => Show::Engine,
            Kw::Profile | Kw::Profiles => Show::Profile,
            // Accounts may differ from one server to the next.
            Kw::Create if self.next.is(Kw::User) => Show::Grants,
            Kw::Create => Show::Create,
            Kw::Grants => Show::Grants,
            Kw::Databases
            | Kw::Schemas
            | Kw::Tables
            | Kw::Columns
            | Kw::Fields
            | Kw::Triggers
            | Kw::Character
            | Kw::Char
            | Kw::Charset
            | Kw::Collation => Show::Metadata,
            Kw::Procedure | Kw::Function | Kw::Package | Kw::Library
                if self.next.is(Kw::Status) || self.cur.is(Kw::Package) =>
            {
                Show::Metadata
            }
            _ if self.cur_eq("user_statistics")
                || self.cur_eq("client_statistics")
                || self.cur_eq("index_statistics")
                || self.cur_eq("table_statistics") =>
            {
                Show::Status
            }
            _ => Show::Other,
        };
        Some(show)
    }

    fn show_diagnostics(&mut self) {
        self.scan(Place::expression());
        self.out.kind = Kind::Diagnostics;
        self.set_access(Access::PrimaryRead);
    }

    /// The table that it is about, and the functions in its WHERE.
    fn show_operands(&mut self, show: Show) {
        let of_table = matches!(
            self.cur.kw(),
            Kw::Columns | Kw::Fields | Kw::Index | Kw::Indexes | Kw::Keys
        );
        let of_object = show == Show::Create;
        let create_table =
            of_object && matches!(self.next.kw(), Kw::Table | Kw::View | Kw::Sequence);
        self.bump();
        if of_object && !self.at_end() {
            self.bump();
        }
        if create_table {
            self.table(TableUse::Read);
        }
        if of_table && (self.eat(Kw::From) || self.eat(Kw::In)) {
            self.table(TableUse::Read);
        }
        match show {
            // `FOR user@host` is no variable.
            Show::Grants => self.skip_statement(),
            _ => self.scan(Place::expression()),
        }
    }
}

//! Reads what an operator wants: a listing, an act, or what a client library says by itself. Does
//! nothing of it.

use crate::operators::cell::{Kind, Refusal};
use crate::operators::chatter::{self, Item};
use crate::operators::filter::{Condition, Filter, Test, place};
use crate::operators::listing::{Listing, Show};
use crate::operators::parser::Parser;
use crate::operators::tables::{LISTINGS, listing};
use crate::operators::token::{Token, tokens};

/// A statement.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Statement {
    /// A listing.
    Show { show: Show, filter: Filter },
    /// DRAIN SERVER: no new work for a server; waits for what runs there, for so many seconds.
    Drain { server: String, wait_s: u64 },
    /// RESUME SERVER.
    Resume { server: String },
    /// KILL.
    Kill { id: u64, query: bool },
    /// FLUSH CACHE: of one table, by its database and name, or of all.
    FlushCache(Option<(String, String)>),
    /// USE.
    Use(String),
    /// SELECT of constants, variables and functions about the connection.
    Select(Vec<Item>),
    /// A listing that is always empty here: columns with their types.
    Nothing(Vec<(&'static str, Kind)>),
    /// What clients say when they begin, and what changes nothing here.
    Accepted,
}

/// The longest wait of DRAIN SERVER, in seconds: a day.
const WAIT_MAX_S: u64 = 86_400;

/// Reads one statement; a semicolon may end it.
pub(crate) fn parse(text: &str) -> Result<Statement, Refusal> {
    let tokens = tokens(text).map_err(|unclosed| {
        let what = unclosed.0;
        Refusal::new(1064, b"42000", format!("Millrace: the {what} has no end"))
    })?;
    let mut parser = Parser { tokens, at: 0 };
    let statement = parser.statement()?;
    parser.take_symbol(";");
    match parser.peek() {
        None => Ok(statement),
        Some(_) => Err(parser.unexpected()),
    }
}

/// Whether a statement has places for parameters.
pub(crate) fn has_parameters(text: &str) -> bool {
    tokens(text).is_ok_and(|tokens| tokens.contains(&Token::Symbol("?")))
}

impl Parser {
    fn statement(&mut self) -> Result<Statement, Refusal> {
        if self.tokens.iter().all(|token| *token == Token::Symbol(";")) {
            return Err(Refusal::new(1065, b"42000", "Query was empty"));
        }
        if self.take("SHOW") {
            return self.show();
        }
        if self.take("HELP") {
            let show = Show::Help;
            let filter = self.filter(listing(show))?;
            return Ok(Statement::Show { show, filter });
        }
        if self.take("DRAIN") {
            let server = self.server()?;
            let wait_s = if self.take("WAIT") {
                self.number()?.min(WAIT_MAX_S)
            } else {
                0
            };
            return Ok(Statement::Drain { server, wait_s });
        }
        if self.take("RESUME") {
            let server = self.server()?;
            return Ok(Statement::Resume { server });
        }
        if self.take("KILL") {
            let query = self.take("QUERY");
            let _ = !query && self.take("CONNECTION");
            let id = self.number()?;
            return Ok(Statement::Kill { id, query });
        }
        if self.take("FLUSH") {
            return self.flush();
        }
        if self.take("SELECT") {
            return chatter::select(self).map(Statement::Select);
        }
        self.chatter()
    }

    /// FLUSH CACHE [TABLE database.table].
    fn flush(&mut self) -> Result<Statement, Refusal> {
        if !self.take("CACHE") {
            return Err(self.unexpected());
        }
        if !self.take("TABLE") {
            return Ok(Statement::FlushCache(None));
        }
        let mut database = self.name()?;
        let table = match database.split_once('.') {
            Some((before, table)) => {
                let table = table.to_owned();
                database = before.to_owned();
                table
            }
            None if self.take_symbol(".") => self.name()?,
            None => return Err(self.unexpected()),
        };
        Ok(Statement::FlushCache(Some((database, table))))
    }

    fn chatter(&mut self) -> Result<Statement, Refusal> {
        if self.take("USE") {
            return Ok(Statement::Use(self.name()?));
        }
        if self.peek().is_some_and(|token| token.is("SET")) {
            return self.set();
        }
        for word in ["BEGIN", "START", "COMMIT", "ROLLBACK"] {
            if self.take(word) {
                self.at = self.end();
                return Ok(Statement::Accepted);
            }
        }
        Err(self.unexpected())
    }

    /// What clients set for their connection is taken as set; settings for all are not: they would
    /// seem to change what they do not.
    fn set(&mut self) -> Result<Statement, Refusal> {
        let rest = &self.tokens[self.at..];
        let for_all = rest.iter().any(|token| {
            let word = match token {
                Token::Word(word) => word.to_ascii_lowercase(),
                _ => return false,
            };
            let scope = word.split('.').next().unwrap_or_default();
            matches!(
                scope,
                "global" | "persist" | "persist_only" | "password" | "role"
            ) || word.contains("millrace")
        });
        let names_a_setting = rest.iter().any(|token| {
            let Token::Word(word) = token else {
                return false;
            };
            millrace_config::sections().any(|section| {
                let name = word.get(..section.len());
                name.is_some_and(|name| name.eq_ignore_ascii_case(section))
                    && word[section.len()..].starts_with('.')
            })
        });
        if for_all || names_a_setting {
            let message = "Millrace's configuration is changed in its file, not here";
            return Err(Refusal::new(1238, b"HY000", message));
        }
        self.at = self.end();
        Ok(Statement::Accepted)
    }

    fn show(&mut self) -> Result<Statement, Refusal> {
        for word in ["FULL", "GLOBAL", "SESSION", "LOCAL"] {
            if self.take(word) {
                break;
            }
        }
        let begun = self.at;
        for listing in LISTINGS {
            self.at = begun;
            let names = std::iter::once(&listing.name).chain(listing.also);
            for name in names {
                self.at = begun;
                if name.split(' ').all(|word| self.take(word)) {
                    let filter = self.filter(listing)?;
                    let show = listing.show;
                    return Ok(Statement::Show { show, filter });
                }
            }
        }
        self.at = begun;
        match self.nothing() {
            Some(columns) => {
                // Whatever is asked of nothing.
                self.at = self.end();
                Ok(Statement::Nothing(columns))
            }
            None => Err(self.unexpected()),
        }
    }

    /// Listings of servers that clients ask for, of which there is nothing here.
    fn nothing(&mut self) -> Option<Vec<(&'static str, Kind)>> {
        use Kind::{Int, Text};
        Some(if self.take("WARNINGS") || self.take("ERRORS") {
            vec![("Level", Text), ("Code", Int), ("Message", Text)]
        } else if self.take("DATABASES") || self.take("SCHEMAS") {
            vec![("Database", Text)]
        } else if self.take("TABLES") {
            vec![("Tables", Text)]
        } else if self.take("ENGINES") {
            vec![("Engine", Text), ("Support", Text), ("Comment", Text)]
        } else if self.take("PLUGINS") {
            vec![("Name", Text), ("Status", Text), ("Type", Text)]
        } else {
            return None;
        })
    }

    fn server(&mut self) -> Result<String, Refusal> {
        if !self.take("SERVER") {
            return Err(self.unexpected());
        }
        let mut server = self.name()?;
        // An address without quotes is several pieces.
        while self.take_symbol(":") {
            server.push(':');
            server.push_str(&self.name()?);
        }
        Ok(server)
    }

    fn filter(&mut self, listing: &Listing) -> Result<Filter, Refusal> {
        let mut filter = Filter::default();
        if self.take("LIKE") {
            filter = Filter::like(listing.like, self.name()?);
        } else if self.take("WHERE") {
            loop {
                let mut all = vec![self.condition(listing)?];
                while self.take("AND") {
                    all.push(self.condition(listing)?);
                }
                filter.any_of.push(all);
                if !self.take("OR") {
                    break;
                }
            }
        }
        if self.take("LIMIT") {
            filter.limit = Some(self.number()?);
        }
        Ok(filter)
    }

    fn condition(&mut self, listing: &Listing) -> Result<Condition, Refusal> {
        let name = match self.peek() {
            Some(Token::Word(name) | Token::Name(name)) => name.clone(),
            _ => return Err(self.unexpected()),
        };
        let column = place(listing.columns, &name).ok_or_else(|| {
            let message = format!("Unknown column '{name}' in 'where clause'");
            Refusal::new(1054, b"42S22", message)
        })?;
        self.at += 1;
        let test = self.test()?;
        Ok(Condition { column, test })
    }

    fn test(&mut self) -> Result<Test, Refusal> {
        if self.take("IS") {
            let not = self.take("NOT");
            return match self.take("NULL") {
                true if not => Ok(Test::NotNull),
                true => Ok(Test::Null),
                false => Err(self.unexpected()),
            };
        }
        if self.take("NOT") {
            return match self.take("LIKE") {
                true => Ok(Test::NotLike(self.name()?)),
                false => Err(self.unexpected()),
            };
        }
        if self.take("LIKE") {
            return Ok(Test::Like(self.name()?));
        }
        if self.take("IN") {
            return self.list().map(Test::In);
        }
        const COMPARISONS: [(&str, [bool; 3]); 7] = [
            ("=", [false, true, false]),
            ("<>", [true, false, true]),
            ("!=", [true, false, true]),
            ("<=", [true, true, false]),
            (">=", [false, true, true]),
            ("<", [true, false, false]),
            (">", [false, false, true]),
        ];
        for (symbol, [less, equal, greater]) in COMPARISONS {
            if self.take_symbol(symbol) {
                let minus = self.take_symbol("-");
                let with = format!("{}{}", if minus { "-" } else { "" }, self.name()?);
                return Ok(Test::Compare {
                    with,
                    less,
                    equal,
                    greater,
                });
            }
        }
        Err(self.unexpected())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::operators::cell::Cell;
    use crate::operators::chatter::Own;
    use crate::operators::variables::COMMENT;

    fn show(text: &str) -> (Show, Filter) {
        match parse(text) {
            Ok(Statement::Show { show, filter }) => (show, filter),
            other => panic!("{text}: {other:?}"),
        }
    }

    fn code(text: &str) -> u16 {
        parse(text).expect_err(text).code
    }

    #[test]
    fn listings_are_found_by_all_their_names() {
        for (text, expected) in [
            ("show servers", Show::Servers),
            (" SHOW  Topology ;", Show::Topology),
            ("SHOW FULL PROCESSLIST", Show::Sessions),
            ("SHOW SESSIONS", Show::Sessions),
            ("SHOW POOLS", Show::Pools),
            ("SHOW PINS", Show::Pins),
            ("SHOW RULES", Show::Rules),
            ("SHOW METRICS", Show::Metrics),
            ("SHOW SESSION VARIABLES", Show::Variables),
            ("SHOW CONFIG", Show::Config),
            ("SHOW GLOBAL STATUS", Show::Status),
            ("help", Show::Help),
        ] {
            assert_eq!(show(text), (expected, Filter::default()), "{text}");
        }
    }

    #[test]
    fn filters_are_read() {
        let (_, filter) = show("SHOW METRICS LIKE 'millrace\\_pool%' LIMIT 3");
        assert_eq!(
            filter,
            Filter {
                limit: Some(3),
                ..Filter::like(0, "millrace\\_pool%".into())
            }
        );
        let text = "SHOW SERVERS WHERE role = 'replica' AND `lag_s` >= 5 OR id IN (1, 2) OR lag_s IS \
                    NOT NULL";
        let (_, filter) = show(text);
        assert_eq!(filter.any_of.len(), 3);
        assert_eq!(filter.any_of[0].len(), 2);
        assert_eq!(filter.any_of[2][0].test, Test::NotNull);
        assert_eq!(code("SHOW SERVERS WHERE colour = 1"), 1054);
        for text in [
            "SHOW SERVERS WHERE",
            "SHOW SERVERS WHERE id",
            "SHOW SERVERS WHERE id =",
            "SHOW SERVERS WHERE id IN (",
            "SHOW SERVERS WHERE id IS 7",
            "SHOW SERVERS LIMIT x",
            "SHOW SERVERS ORDER BY id",
        ] {
            assert_eq!(code(text), 1064, "{text}");
        }
    }

    #[test]
    fn acts_are_read() {
        for text in [
            "DRAIN SERVER 'db1:3306' WAIT 30",
            "drain server db1:3306 wait 30;",
        ] {
            let drain = Statement::Drain {
                server: "db1:3306".into(),
                wait_s: 30,
            };
            assert_eq!(parse(text).unwrap(), drain);
        }
        let resume = Statement::Resume {
            server: "/run/a.sock".into(),
        };
        assert_eq!(parse("RESUME SERVER '/run/a.sock'").unwrap(), resume);
        for (text, id, query) in [
            ("KILL 7", 7, false),
            ("KILL CONNECTION 7", 7, false),
            ("kill query 7", 7, true),
        ] {
            assert_eq!(parse(text).unwrap(), Statement::Kill { id, query });
        }
        for text in [
            "KILL",
            "KILL 'x'",
            "KILL QUERY",
            "DRAIN 'a'",
            "DRAIN SERVER",
            "RESUME",
        ] {
            assert_eq!(code(text), 1064, "{text}");
        }
    }

    #[test]
    fn what_clients_say_is_answered() {
        for text in [
            "SET NAMES utf8mb4",
            "SET SESSION sql_mode='STRICT_TRANS_TABLES'",
            "SET autocommit=1, sql_mode=concat(@@sql_mode,',STRICT_TRANS_TABLES')",
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
            "START TRANSACTION READ ONLY;",
            "ROLLBACK",
        ] {
            assert_eq!(parse(text).unwrap(), Statement::Accepted, "{text}");
        }
        assert!(matches!(
            parse("SHOW WARNINGS LIMIT 5"),
            Ok(Statement::Nothing(_))
        ));
        assert_eq!(parse("use `x`").unwrap(), Statement::Use("x".into()));
        assert_eq!(code("SET GLOBAL max_connections = 5"), 1238);
        assert_eq!(code("SET @@global.max_connections = 5"), 1238);
        assert_eq!(code("SET pool.max_connections = 5"), 1238);
        assert_eq!(code(""), 1065);
        assert_eq!(code(" ; "), 1065);
    }

    #[test]
    fn what_there_is_not_is_told_what_there_is() {
        let refusal = parse("SHOW SERVRES").unwrap_err();
        assert!(
            refusal.message.contains("near 'SERVRES'"),
            "{}",
            refusal.message
        );
        assert!(
            refusal.message.contains("SHOW SERVERS, "),
            "{}",
            refusal.message
        );
        for text in [
            "INSERT INTO t VALUES (1)",
            "SHOW SERVERS; SHOW POOLS",
            "KILL 1 2",
        ] {
            assert_eq!(code(text), 1064, "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,80}") {
            let _ = parse(&text);
        }

        #[test]
        fn never_panics_near_statements(
            words in proptest::collection::vec(
                prop_oneof![
                    Just("SHOW"), Just("SERVERS"), Just("HELD"), Just("STATEMENTS"), Just("WHERE"),
                    Just("role"), Just("="), Just("'"), Just("'x'"), Just("AND"), Just("IN"),
                    Just("("), Just(")"), Just("LIMIT"), Just("7"), Just("99999999999999999999"),
                    Just("KILL"), Just("QUERY"), Just("DRAIN"), Just("SERVER"), Just("WAIT"),
                    Just("SELECT"), Just("@@"), Just("version"), Just(","), Just("AS"), Just(";"),
                    Just("SET"), Just("é.é"), Just("IS"), Just("NOT"), Just("LIKE"), Just("`"),
                ],
                0..12,
            )
        ) {
            let _ = parse(&words.join(" "));
        }
    }

    fn cells(text: &str) -> Vec<(String, Cell)> {
        let own = Own {
            user: "admin@127.0.0.1".into(),
            id: 7,
            database: None,
        };
        match parse(text) {
            Ok(Statement::Select(items)) => items
                .iter()
                .map(|item| (item.name.clone(), item.cell(&own)))
                .collect(),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn first_questions_of_clients_are_answered() {
        let one = |name: &str, cell: Cell| vec![(name.to_owned(), cell)];
        assert_eq!(
            cells("select @@version_comment limit 1"),
            one("@@version_comment", COMMENT.into())
        );
        assert_eq!(cells("SELECT 1"), one("1", Cell::Int(1)));
        assert_eq!(cells("SELECT 'x' AS y;"), one("y", "x".into()));
        assert_eq!(cells("SELECT DATABASE()"), one("DATABASE()", Cell::Null));
        assert_eq!(
            cells("SELECT CONNECTION_ID()"),
            one("CONNECTION_ID()", Cell::Int(7))
        );
        let of_a_driver = cells(
            "/* driver-j */SELECT  @@session.auto_increment_increment AS auto_increment_increment, \
             @@character_set_client AS character_set_client, @@session.transaction_isolation AS \
             transaction_isolation, @@wait_timeout AS wait_timeout",
        );
        assert_eq!(of_a_driver.len(), 4);
        assert_eq!(of_a_driver[3], ("wait_timeout".into(), Cell::Int(28_800)));
        let refused = |text| parse(text).unwrap_err().code;
        assert_eq!(refused("SELECT @@nothing"), 1193);
        assert_eq!(refused("SELECT * FROM t"), 1064);
        assert_eq!(refused("SELECT 1 FROM t"), 1064);
        assert_eq!(refused("SELECT SLEEP(1)"), 1064);
    }
}

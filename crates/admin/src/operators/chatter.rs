//! What client libraries ask by themselves: variables and functions about the connection. Its
//! answers are those of a server without anything to configure.

use crate::operators::answer::{Cell, Kind, Refusal};
use crate::operators::statement::Parser;
use crate::operators::token::Token;

/// What the greeting says. The first part is what clients judge a server's abilities by.
pub(crate) const VERSION: &str = concat!("8.4.0-millrace-", env!("CARGO_PKG_VERSION"));

/// What `@@version_comment` says.
pub(crate) const COMMENT: &str = "Millrace, for operators: SHOW HELP";

/// The longest command, in bytes.
pub(crate) const PACKET_MAX: usize = 64 * 1024;

/// Seconds after which a silent client is disconnected; a server's own default.
pub(crate) const IDLE_MAX_S: u64 = 28_800;

/// One column of a SELECT.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Item {
    /// The column's name.
    pub(crate) name: String,
    value: Value,
}

#[derive(Debug, Clone, PartialEq)]
enum Value {
    Known(Cell),
    Database,
    User,
    Connection,
}

/// What a connection knows of itself.
#[derive(Debug, Clone)]
pub(crate) struct Own {
    /// The account and where it comes from, as `admin@127.0.0.1`.
    pub(crate) user: String,
    /// The connection's number.
    pub(crate) id: u32,
    /// What USE said last.
    pub(crate) database: Option<String>,
}

impl Item {
    pub(crate) fn kind(&self) -> Kind {
        match &self.value {
            Value::Known(Cell::Int(_)) | Value::Connection => Kind::Int,
            Value::Known(Cell::Real(_)) => Kind::Real,
            _ => Kind::Text,
        }
    }

    pub(crate) fn cell(&self, own: &Own) -> Cell {
        match &self.value {
            Value::Known(cell) => cell.clone(),
            Value::Database => own.database.clone().into(),
            Value::User => own.user.clone().into(),
            Value::Connection => own.id.into(),
        }
    }
}

/// Reads the columns of a SELECT, up to its end.
pub(crate) fn select(parser: &mut Parser) -> Result<Vec<Item>, Refusal> {
    let mut items = vec![item(parser)?];
    while parser.take_symbol(",") {
        items.push(item(parser)?);
    }
    if parser.take("FROM") && !parser.take("DUAL") {
        return Err(parser.unexpected());
    }
    if parser.take("LIMIT") {
        match parser.next() {
            Some(Token::Number(_)) => {}
            _ => return Err(parser.unexpected()),
        }
    }
    Ok(items)
}

fn item(parser: &mut Parser) -> Result<Item, Refusal> {
    let (name, value) = value(parser)?;
    let alias = match parser.take("AS") {
        true => match parser.next() {
            Some(Token::Word(alias) | Token::Name(alias) | Token::Text(alias)) => Some(alias),
            _ => return Err(parser.unexpected()),
        },
        false => None,
    };
    let name = alias.unwrap_or(name);
    Ok(Item { name, value })
}

fn value(parser: &mut Parser) -> Result<(String, Value), Refusal> {
    if parser.take_symbol("@@") {
        let Some(Token::Word(name)) = parser.peek().cloned() else {
            return Err(parser.unexpected());
        };
        parser.next();
        let lower = name.to_ascii_lowercase();
        let bare = ["session.", "global.", "local."]
            .iter()
            .find_map(|scope| lower.strip_prefix(scope))
            .unwrap_or(&lower);
        let known = variables().find(|(known, _)| *known == bare);
        let (_, cell) = known.ok_or_else(|| {
            Refusal::new(1193, b"HY000", format!("Unknown system variable '{bare}'"))
        })?;
        return Ok((format!("@@{name}"), Value::Known(cell)));
    }
    match parser.peek().cloned() {
        Some(Token::Number(digits)) => {
            parser.next();
            let cell = digits
                .parse()
                .map_or_else(|_| Cell::from(digits.clone()), Cell::Int);
            Ok((digits, Value::Known(cell)))
        }
        Some(Token::Text(text)) => {
            parser.next();
            Ok((text.clone(), Value::Known(text.into())))
        }
        Some(Token::Word(word)) => {
            let value = match word.to_ascii_uppercase().as_str() {
                "NULL" => return literal(parser, word, Cell::Null),
                "TRUE" => return literal(parser, word, Cell::Int(1)),
                "FALSE" => return literal(parser, word, Cell::Int(0)),
                "VERSION" => Value::Known(VERSION.into()),
                "DATABASE" | "SCHEMA" => Value::Database,
                "USER" | "CURRENT_USER" | "SESSION_USER" | "SYSTEM_USER" => Value::User,
                "CONNECTION_ID" => Value::Connection,
                _ => return Err(parser.unexpected()),
            };
            parser.next();
            if !(parser.take_symbol("(") && parser.take_symbol(")")) {
                return Err(parser.unexpected());
            }
            Ok((format!("{word}()"), value))
        }
        _ => Err(parser.unexpected()),
    }
}

fn literal(parser: &mut Parser, word: String, cell: Cell) -> Result<(String, Value), Refusal> {
    parser.next();
    Ok((word, Value::Known(cell)))
}

/// The variables that clients ask for, with a server's own defaults where it has some.
pub(crate) fn variables() -> impl Iterator<Item = (&'static str, Cell)> {
    const TEXTS: &[(&str, &str)] = &[
        ("character_set_client", "utf8mb4"),
        ("character_set_connection", "utf8mb4"),
        ("character_set_database", "utf8mb4"),
        ("character_set_results", "utf8mb4"),
        ("character_set_server", "utf8mb4"),
        ("collation_connection", "utf8mb4_general_ci"),
        ("collation_database", "utf8mb4_general_ci"),
        ("collation_server", "utf8mb4_general_ci"),
        ("default_storage_engine", ""),
        ("hostname", ""),
        ("init_connect", ""),
        ("license", "Apache-2.0"),
        ("query_cache_type", "OFF"),
        ("sql_mode", ""),
        ("system_time_zone", "UTC"),
        ("time_zone", "SYSTEM"),
        ("transaction_isolation", "REPEATABLE-READ"),
        ("tx_isolation", "REPEATABLE-READ"),
        ("version", VERSION),
        ("version_comment", COMMENT),
        ("version_compile_os", "Linux"),
    ];
    const NUMBERS: &[(&str, i64)] = &[
        ("auto_increment_increment", 1),
        ("auto_increment_offset", 1),
        ("autocommit", 1),
        ("interactive_timeout", IDLE_MAX_S as i64),
        ("lower_case_table_names", 0),
        ("max_allowed_packet", PACKET_MAX as i64),
        ("net_buffer_length", 16_384),
        ("net_read_timeout", 30),
        ("net_write_timeout", 30),
        ("performance_schema", 0),
        ("protocol_version", 10),
        ("query_cache_size", 0),
        ("read_only", 0),
        ("sql_select_limit", i64::MAX),
        ("transaction_read_only", 0),
        ("tx_read_only", 0),
        ("wait_timeout", IDLE_MAX_S as i64),
    ];
    let texts = TEXTS.iter().map(|(name, text)| (*name, Cell::from(*text)));
    let numbers = NUMBERS
        .iter()
        .map(|(name, number)| (*name, Cell::Int(*number)));
    texts.chain(numbers)
}

/// The configuration's sections, by which its keys are told from a server's variables.
pub(crate) fn sections() -> impl Iterator<Item = &'static str> {
    [
        "listen",
        "server",
        "account",
        "monitor",
        "discovery",
        "tls",
        "server_tls",
        "tcp",
        "server_tcp",
        "pool",
        "limits",
        "routing",
        "failover",
        "auth",
        "http",
        "admin",
        "log",
        "drain",
    ]
    .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::statement::{Statement, parse};

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

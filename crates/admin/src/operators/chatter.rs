//! What client libraries ask by themselves: variables and functions about the connection. Its
//! answers are those of a server without anything to configure.

use crate::operators::cell::{Cell, Kind, Refusal};
use crate::operators::parser::Parser;
use crate::operators::token::Token;
use crate::operators::variables::{VERSION, variables};

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

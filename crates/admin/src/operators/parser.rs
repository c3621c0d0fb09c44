//! Steps through a statement's tokens, and says what could not be read. Knows no statement.

use crate::operators::cell::Refusal;
use crate::operators::tables::LISTINGS;
use crate::operators::token::Token;

/// Steps through a statement's pieces.
pub(crate) struct Parser {
    pub(crate) tokens: Vec<Token>,
    pub(crate) at: usize,
}

impl Parser {
    pub(crate) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    pub(crate) fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).cloned();
        self.at += usize::from(token.is_some());
        token
    }

    /// Takes a word, if it is the next.
    pub(crate) fn take(&mut self, word: &str) -> bool {
        let is_next = self.peek().is_some_and(|token| token.is(word));
        self.at += usize::from(is_next);
        is_next
    }

    pub(crate) fn take_symbol(&mut self, symbol: &str) -> bool {
        let is_next = matches!(self.peek(), Some(Token::Symbol(next)) if *next == symbol);
        self.at += usize::from(is_next);
        is_next
    }

    /// What cannot be read, and what could be.
    pub(crate) fn unexpected(&self) -> Refusal {
        let near = match self.peek() {
            None => "its end".to_owned(),
            Some(Token::Symbol(symbol)) => format!("'{symbol}'"),
            Some(Token::Other(other)) => format!("'{other}'"),
            Some(
                Token::Word(text) | Token::Name(text) | Token::Text(text) | Token::Number(text),
            ) => {
                format!("'{}'", text.chars().take(40).collect::<String>())
            }
        };
        let known: Vec<&str> = LISTINGS
            .iter()
            .filter(|listing| !listing.help.is_empty())
            .map(|listing| listing.statement)
            .collect();
        let message = format!(
            "Millrace's admin listener cannot read this statement near {near}; there are: {}, DRAIN \
             SERVER 'address' [WAIT seconds], RESUME SERVER 'address', KILL [CONNECTION | QUERY] id; \
             a SHOW takes LIKE 'pattern', WHERE column = value and LIMIT n",
            known.join(", ")
        );
        Refusal::new(1064, b"42000", message)
    }

    /// Where the statement ends: before a closing semicolon.
    pub(crate) fn end(&self) -> usize {
        let closed = matches!(self.tokens.last(), Some(Token::Symbol(";")));
        self.tokens.len() - usize::from(closed)
    }

    /// A name or a value, however it is written.
    pub(crate) fn name(&mut self) -> Result<String, Refusal> {
        match self.peek() {
            Some(
                Token::Word(text) | Token::Name(text) | Token::Text(text) | Token::Number(text),
            ) => {
                let text = text.clone();
                self.at += 1;
                Ok(text)
            }
            _ => Err(self.unexpected()),
        }
    }

    pub(crate) fn number(&mut self) -> Result<u64, Refusal> {
        let number = match self.peek() {
            Some(Token::Number(digits)) => digits.parse().ok(),
            _ => None,
        };
        let number = number.ok_or_else(|| self.unexpected())?;
        self.at += 1;
        Ok(number)
    }

    /// Names or values in brackets.
    pub(crate) fn list(&mut self) -> Result<Vec<String>, Refusal> {
        if !self.take_symbol("(") {
            return Err(self.unexpected());
        }
        let mut list = vec![self.name()?];
        while self.take_symbol(",") {
            list.push(self.name()?);
        }
        match self.take_symbol(")") {
            true => Ok(list),
            false => Err(self.unexpected()),
        }
    }
}

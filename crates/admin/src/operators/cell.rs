//! Values, columns and errors, of which answers are made. Sends nothing.

use std::borrow::Cow;
use std::io;

use millrace_protocol::ok::ErrPacket;
use millrace_protocol::resultset::Cell as Sent;

/// A column of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// What it says, for the documentation; without a full stop.
    pub(crate) help: &'static str,
}

/// A column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    /// A whole number: BIGINT.
    Int,
    /// DOUBLE.
    Real,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cell {
    Null,
    Text(Cow<'static, str>),
    Int(i64),
    Real(f64),
}

impl Cell {
    /// As it is shown; none for NULL.
    pub(crate) fn text(&self) -> Option<Cow<'_, str>> {
        match self {
            Cell::Null => None,
            Cell::Text(text) => Some(Cow::Borrowed(text)),
            Cell::Int(number) => Some(number.to_string().into()),
            Cell::Real(number) => Some(number.to_string().into()),
        }
    }

    /// A name as a client or server gave it: bytes that are mostly UTF-8.
    pub(crate) fn bytes(bytes: &[u8]) -> Self {
        Cell::from(String::from_utf8_lossy(bytes).into_owned())
    }

    /// As it is sent.
    pub(crate) fn sent(&self) -> Sent<'_> {
        match self {
            Cell::Null => Sent::Null,
            Cell::Text(text) => Sent::Bytes(text.as_bytes()),
            Cell::Int(number) => Sent::Int(*number),
            Cell::Real(number) => Sent::Double(*number),
        }
    }
}

impl From<&'static str> for Cell {
    fn from(text: &'static str) -> Self {
        Cell::Text(text.into())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Cell::Text(text.into())
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Cell::Real(number)
    }
}

impl From<bool> for Cell {
    fn from(flag: bool) -> Self {
        Cell::from(if flag { "yes" } else { "no" })
    }
}

macro_rules! from_integers {
    ($($kind:ty),*) => {
        $(impl From<$kind> for Cell {
            fn from(number: $kind) -> Self {
                Cell::Int(i64::try_from(number).unwrap_or(i64::MAX))
            }
        })*
    };
}

from_integers!(u16, u32, u64, usize, u128, i64);

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Cell::Null, Into::into)
    }
}

/// Why a command gets no answer.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The client is gone, or too slow.
    Client(io::Error),
    /// An error for the client; the conversation goes on.
    Error(Refusal),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Trouble::Client(error)
    }
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        Trouble::Error(refusal)
    }
}

/// An error for the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) state: [u8; 5],
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(code: u16, state: &[u8; 5], message: impl Into<String>) -> Self {
        Refusal {
            code,
            state: *state,
            message: message.into(),
        }
    }

    /// What a statement asks for cannot be done now.
    pub(crate) fn cannot(message: impl Into<String>) -> Self {
        Refusal::new(1105, b"HY000", message)
    }

    pub(crate) fn packet(&self) -> ErrPacket<'_> {
        ErrPacket {
            code: self.code,
            state: self.state,
            message: self.message.as_bytes(),
        }
    }
}

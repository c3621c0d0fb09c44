//! What is wrong with a configuration and where. Finds nothing itself.

use std::fmt;

/// Where something in the configuration stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A line of a file, from 1.
    Line {
        /// The file as it was named.
        file: String,
        /// The line.
        line: usize,
    },
    /// The file as a whole: something is missing.
    File(String),
    /// A flag of the command line, with its dashes.
    Flag(&'static str),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line { file, line } => write!(f, "at {file}:{line}"),
            Place::File(file) => write!(f, "in {file}"),
            Place::Flag(flag) => write!(f, "in {flag}"),
        }
    }
}

/// One error: `unknown key `lisen` at millrace.toml:3; did you mean `listen`?`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// What is wrong.
    pub what: String,
    /// Where.
    pub place: Place,
    /// What to do about it.
    pub hint: Option<String>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.what, self.place)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ConfigError {}

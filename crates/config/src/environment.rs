//! The outside that a configuration refers to: files and environment variables. Decides nothing.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Reads a file.
type Read = dyn Fn(&Path) -> io::Result<Vec<u8>>;
/// Reads an environment variable.
type Variable = dyn Fn(&str) -> Option<String>;

/// How files and environment variables are read, so that tests can bring their own.
pub struct Environment {
    /// Reads a file.
    pub read: Box<Read>,
    /// Reads an environment variable.
    pub variable: Box<Variable>,
}

impl Environment {
    /// The process's own.
    pub fn process() -> Self {
        Environment {
            read: Box::new(|path| std::fs::read(path)),
            variable: Box::new(|name| std::env::var(name).ok()),
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment")
    }
}

/// What values of one file refer to.
pub(crate) struct Context<'a> {
    /// The file's own name.
    pub(crate) file: &'a str,
    pub(crate) environment: &'a Environment,
}

impl Context<'_> {
    /// A path in the file is relative to the file's folder.
    pub(crate) fn resolve(&self, path: &str) -> PathBuf {
        match Path::new(self.file).parent() {
            Some(folder) => folder.join(path),
            None => path.into(),
        }
    }
}

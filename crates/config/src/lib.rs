//! The configuration: a TOML file or the command line's flags, checked and turned into options.
//! Reads the files and environment variables that hold secrets, through [`Environment`], and
//! nothing else; opens no socket.
//!
//! Every error is found in one go and says where it is and which key was probably meant.

mod check;
mod discovery;
mod environment;
mod error;
mod flags;
mod key;
mod keys;
mod kind;
mod load;
mod model;
mod nearest;
mod page;
mod reload;
mod rules;
mod section;
mod show;
mod value;
mod words;

pub use discovery::{Discovery, DiscoveryMode};
pub use environment::Environment;
pub use error::{ConfigError, Place};
pub use flags::Flags;
pub use millrace_backend::secret::Secret;
pub use millrace_base::Address;
pub use model::{
    Account, Admin, ClientCertificates, ClientTls, Config, Listener, Log, LogFormat, LogLevel,
    Server, ServerTls,
};
pub use reload::Settings;
pub use show::{RuleText, Setting, sections};

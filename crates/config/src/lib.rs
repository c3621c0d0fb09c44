//! The configuration: a TOML file or the command line's flags, checked and turned into options.
//! Reads the files and environment variables that hold secrets, through [`Environment`], and
//! nothing else; opens no socket.
//!
//! Every error is found in one go and says where it is and which key was probably meant.

mod address;
mod check;
mod discovery;
mod environment;
mod error;
mod flags;
mod load;
mod model;
mod nearest;
mod rules;
mod secret;
mod section;
mod show;
mod value;

pub use address::Address;
pub use discovery::{Discovery, DiscoveryMode};
pub use environment::Environment;
pub use error::{ConfigError, Place};
pub use flags::Flags;
pub use model::{
    Account, Admin, Auth, ClientCertificates, ClientTls, Concurrency, Config, Failover, Hosts,
    Limits, Listener, ListenerTls, Log, LogFormat, LogLevel, Monitor, Pool, Routing, Server,
    ServerTls, ServerTlsMode, Tcp,
};
pub use secret::Secret;
pub use show::{RuleText, Setting};

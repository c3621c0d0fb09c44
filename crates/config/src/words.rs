//! The words that values are chosen from. Knows no key.

use millrace_backend::cache::Mode;
use millrace_backend::tls::ServerTlsMode;
use millrace_routing::{AllLag, Balance, Consistency, Freshness, Reads, Target, Wanted};
use millrace_topology::ConfiguredRole;
use millrace_worker::{Hosts, ListenerTls};

use crate::{ClientCertificates, DiscoveryMode, LogFormat, LogLevel};

/// Words with their values, in the order in which they are listed.
pub(crate) type Words<V> = &'static [(&'static str, V)];

pub(crate) const TARGET: Words<Target> = &[
    ("auto", Target::Auto),
    ("primary", Target::PrimaryOnly),
    ("replicas", Target::ReplicasOnly),
];

pub(crate) const LISTENER_TLS: Words<ListenerTls> = &[
    ("optional", ListenerTls::Optional),
    ("required", ListenerTls::Required),
    ("off", ListenerTls::Off),
];

pub(crate) const ROLE: Words<ConfiguredRole> = &[
    ("auto", ConfiguredRole::Auto),
    ("primary", ConfiguredRole::Primary),
    ("replica", ConfiguredRole::Replica),
];

pub(crate) const DISCOVERY: Words<DiscoveryMode> =
    &[("off", DiscoveryMode::Off), ("auto", DiscoveryMode::Auto)];

pub(crate) const CERTIFICATES: Words<ClientCertificates> = &[
    ("required", ClientCertificates::Required),
    ("optional", ClientCertificates::Optional),
];

pub(crate) const SERVER_TLS: Words<ServerTlsMode> = &[
    ("disabled", ServerTlsMode::Disabled),
    ("as_client", ServerTlsMode::AsClient),
    ("preferred", ServerTlsMode::Preferred),
    ("required", ServerTlsMode::Required),
    ("verify_ca", ServerTlsMode::VerifyCa),
    ("verify_identity", ServerTlsMode::VerifyIdentity),
];

pub(crate) const READS: Words<Reads> = &[("replicas", Reads::Replicas), ("all", Reads::All)];

pub(crate) const FRESHNESS: Words<Freshness> = &[
    ("position", Freshness::Position),
    ("table", Freshness::Table),
];

pub(crate) const CACHE_MODE: Words<Mode> = &[
    ("off", Mode::Off),
    ("auto", Mode::Auto),
    ("rules", Mode::Rules),
];

/// What a rule's `cache` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CacheWord {
    Never,
    Exact,
    Ttl,
}

pub(crate) const CACHING: Words<CacheWord> = &[
    ("never", CacheWord::Never),
    ("exact", CacheWord::Exact),
    ("ttl", CacheWord::Ttl),
];

pub(crate) const BALANCE: Words<Balance> = &[
    ("least_outstanding", Balance::LeastOutstanding),
    ("latency", Balance::Latency),
    ("weighted", Balance::Weighted),
    ("round_robin", Balance::RoundRobin),
];

pub(crate) const ALL_LAG: Words<AllLag> =
    &[("primary", AllLag::Primary), ("replicas", AllLag::Replicas)];

pub(crate) const CONSISTENCY: Words<Consistency> = &[
    ("eventual", Consistency::Eventual),
    ("session", Consistency::Session),
    ("instance", Consistency::Instance),
    ("global", Consistency::Global),
];

pub(crate) const HOSTS: Words<Hosts> = &[("check", Hosts::Check), ("ignore", Hosts::Ignore)];

pub(crate) const LEVEL: Words<LogLevel> = &[
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];

pub(crate) const FORMAT: Words<LogFormat> = &[("text", LogFormat::Text), ("json", LogFormat::Json)];

/// Where a rule sends statements.
pub(crate) const TO: Words<Wanted> = &[("primary", Wanted::Primary), ("replicas", Wanted::Replica)];

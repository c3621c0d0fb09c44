//! `[discovery]`: whether servers are found beside those that are listed. Finds none.

use millrace_topology::DiscoveryOptions;

/// `[discovery]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Discovery {
    /// `mode`: `"auto"` (default): the servers listed are asked which others there are, and those are used
    /// as well; or `"off"`: those listed are all there are.
    pub mode: DiscoveryMode,
    /// How they are found; `[discovery.translate]` included.
    pub options: DiscoveryOptions,
}

/// Whether servers are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DiscoveryMode {
    /// As [`DiscoveryMode::Auto`] where the monitor has an account to ask the servers with, else off.
    #[default]
    Default,
    /// They are all listed.
    Off,
    /// Those listed are where it begins.
    Auto,
}

impl Discovery {
    /// What `topology` needs; none where nothing is found. `asks`: there is an account to ask servers with.
    pub(crate) fn in_force(&self, asks: bool) -> Option<DiscoveryOptions> {
        (asks && self.mode != DiscoveryMode::Off).then(|| self.options.clone())
    }
}

//! `[discovery]`: whether servers are found beside those that are listed. Finds none.

use std::collections::BTreeMap;
use std::time::Duration;

use millrace_topology::DiscoveryOptions;

use crate::load::{SECOND, connect};
use crate::section::Section;
use crate::value::{choice, duration, number};
use crate::{Address, Config};

/// `[discovery]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovery {
    /// `mode`: `"auto"` (default): the servers listed are asked which others there are, and those are used
    /// as well; or `"off"`: those listed are all there are.
    pub mode: DiscoveryMode,
    /// `max_servers` at a time, those listed included. Default 32, at most 256.
    pub max_servers: u32,
    /// `forget_after`: a found server that does not answer and that nobody names any more is forgotten
    /// after this. Default 10 min.
    pub forget_after: Duration,
    /// `[discovery.translate]`: the addresses to connect to in place of those that servers name.
    pub translate: BTreeMap<Box<str>, Box<str>>,
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

impl Default for Discovery {
    fn default() -> Self {
        Discovery {
            mode: DiscoveryMode::Default,
            max_servers: 32,
            forget_after: Duration::from_secs(600),
            translate: BTreeMap::new(),
        }
    }
}

impl Discovery {
    pub(crate) fn read(&mut self, section: &Section<'_>) {
        section.read(
            "mode",
            &mut self.mode,
            choice(&[("off", DiscoveryMode::Off), ("auto", DiscoveryMode::Auto)]),
        );
        section.read("max_servers", &mut self.max_servers, number(1, 256));
        section.read("forget_after", &mut self.forget_after, duration(SECOND));
        let Some(table) = section.table("translate") else {
            return;
        };
        for (named, reachable) in table.pairs(|key| Address::parse(key, Some(3306)), connect) {
            let (named, reachable) = (named.to_string(), reachable.to_string());
            self.translate.insert(named.into(), reachable.into());
        }
    }

    /// What `topology` needs; none where nothing is found. `asks`: there is an account to ask servers with.
    pub(crate) fn options(&self, asks: bool) -> Option<DiscoveryOptions> {
        (asks && self.mode != DiscoveryMode::Off).then(|| DiscoveryOptions {
            servers_max: self.max_servers as usize,
            forget_after_ms: u64::try_from(self.forget_after.as_millis()).unwrap_or(u64::MAX),
            translate: self.translate.clone(),
        })
    }
}

/// What is odd about it.
pub(crate) fn warnings(config: &Config) -> Option<String> {
    let discovery = &config.discovery;
    let off = discovery.mode == DiscoveryMode::Off;
    (off && !discovery.translate.is_empty())
        .then(|| "[discovery.translate] is there, but discovery.mode is \"off\"".to_owned())
}

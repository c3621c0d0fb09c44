//! Who is the primary, and what is remembered of those before. Plain data.

use crate::{Family, GtidSet, Millis, ServerId};

/// What is remembered of primaries.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The primary, for as long as it has been up, writable and the same without a break.
    pub(crate) incumbent: Option<ServerId>,
    /// The last primary there was.
    pub(crate) last: Option<ServerId>,
    /// Since when it was the primary.
    pub(crate) since: Millis,
    /// What it had executed when it was last asked as the primary.
    pub(crate) history: Option<GtidSet>,
    /// How many of the transactions before it the last primary lacked when it became that.
    pub(crate) missing: u64,
    /// The incumbent is set to receive from another server, see [`crate::head`].
    pub(crate) receives: bool,
}

/// Who is the primary.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// The primary, whether or not it takes statements now.
    pub(crate) leader: Option<ServerId>,
    /// The server that takes writes.
    pub(crate) primary: Option<ServerId>,
    pub(crate) conflict: Vec<ServerId>,
    /// Those of them that take reads all the same.
    pub(crate) spared: Vec<ServerId>,
    /// The one server that claims to be the primary, where that is not believed.
    pub(crate) doubtful: Option<ServerId>,
    /// It is configured as the primary, and the servers show that another is: that one takes writes.
    pub(crate) overruled: Option<ServerId>,
    pub(crate) family: Option<Family>,
    /// The only server there is: it is used whatever is known of it.
    pub(crate) alone: bool,
    /// The primary answers, and nothing looks wrong with it.
    pub(crate) well: bool,
    /// No Galera node is synced.
    pub(crate) none_synced: bool,
}

//! Rules for query routing: which statements, and what is to become of them. Compiled once, so that
//! a statement meets those few that can concern it, however many there are.
//!
//! What a session brings along (account, database, address, listener) is matched when it changes:
//! [`Rules::select`]. The rest is matched per statement: [`Rules::directions`].

mod index;
mod rule;
mod statement;

use std::sync::Arc;
use std::time::Duration;

use crate::{Consistency, Wanted};
use index::Index;
pub use rule::{
    Caching, Facts, KindName, Network, Pattern, Rewrite, Rule, Selection, TableName, Then, When,
    Who,
};
pub use statement::{Sent, idle_item};

/// What the rules that matched a statement say together. Where several say something about the same
/// thing, the first did.
#[derive(Debug, Clone, Default)]
pub struct Directions {
    /// Where it goes.
    pub wanted: Option<Wanted>,
    /// What it is guaranteed to see.
    pub consistency: Option<Consistency>,
    /// How long it may run.
    pub time_limit: Option<Duration>,
    /// The rule that limits how many run at once.
    pub limited_by: Option<u16>,
    /// Why it is refused.
    pub refuse: Option<Arc<str>>,
    /// Where it is sent as well.
    pub mirror: Option<u64>,
    /// The rule that writes it anew.
    pub rewritten_by: Option<u16>,
    /// Whether its result may be kept in memory and served again.
    pub cache: Option<Caching>,
    /// The rules that matched, in order.
    pub matched: Vec<u16>,
}

impl Directions {
    /// They send the statement to certain servers, which an answer out of memory would pass over.
    pub fn names_servers(&self) -> bool {
        self.wanted.is_some() || self.mirror.is_some()
    }

    fn add(&mut self, number: u16, then: &Then) {
        self.matched.push(number);
        self.wanted = self.wanted.or(then.wanted);
        self.consistency = self.consistency.or(then.consistency);
        self.time_limit = self.time_limit.or(then.time_limit);
        self.mirror = self.mirror.or(then.mirror);
        self.cache = self.cache.or(then.cache);
        if self.limited_by.is_none() && then.concurrency.is_some() {
            self.limited_by = Some(number);
        }
        if self.rewritten_by.is_none() && then.rewrite.is_some() {
            self.rewritten_by = Some(number);
        }
        if self.refuse.is_none() {
            self.refuse.clone_from(&then.refuse);
        }
    }
}

/// All rules, in order.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    index: Index,
    rewrites: bool,
}

impl Rules {
    /// The most that there can be.
    pub const MAX: usize = u16::MAX as usize;

    /// Compiles the rules; more than [`Rules::MAX`] are cut off.
    ///
    /// # Errors
    /// Where the expressions together are too large.
    pub fn new(mut rules: Vec<Rule>) -> Result<Self, regex::Error> {
        rules.truncate(Self::MAX);
        let index = Index::new(&rules)?;
        let rewrites = rules.iter().any(|rule| rule.then.rewrite.is_some());
        Ok(Rules {
            rules,
            index,
            rewrites,
        })
    }

    /// Whether any of them puts another text in a statement's place.
    pub fn rewrites(&self) -> bool {
        self.rewrites
    }

    /// The rules.
    pub fn all(&self) -> &[Rule] {
        &self.rules
    }

    /// One rule.
    pub fn get(&self, number: u16) -> Option<&Rule> {
        self.rules.get(usize::from(number))
    }

    /// The rules whose conditions about the session hold.
    pub fn select(&self, who: &Who<'_>) -> Selection {
        let mut selection = Selection::default();
        for (number, rule) in (0..).zip(&self.rules) {
            if rule.when.holds_for_session(who) {
                selection.needs_text |= rule.when.looks_at_text();
                selection.rules.push(number);
                if !rule.when.is_indexed() {
                    selection.others.push(number);
                }
            }
        }
        selection
    }

    /// What the rules of a session's selection say of a statement.
    pub fn directions(&self, selection: &Selection, facts: &Facts<'_>) -> Directions {
        let mut directions = Directions::default();
        for number in self.index.candidates(selection, facts) {
            let rule = &self.rules[usize::from(number)];
            if rule.when.holds_for_statement(facts) {
                directions.add(number, &rule.then);
                if !rule.goes_on {
                    break;
                }
            }
        }
        directions
    }

    /// The same by looking at one rule after the other: what [`Rules::directions`] must agree with.
    pub fn directions_naively(&self, who: &Who<'_>, facts: &Facts<'_>) -> Directions {
        let mut directions = Directions::default();
        for (number, rule) in (0..).zip(&self.rules) {
            if rule.when.holds_for_session(who) && rule.when.holds_for_statement(facts) {
                directions.add(number, &rule.then);
                if !rule.goes_on {
                    break;
                }
            }
        }
        directions
    }
}

#[cfg(test)]
mod tests;

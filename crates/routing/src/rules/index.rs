//! Finds the few rules that can match a statement. Never decides whether one does.

use std::collections::HashMap;

use regex::bytes::{RegexSet, RegexSetBuilder};
use smallvec::SmallVec;

use super::rule::{Facts, Rule, Selection};

/// Rules by the one of their conditions that leaves the fewest statements.
#[derive(Debug, Default)]
pub(super) struct Index {
    by_digest: HashMap<u64, Vec<u16>>,
    by_table: HashMap<Box<[u8]>, Vec<u16>>,
    by_tag: HashMap<Box<str>, Vec<u16>>,
    /// All patterns at once, and whose each is.
    patterns: RegexSet,
    pattern_of: Vec<u16>,
}

/// All patterns together, in bytes of their compiled form.
const PATTERNS_MAX: usize = 256 << 20;

impl Index {
    pub(super) fn new(rules: &[Rule]) -> Result<Self, regex::Error> {
        let mut index = Index::default();
        let mut patterns = Vec::new();
        for (number, rule) in (0..).zip(rules) {
            let when = &rule.when;
            if !when.digests.is_empty() {
                for digest in &when.digests {
                    index.by_digest.entry(*digest).or_default().push(number);
                }
            } else if !when.tables.is_empty() {
                for table in &when.tables {
                    let of_table = index.by_table.entry(table.name.clone()).or_default();
                    if of_table.last() != Some(&number) {
                        of_table.push(number);
                    }
                }
            } else if !when.tags.is_empty() {
                for tag in &when.tags {
                    index.by_tag.entry(tag.clone()).or_default().push(number);
                }
            } else if let Some(pattern) = &when.pattern {
                patterns.push(pattern.as_str());
                index.pattern_of.push(number);
            }
        }
        index.patterns = RegexSetBuilder::new(patterns)
            .size_limit(PATTERNS_MAX)
            .build()?;
        Ok(index)
    }

    /// Of the selected rules those that can match, ascending.
    pub(super) fn candidates(
        &self,
        selection: &Selection,
        facts: &Facts<'_>,
    ) -> SmallVec<[u16; 16]> {
        let mut found: SmallVec<[u16; 16]> = SmallVec::new();
        if let Some(of_digest) = self.by_digest.get(&facts.digest) {
            found.extend_from_slice(of_digest);
        }
        if !self.by_table.is_empty() {
            for table in facts.tables {
                if let Some(of_table) = self.by_table.get(&table.name) {
                    found.extend_from_slice(of_table);
                }
            }
        }
        for tag in facts.tags {
            if let Some(of_tag) = self.by_tag.get(*tag) {
                found.extend_from_slice(of_tag);
            }
        }
        if !self.pattern_of.is_empty() {
            let matches = self.patterns.matches(facts.normalised);
            found.extend(matches.iter().map(|at| self.pattern_of[at]));
        }
        found.retain(|number| selection.rules.binary_search(number).is_ok());
        found.extend_from_slice(&selection.others);
        found.sort_unstable();
        found.dedup();
        found
    }
}

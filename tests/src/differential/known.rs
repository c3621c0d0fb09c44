//! The differences that are known, step by step: `tests/known-differences.txt`.
//!
//! An entry excuses one step of one case, never a case: whatever else differs in that case fails.
//! It decides nothing about what is right; each entry says why it is not yet, or cannot be.

use std::collections::HashSet;

use super::suite::{Difference, Outcome};

/// One excused step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub case: String,
    /// A part of the step's text; `(end)` is the ping at the end.
    pub step: String,
    /// What the differing lines of both sides must contain, if it is given: any of these.
    pub only: Vec<String>,
    pub reason: String,
}

/// The list.
#[derive(Debug, Default)]
pub struct Known {
    pub entries: Vec<Entry>,
    used: HashSet<usize>,
}

impl Known {
    /// Reads lines of the form `case | step [| words, words] # reason`.
    ///
    /// # Errors
    /// A line that is not of that form.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let mut entries = Vec::new();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bad = || anyhow::anyhow!("known differences: want 'case | step # reason': {line}");
            let (what, reason) = line.rsplit_once(" # ").ok_or_else(bad)?;
            let mut parts = what.split(" | ").map(str::trim);
            let case = parts.next().ok_or_else(bad)?.to_owned();
            let step = parts.next().ok_or_else(bad)?.to_owned();
            let only = parts
                .next()
                .map(|words| words.split(", ").map(str::to_owned).collect())
                .unwrap_or_default();
            entries.push(Entry {
                case,
                step,
                only,
                reason: reason.to_owned(),
            });
        }
        Ok(Self {
            entries,
            used: HashSet::new(),
        })
    }

    /// Takes the excused differences out of an outcome and returns how many they were.
    pub fn excuse(&mut self, outcome: &mut Outcome) -> usize {
        let before = outcome.differences.len();
        let name = outcome.name.clone();
        outcome
            .differences
            .retain(|difference| match self.find(&name, difference) {
                Some(index) => {
                    self.used.insert(index);
                    false
                }
                None => true,
            });
        before - outcome.differences.len()
    }

    fn find(&self, case: &str, difference: &Difference) -> Option<usize> {
        self.entries.iter().position(|entry| {
            entry.case == case
                && difference.step.contains(&entry.step)
                && (entry.only.is_empty() || entry.only_these(difference))
        })
    }

    /// Entries that excused nothing, though their case was run.
    pub fn unused(&self, ran: &HashSet<String>) -> Vec<&Entry> {
        self.entries
            .iter()
            .enumerate()
            .filter(|(index, entry)| !self.used.contains(index) && ran.contains(&entry.case))
            .map(|(_, entry)| entry)
            .collect()
    }
}

impl Entry {
    /// Whether every line that differs has one of the words.
    fn only_these(&self, difference: &Difference) -> bool {
        let differing = difference
            .direct
            .iter()
            .filter(|line| !difference.through.contains(line))
            .chain(
                difference
                    .through
                    .iter()
                    .filter(|line| !difference.direct.contains(line)),
            );
        differing
            .into_iter()
            // The end of rows is an EOF for clients of the older kind.
            .all(|line| {
                let mut words = self.only.iter();
                words.any(|word| line.contains(word) || (word == "end" && line.contains(" EOF ")))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(step: &str, direct: &str, through: &str) -> Outcome {
        Outcome {
            name: "a".to_owned(),
            file: "f".to_owned(),
            steps: 1,
            differences: vec![Difference {
                line: 1,
                step: step.to_owned(),
                direct: vec![direct.to_owned()],
                through: vec![through.to_owned()],
            }],
            error: None,
        }
    }

    #[test]
    fn one_step_is_excused_and_no_other() {
        let mut known = Known::parse("# x\na | SELECT 1 # because\n").unwrap();
        assert_eq!(known.excuse(&mut outcome("SELECT 1", "x", "y")), 1);
        assert_eq!(known.excuse(&mut outcome("SELECT 2", "x", "y")), 0);
        assert!(known.unused(&HashSet::from(["a".to_owned()])).is_empty());
    }

    #[test]
    fn only_lines_with_the_words_are_excused() {
        let mut known = Known::parse("a | SELECT | column # metadata\n").unwrap();
        assert_eq!(
            known.excuse(&mut outcome("SELECT 1", "2 column a", "2 column b")),
            1
        );
        assert_eq!(
            known.excuse(&mut outcome("SELECT 1", "3 row |1|", "3 row |2|")),
            0
        );
    }

    #[test]
    fn an_entry_for_a_whole_case_is_refused() {
        assert!(Known::parse("a # because\n").is_err());
        assert!(Known::parse("a: because\n").is_err());
    }
}

//! Which rows of a listing an operator wants to see: LIKE, WHERE, LIMIT. Judges one row at a time.

use std::cmp::Ordering;

use crate::operators::cell::{Cell, Column};

/// What is asked of a row. The default wants them all.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Filter {
    /// The alternatives of a WHERE: of one of them all conditions must hold. None: no WHERE.
    pub(crate) any_of: Vec<Vec<Condition>>,
    /// Rows at most.
    pub(crate) limit: Option<u64>,
}

/// One condition on one column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Condition {
    /// The column's place.
    pub(crate) column: usize,
    pub(crate) test: Test,
}

/// What must hold of a value. Only [`Test::Null`] holds for NULL.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Test {
    /// Compared with this: one of these outcomes. Texts are compared without regard to case, and
    /// as numbers where both are.
    Compare {
        with: String,
        less: bool,
        equal: bool,
        greater: bool,
    },
    /// LIKE, without regard to case.
    Like(String),
    /// NOT LIKE.
    NotLike(String),
    /// One of these.
    In(Vec<String>),
    /// IS NULL.
    Null,
    /// IS NOT NULL.
    NotNull,
}

impl Filter {
    /// Whether a row is wanted, the limit left out.
    pub(crate) fn holds(&self, row: &[Cell]) -> bool {
        let holds = |condition: &Condition| {
            let cell = row.get(condition.column).unwrap_or(&Cell::Null);
            condition.test.holds(cell)
        };
        self.any_of.is_empty() || self.any_of.iter().any(|all| all.iter().all(holds))
    }

    /// A filter of LIKE alone.
    pub(crate) fn like(column: usize, pattern: String) -> Self {
        let test = Test::Like(pattern);
        Filter {
            any_of: vec![vec![Condition { column, test }]],
            limit: None,
        }
    }
}

impl Test {
    fn holds(&self, cell: &Cell) -> bool {
        let Some(text) = cell.text() else {
            return *self == Test::Null;
        };
        match self {
            Test::Null => false,
            Test::NotNull => true,
            Test::Like(pattern) => like(&text, pattern),
            Test::NotLike(pattern) => !like(&text, pattern),
            Test::In(list) => list
                .iter()
                .any(|one| compare(&text, one) == Ordering::Equal),
            Test::Compare {
                with,
                less,
                equal,
                greater,
            } => match compare(&text, with) {
                Ordering::Less => *less,
                Ordering::Equal => *equal,
                Ordering::Greater => *greater,
            },
        }
    }
}

fn compare(own: &str, with: &str) -> Ordering {
    match (own.parse::<f64>(), with.parse::<f64>()) {
        (Ok(own), Ok(with)) => own.partial_cmp(&with).unwrap_or(Ordering::Less),
        _ => own.to_lowercase().cmp(&with.to_lowercase()),
    }
}

/// SQL's LIKE without regard to case: `%` is any text, `_` any character, `\` takes their meaning
/// away. Takes time in proportion to the product of the lengths at most.
pub(crate) fn like(text: &str, pattern: &str) -> bool {
    #[derive(PartialEq)]
    enum Part {
        Any,
        One,
        Is(char),
    }
    let mut parts = Vec::new();
    let lower = pattern.to_lowercase();
    let mut chars = lower.chars();
    while let Some(c) = chars.next() {
        parts.push(match c {
            '%' => Part::Any,
            '_' => Part::One,
            '\\' => Part::Is(chars.next().unwrap_or('\\')),
            other => Part::Is(other),
        });
    }
    let text: Vec<char> = text.to_lowercase().chars().collect();
    let (mut at, mut part) = (0, 0);
    // Where to go on when what follows the last `%` does not fit here.
    let mut again: Option<(usize, usize)> = None;
    while at < text.len() {
        let fits = match parts.get(part) {
            Some(Part::Any) => {
                again = Some((at, part));
                part += 1;
                continue;
            }
            Some(Part::One) => true,
            Some(Part::Is(c)) => *c == text[at],
            None => false,
        };
        if fits {
            (at, part) = (at + 1, part + 1);
            continue;
        }
        let Some((from, any)) = again else {
            return false;
        };
        again = Some((from + 1, any));
        (at, part) = (from + 1, any + 1);
    }
    parts[part..].iter().all(|part| *part == Part::Any)
}

/// The place of a column by its name, in whatever case.
pub(crate) fn place(columns: &[Column], name: &str) -> Option<usize> {
    columns
        .iter()
        .position(|column| column.name.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn like_is_sqls() {
        let table = [
            ("db1:3306", "db1%", true),
            ("db1:3306", "%3306", true),
            ("db1:3306", "db_:%", true),
            ("db1:3306", "DB1:3306", true),
            ("db1:3306", "db1", false),
            ("", "%", true),
            ("", "", true),
            ("a", "", false),
            ("a_b", "a\\_b", true),
            ("axb", "a\\_b", false),
            ("aaaab", "%a%b", true),
            ("abcabd", "%ab_", true),
            ("é", "_", true),
            ("a\\", "a\\\\", true),
        ];
        for (text, pattern, expected) in table {
            assert_eq!(like(text, pattern), expected, "{text} LIKE {pattern}");
        }
    }

    #[test]
    fn a_long_pattern_takes_no_longer_than_it_must() {
        let text = "a".repeat(20_000);
        let pattern = "%a".repeat(200) + "b";
        let begun = std::time::Instant::now();
        assert!(!like(&text, &pattern));
        assert!(begun.elapsed().as_secs() < 5);
    }

    #[test]
    fn values_are_compared_as_what_they_are() {
        let test = |less, equal, greater| Test::Compare {
            with: "10".into(),
            less,
            equal,
            greater,
        };
        assert!(test(true, false, false).holds(&Cell::Int(9)));
        assert!(!test(true, false, false).holds(&Cell::Int(10)));
        assert!(test(false, true, true).holds(&Cell::Real(10.5)));
        assert!(!test(true, true, true).holds(&Cell::Null));
        assert!(Test::Null.holds(&Cell::Null));
        assert!(!Test::NotNull.holds(&Cell::Null));
        assert!(Test::In(vec!["A".into(), "b".into()]).holds(&Cell::from("a")));
    }

    proptest! {
        #[test]
        fn like_never_panics(text in "\\PC{0,40}", pattern in "[ab%_\\\\é]{0,20}") {
            let _ = like(&text, &pattern);
        }

        #[test]
        fn everything_is_like_itself(text in "[a-zA-Z0-9 :.é]{0,40}") {
            prop_assert!(like(&text, &text));
        }
    }
}

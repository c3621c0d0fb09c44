//! Finds the word that was probably meant. Knows no keys.

/// The candidate closest to `word`; none where all are too different to be a slip.
pub(crate) fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(1);
    candidates
        .iter()
        .map(|candidate| (distance(word, candidate), *candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours needed to get from `a` to `b`.
fn distance(a: &str, b: &str) -> usize {
    let normal = |text: &str| -> Vec<char> {
        text.chars()
            .map(|c| {
                if c == '-' {
                    '_'
                } else {
                    c.to_ascii_lowercase()
                }
            })
            .collect()
    };
    let (a, b) = (normal(a), normal(b));
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_slips_and_nothing_else() {
        let keys = ["listen", "level", "max_clients", "ca"];
        let table = [
            ("lisen", Some("listen")),
            ("lsiten", Some("listen")),
            ("max-clients", Some("max_clients")),
            ("MaxClients", Some("max_clients")),
            ("lvel", Some("level")),
            ("ac", Some("ca")),
            ("colour", None),
            ("", None),
        ];
        for (word, expected) in table {
            assert_eq!(nearest(word, &keys), expected, "{word}");
        }
    }
}

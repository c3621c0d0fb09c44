//! Which answers may be compared with one another: those of statements that have one right answer, but for the order of its
//! rows. What is not known to be such a statement is none.

use millrace_engine::state::SessionState;

/// Words of statements that have several right answers. Which rows are in them, which spelling of equal strings, or
/// which last digits, depends on the order in which a server reads rows.
const SEVERAL: &[&[u8]] = &[
    b"ANY_VALUE",
    b"AVG",
    b"DISTINCT",
    b"DISTINCTROW",
    b"EXCEPT",
    b"FETCH",
    b"GROUP",
    b"GROUP_CONCAT",
    b"INTERSECT",
    b"JSON_ARRAYAGG",
    b"JSON_OBJECTAGG",
    b"LIMIT",
    b"MAX",
    b"MEDIAN",
    b"MIN",
    b"MINUS",
    b"OVER",
    b"ROWNUM",
    b"STD",
    b"STDDEV",
    b"STDDEV_POP",
    b"STDDEV_SAMP",
    b"ST_COLLECT",
    b"SUM",
    b"UNION",
    b"VARIANCE",
    b"VAR_POP",
    b"VAR_SAMP",
    b"WINDOW",
];

/// Aggregates of one value, beside which a statement may name any row's columns where `sql_mode` lets it.
const AGGREGATES: &[&[u8]] = &[b"BIT_AND", b"BIT_OR", b"BIT_XOR", b"COUNT"];

/// Whether a statement has one right answer, but for the order of rows. Names count as words, which keeps out more
/// than it must. `normalised`: its text, values left out.
pub(super) fn has_one_answer(normalised: &[u8], state: &SessionState) -> bool {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let mut words = normalised.split(|byte| !is_name(byte));
    let (limit, mode) = (
        state.effective("sql_select_limit"),
        state.effective("sql_mode"),
    );
    let groups_in_full = mode.is_some_and(|mode| {
        let mut modes = mode.split(|byte| *byte == b',');
        modes.any(|mode| mode == b"ONLY_FULL_GROUP_BY")
    });
    let is_in = |list: &[&[u8]], word: &[u8]| list.iter().any(|it| word.eq_ignore_ascii_case(it));
    limit.is_none_or(|limit| limit == u64::MAX.to_string().as_bytes())
        && !words.any(|word| is_in(SEVERAL, word) || (!groups_in_full && is_in(AGGREGATES, word)))
}

#[cfg(test)]
mod tests {
    use millrace_engine::state::Value;
    use millrace_sql::{Family, LexMode, digest};

    use super::*;

    fn may_be_compared(text: &str, variables: &[(&str, &str)]) -> bool {
        let mut state = SessionState::default();
        for (name, value) in variables {
            state.set(name, Value::Reported(value.as_bytes().into()));
        }
        let mut normalised = Vec::new();
        let lex = LexMode::new(Family::MySql, 90_700);
        digest(text.as_bytes(), &lex, &mut normalised);
        has_one_answer(&normalised, &state)
    }

    #[test]
    fn only_statements_of_one_answer_are_compared() {
        let in_full = [("sql_mode", "ANSI_QUOTES,ONLY_FULL_GROUP_BY")];
        for (text, alone, grouped) in [
            ("SELECT a, b FROM t WHERE id = 5", true, true),
            ("select a from t join u using (id) order by a", true, true),
            ("SELECT upper(a), 'limit' FROM t", true, true),
            ("SELECT COUNT(*) FROM t", false, true),
            ("SELECT a FROM t LIMIT 1", false, false),
            ("SELECT a FROM t limit 1", false, false),
            ("SELECT sum(a) FROM t", false, false),
            ("SELECT stddev_pop(a) FROM t", false, false),
            ("SELECT min(a) FROM t", false, false),
            ("SELECT a, MAX(b) FROM t GROUP BY a", false, false),
            ("SELECT distinct a FROM t", false, false),
            ("SELECT group_concat(a) FROM t", false, false),
            ("SELECT json_arrayagg(a) FROM t", false, false),
            ("SELECT a FROM t UNION SELECT b FROM u", false, false),
            ("SELECT row_number() OVER (ORDER BY a) FROM t", false, false),
            (
                "SELECT a FROM t WHERE b IN (SELECT b FROM u LIMIT 1)",
                false,
                false,
            ),
        ] {
            assert_eq!(may_be_compared(text, &[]), alone, "{text}");
            assert_eq!(may_be_compared(text, &in_full), grouped, "{text}");
        }
        let limited = |limit| may_be_compared("SELECT a FROM t", &[("sql_select_limit", limit)]);
        assert!(!limited("5"));
        assert!(limited("18446744073709551615"));
    }
}

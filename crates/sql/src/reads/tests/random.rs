//! Random statements over small tables: rows for which a reported condition does not hold must not matter.

use proptest::prelude::*;

use super::expression::{Choices, Expression, Value, operate, read as read_expression, write};
use super::*;
use crate::{Kind, Writes, writes};

const VALUES: [Value; 5] = [None, Some(-1), Some(0), Some(1), Some(2)];

/// A row of a table: `id` and `k`.
type Row = [Value; 2];

fn column_of(row: &Row, name: &str) -> Value {
    row[usize::from(!name.ends_with("id"))]
}

/// Whether a condition holds for a row of its table.
fn holds(condition: &Condition, out: &Conditions, text: &str, parameter: Value, row: &Row) -> bool {
    let name = String::from_utf8_lossy(&condition.column);
    let left = column_of(row, &name);
    let constants: Vec<Value> = out
        .constants(condition)
        .iter()
        .map(|constant| match constant.literal() {
            None => parameter,
            Some(literal) => {
                let value = constant.integer(literal.span.of(text.as_bytes()));
                value.map(|value| i64::try_from(value).unwrap())
            }
        })
        .collect();
    let compare = |operator: &str| operate(operator, left, constants[0]) == Some(1);
    match condition.comparison {
        Comparison::Equal => compare("="),
        Comparison::NullSafeEqual => compare("<=>"),
        Comparison::Less => compare("<"),
        Comparison::LessOrEqual => compare("<="),
        Comparison::Greater => compare(">"),
        Comparison::GreaterOrEqual => compare(">="),
        Comparison::Between => compare(">=") && operate("<=", left, constants[1]) == Some(1),
        Comparison::In => constants
            .iter()
            .any(|constant| operate("=", left, *constant) == Some(1)),
    }
}

/// Tokens as a text; blanks or none between those that may stand together.
fn join(tokens: &[String], choices: &mut Choices) -> String {
    let mut text = String::new();
    for token in tokens {
        let both_signs = text.ends_with(['-', '+', '!', '=', '<', '>', '&', '|', '?'])
            && token.starts_with(['-', '+', '!', '=', '<', '>', '&', '|', '?']);
        let word = |byte: Option<char>| byte.is_some_and(|byte| byte.is_alphanumeric());
        let both_words = word(text.chars().last()) && word(token.chars().next());
        // A word right before parentheses may be a call.
        let call = word(text.chars().last()) && token == "(";
        if both_signs || both_words || call || choices.below(2) == 0 {
            text.push(' ');
        }
        text.push_str(token);
    }
    text
}

/// What is told of a statement that is a function of its rows, or changes some of one table.
fn conditions(text: &str, mode: &LexMode) -> Conditions {
    let (statement, out) = read(text, mode);
    if statement.kind == Kind::Select {
        assert_eq!(out.unstable, None, "{text}");
        return out.conditions;
    }
    let mut out = Writes::default();
    writes(text.as_bytes(), mode, &statement, &mut out);
    assert_eq!(out.table, Some(0), "{text}");
    out.conditions
}

/// Every row that WHERE takes fulfils every condition. Gives how many conditions there were.
fn check_where(seed: u64) -> usize {
    let mut choices = Choices(seed);
    let mut tokens = Vec::new();
    write(&mut choices, &["id", "k", "t.id"], 2, &mut tokens);
    let parameter = VALUES[choices.below(5) as usize];
    let terms = join(&tokens, &mut choices);
    let expression = read_expression(&tokens, parameter);
    let verbs = [
        "SELECT * FROM t",
        "DELETE FROM t",
        "UPDATE t SET k = 1, id = 7",
    ];
    let verb = choices.one_of(&verbs);
    let end = match verb == verbs[0] {
        true => "",
        false => choices.one_of(&["", " LIMIT 1", " ORDER BY id = 6 AND k = 7"]),
    };
    let text = format!("{verb} WHERE {terms}{end}");
    let mut count = 0;
    for mode in both() {
        let conditions = conditions(&text, &mode);
        count += conditions.len();
        for id in VALUES {
            for k in VALUES {
                let row = [id, k];
                let taken = expression.holds(&|name| column_of(&row, name));
                for condition in &conditions {
                    let fine = !taken || holds(condition, &conditions, &text, parameter, &row);
                    assert!(fine, "{text} {row:?} {parameter:?} {condition:?}");
                }
            }
        }
    }
    count
}

/// Tables joined, as a tree.
enum Tree {
    Table(usize),
    Join {
        kind: &'static str,
        on: Vec<String>,
        sides: Box<[Tree; 2]>,
    },
}

fn tree(choices: &mut Choices, tables: &[usize]) -> Tree {
    let [only] = tables else {
        let at = 1 + choices.below(tables.len() as u64 - 1) as usize;
        let kinds = [
            "JOIN",
            "INNER JOIN",
            "STRAIGHT_JOIN",
            "LEFT JOIN",
            "RIGHT JOIN",
            "LEFT OUTER JOIN",
        ];
        let kind = kinds[choices.below(6) as usize];
        let names: Vec<String> = tables
            .iter()
            .flat_map(|table| [format!("t{table}.id"), format!("t{table}.k")])
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut on = Vec::new();
        write(choices, &names, 1, &mut on);
        let sides = [tree(choices, &tables[..at]), tree(choices, &tables[at..])];
        return Tree::Join {
            kind,
            on,
            sides: sides.into(),
        };
    };
    Tree::Table(*only)
}

fn written(tree: &Tree, choices: &mut Choices) -> String {
    match tree {
        Tree::Table(table) => format!("t{table}"),
        Tree::Join { kind, on, sides } => {
            let (left, right) = (written(&sides[0], choices), written(&sides[1], choices));
            format!("{left} {kind} {right} ON {}", join(on, choices))
        }
    }
}

/// Rows of all tables; none where an outer join has no partner, or the table is not part of it.
type Joined = Vec<[Option<Row>; 3]>;

fn joined_column(row: &[Option<Row>; 3], name: &str) -> Value {
    let table = usize::from(name.as_bytes()[1] - b'0');
    row[table].as_ref().and_then(|row| column_of(row, name))
}

fn evaluate(tree: &Tree, data: &[Vec<Row>; 3], parameter: Value) -> Joined {
    match tree {
        Tree::Table(table) => {
            let alone = |row: &Row| {
                let mut joined = [None; 3];
                joined[*table] = Some(*row);
                joined
            };
            data[*table].iter().map(alone).collect()
        }
        Tree::Join { kind, on, sides } => {
            let on = read_expression(on, parameter);
            let left = evaluate(&sides[0], data, parameter);
            let right = evaluate(&sides[1], data, parameter);
            if kind.starts_with("RIGHT") {
                return join_rows(&right, &left, &on, true);
            }
            join_rows(&left, &right, &on, kind.starts_with("LEFT"))
        }
    }
}

fn join_rows(left: &Joined, right: &Joined, on: &Expression, keeps_left: bool) -> Joined {
    let mut rows = Vec::new();
    for one in left {
        let before = rows.len();
        for other in right {
            let both = std::array::from_fn(|at| one[at].or(other[at]));
            if on.holds(&|name| joined_column(&both, name)) {
                rows.push(both);
            }
        }
        if keeps_left && rows.len() == before {
            rows.push(*one);
        }
    }
    rows
}

/// The answer is the same without the rows that do not fulfil the conditions on their table.
fn check_joins(seed: u64) -> usize {
    let mut choices = Choices(seed);
    let joined = tree(&mut choices, &[0, 1, 2]);
    let mut tokens = Vec::new();
    let columns = ["t0.id", "t0.k", "t1.id", "t1.k", "t2.id", "t2.k"];
    write(&mut choices, &columns, 1, &mut tokens);
    let parameter = VALUES[choices.below(5) as usize];
    let from = written(&joined, &mut choices);
    let text = format!("SELECT * FROM {from} WHERE {}", join(&tokens, &mut choices));
    let (statement, out) = read(&text, &mysql());
    assert_eq!(out.unstable, None, "{text}");
    assert_eq!(statement.tables.len(), 3);
    let expression = read_expression(&tokens, parameter);
    for _ in 0..3 {
        let mut row = || {
            let mut value = || VALUES[choices.below(5) as usize];
            [value(), value()]
        };
        let data: [Vec<Row>; 3] = std::array::from_fn(|_| (0..4).map(|_| row()).collect());
        let restricted: [Vec<Row>; 3] = std::array::from_fn(|at| {
            let matters = |row: &&Row| {
                out.conditions_on(at)
                    .all(|condition| holds(condition, &out.conditions, &text, parameter, row))
            };
            data[at].iter().filter(matters).copied().collect()
        });
        let answer = |data: &[Vec<Row>; 3]| {
            let mut rows = evaluate(&joined, data, parameter);
            rows.retain(|row| expression.holds(&|name| joined_column(row, name)));
            rows.sort_unstable();
            rows
        };
        assert_eq!(
            answer(&data),
            answer(&restricted),
            "{text} {parameter:?} {out:?}"
        );
    }
    out.conditions.len()
}

/// Enough of the random statements have conditions.
#[test]
fn random_statements_have_conditions() {
    let of_where: usize = (0..2000).map(check_where).sum();
    let of_joins: usize = (0..1000).map(check_joins).sum();
    assert!(of_where > 1000 && of_joins > 500, "{of_where} {of_joins}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

    #[test]
    fn conditions_hold_for_rows_that_where_takes(seed in any::<u64>()) {
        check_where(seed);
    }

}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(800) })]

    #[test]
    fn other_rows_do_not_matter(seed in any::<u64>()) {
        check_joins(seed);
    }
}

//! Expressions as the servers' grammar has them: made at random, read by precedence, evaluated with NULL. Shares nothing
//! with what it tests.

/// A number, or NULL.
pub(super) type Value = Option<i64>;

/// Where random choices come from.
pub(super) struct Choices(pub(super) u64);

impl Choices {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub(super) fn one_of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Writes an expression, token by token.
pub(super) fn write(choices: &mut Choices, columns: &[&str], depth: u32, out: &mut Vec<String>) {
    let mut writer = Writer {
        choices,
        columns,
        out,
    };
    writer.expression(depth);
}

struct Writer<'a> {
    choices: &'a mut Choices,
    columns: &'a [&'a str],
    out: &'a mut Vec<String>,
}

impl Writer<'_> {
    fn put(&mut self, token: &str) {
        self.out.push(token.to_owned());
    }

    fn chance(&mut self, of: u64) -> bool {
        self.choices.below(of) == 0
    }

    fn expression(&mut self, depth: u32) {
        self.negation(depth);
        while self.choices.below(5) < 3 {
            let operator = self
                .choices
                .one_of(&["AND", "AND", "AND", "AND", "&&", "AND", "OR", "||", "XOR"]);
            self.put(operator);
            self.negation(depth);
        }
    }

    fn negation(&mut self, depth: u32) {
        if self.choices.below(5) < 2 {
            return self.plain();
        }
        if self.chance(12) {
            self.put("NOT");
        }
        self.primary(depth);
        if self.chance(15) {
            self.put("IS");
            if self.chance(2) {
                self.put("NOT");
            }
            let truth = self.choices.one_of(&["TRUE", "FALSE"]);
            self.put(truth);
        }
    }

    /// What is likely to be a condition.
    fn plain(&mut self) {
        let column = self.choices.one_of(self.columns);
        let operator = self.choices.one_of(&["=", "=", "<=>", "<", ">="]);
        let constant = self.choices.one_of(&["0", "1", "2", "?"]);
        let tokens = match self.chance(4) {
            true => [constant, operator, column],
            false => [column, operator, constant],
        };
        for token in tokens {
            self.put(token);
        }
    }

    fn primary(&mut self, depth: u32) {
        match self.choices.below(8) {
            0 => return self.predicate(depth),
            1 if depth > 0 => return self.simple(depth),
            _ => {}
        }
        self.predicate(depth);
        loop {
            if self.chance(15) {
                self.put("IS");
                self.put("NULL");
                continue;
            }
            let operators = ["=", "=", "=", "<", ">", "<=", ">=", "<=>", "<>"];
            let operator = self.choices.one_of(&operators);
            self.put(operator);
            self.predicate(depth);
            if !self.chance(8) {
                return;
            }
        }
    }

    fn predicate(&mut self, depth: u32) {
        self.sum(depth);
        match self.choices.below(12) {
            0 => {
                if self.chance(4) {
                    self.put("NOT");
                }
                self.put("BETWEEN");
                self.sum(depth);
                self.put("AND");
                self.predicate(depth.saturating_sub(1));
            }
            1 => {
                if self.chance(4) {
                    self.put("NOT");
                }
                self.put("IN");
                self.put("(");
                self.sum(depth.saturating_sub(1));
                while self.chance(2) {
                    self.put(",");
                    self.sum(depth.saturating_sub(1));
                }
                self.put(")");
            }
            _ => {}
        }
    }

    fn sum(&mut self, depth: u32) {
        self.simple(depth);
        while self.chance(12) {
            let operator = self.choices.one_of(&["+", "-"]);
            self.put(operator);
            self.simple(depth);
        }
    }

    fn simple(&mut self, depth: u32) {
        match self.choices.below(16) {
            0..7 => {
                let column = self.choices.one_of(self.columns);
                self.put(column);
            }
            7..12 => {
                let number = self.choices.one_of(&["0", "1", "2", "3"]);
                self.put(number);
            }
            12 => self.put("?"),
            13 => {
                let sign = self.choices.one_of(&["-", "+", "!"]);
                self.put(sign);
                self.simple(depth);
            }
            14 if depth > 0 => {
                self.put("CASE");
                self.put("WHEN");
                self.expression(depth - 1);
                self.put("THEN");
                self.expression(depth - 1);
                self.put("ELSE");
                self.simple(depth - 1);
                self.put("END");
            }
            _ if depth > 0 => {
                self.put("(");
                self.expression(depth - 1);
                self.put(")");
            }
            _ => self.put("1"),
        }
    }
}

/// An expression, read.
pub(super) enum Expression {
    Column(String),
    Constant(Value),
    Not(Box<Expression>),
    Minus(Box<Expression>),
    Binary(String, Box<Expression>, Box<Expression>),
    /// Whether its truth is this one: TRUE, FALSE, or NULL for none.
    Is(Option<bool>, Box<Expression>),
    Between(Box<[Expression; 3]>),
    In(Box<Expression>, Vec<Expression>),
    Case(Box<[Expression; 3]>),
}

/// Reads tokens; `parameter` is what each `?` stands for.
pub(super) fn read(tokens: &[String], parameter: Value) -> Expression {
    let mut reader = Reader {
        tokens,
        at: 0,
        parameter,
    };
    let expression = reader.any(0);
    assert_eq!(reader.at, tokens.len(), "{tokens:?}");
    expression
}

struct Reader<'a> {
    tokens: &'a [String],
    at: usize,
    parameter: Value,
}

impl Reader<'_> {
    fn peek(&self) -> &str {
        self.tokens.get(self.at).map_or("", String::as_str)
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.peek() == token;
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, token: &str) {
        assert!(
            self.eat(token),
            "{token} at {} of {:?}",
            self.at,
            self.tokens
        );
    }

    /// OR (0), XOR (1), AND (2).
    fn any(&mut self, level: usize) -> Expression {
        const NAMES: [(&str, &[&str]); 3] = [
            ("OR", &["OR", "||"]),
            ("XOR", &["XOR"]),
            ("AND", &["AND", "&&"]),
        ];
        let Some((name, written)) = NAMES.get(level) else {
            return self.not();
        };
        let mut left = self.any(level + 1);
        while written.contains(&self.peek()) {
            self.at += 1;
            let right = self.any(level + 1);
            left = Expression::Binary((*name).to_owned(), left.into(), right.into());
        }
        left
    }

    fn not(&mut self) -> Expression {
        if self.eat("NOT") {
            return Expression::Not(self.not().into());
        }
        let operand = self.comparisons();
        if !self.eat("IS") {
            return operand;
        }
        let negated = self.eat("NOT");
        let truth = self.eat("TRUE");
        if !truth {
            self.expect("FALSE");
        }
        negate(negated, Expression::Is(Some(truth), operand.into()))
    }

    fn comparisons(&mut self) -> Expression {
        let mut left = self.predicate();
        loop {
            let operator = self.peek().to_owned();
            let is_null =
                operator == "IS" && self.tokens.get(self.at + 1).is_some_and(|t| t == "NULL");
            if is_null {
                self.at += 2;
                left = Expression::Is(None, left.into());
            } else if ["=", "<", ">", "<=", ">=", "<=>", "<>"].contains(&operator.as_str()) {
                self.at += 1;
                let right = self.predicate();
                left = Expression::Binary(operator, left.into(), right.into());
            } else {
                return left;
            }
        }
    }

    fn predicate(&mut self) -> Expression {
        let operand = self.sum();
        let negated = self.eat("NOT");
        if self.eat("BETWEEN") {
            let low = self.sum();
            self.expect("AND");
            let high = self.predicate();
            return negate(negated, Expression::Between([operand, low, high].into()));
        }
        if self.eat("IN") {
            self.expect("(");
            let mut list = vec![self.any(0)];
            while self.eat(",") {
                list.push(self.any(0));
            }
            self.expect(")");
            return negate(negated, Expression::In(operand.into(), list));
        }
        operand
    }

    fn sum(&mut self) -> Expression {
        let mut left = self.simple();
        while let operator @ ("+" | "-") = self.peek() {
            let operator = operator.to_owned();
            self.at += 1;
            let right = self.simple();
            left = Expression::Binary(operator, left.into(), right.into());
        }
        left
    }

    fn simple(&mut self) -> Expression {
        let token = self.peek().to_owned();
        self.at += 1;
        match token.as_str() {
            "(" => {
                let inner = self.any(0);
                self.expect(")");
                inner
            }
            "-" => Expression::Minus(self.simple().into()),
            "+" => self.simple(),
            "!" => Expression::Not(self.simple().into()),
            "?" => Expression::Constant(self.parameter),
            "CASE" => {
                self.expect("WHEN");
                let when = self.any(0);
                self.expect("THEN");
                let then = self.any(0);
                self.expect("ELSE");
                let otherwise = self.any(0);
                self.expect("END");
                Expression::Case([when, then, otherwise].into())
            }
            number if number.starts_with(|first: char| first.is_ascii_digit()) => {
                Expression::Constant(number.parse().ok())
            }
            column => Expression::Column(column.to_owned()),
        }
    }
}

fn negate(negated: bool, expression: Expression) -> Expression {
    match negated {
        true => Expression::Not(expression.into()),
        false => expression,
    }
}

fn truth(value: Value) -> Option<bool> {
    value.map(|value| value != 0)
}

fn value(truth: Option<bool>) -> Value {
    truth.map(i64::from)
}

/// AND of three values.
fn both(left: Option<bool>, right: Option<bool>) -> Option<bool> {
    match (left, right) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

fn opposite(truth: Option<bool>) -> Option<bool> {
    truth.map(|truth| !truth)
}

/// A comparison or another operator.
pub(super) fn operate(operator: &str, left: Value, right: Value) -> Value {
    let compare = |holds: fn(&i64, &i64) -> bool| Some(i64::from(holds(&left?, &right?)));
    match operator {
        "AND" => value(both(truth(left), truth(right))),
        "OR" => value(opposite(both(
            opposite(truth(left)),
            opposite(truth(right)),
        ))),
        "XOR" => Some(i64::from(truth(left)? != truth(right)?)),
        "=" => compare(i64::eq),
        "<>" => compare(i64::ne),
        "<" => compare(i64::lt),
        "<=" => compare(i64::le),
        ">" => compare(i64::gt),
        ">=" => compare(i64::ge),
        "<=>" => Some(i64::from(left == right)),
        "+" => Some(left?.wrapping_add(right?)),
        "-" => Some(left?.wrapping_sub(right?)),
        other => panic!("{other}"),
    }
}

impl Expression {
    /// Whether a WHERE with it takes the row.
    pub(super) fn holds(&self, column: &dyn Fn(&str) -> Value) -> bool {
        truth(self.of(column)) == Some(true)
    }

    fn of(&self, column: &dyn Fn(&str) -> Value) -> Value {
        match self {
            Expression::Column(name) => column(name),
            Expression::Constant(value) => *value,
            Expression::Not(inner) => value(opposite(truth(inner.of(column)))),
            Expression::Minus(inner) => inner.of(column).map(i64::wrapping_neg),
            Expression::Binary(operator, left, right) => {
                operate(operator, left.of(column), right.of(column))
            }
            Expression::Is(expected, inner) => {
                Some(i64::from(truth(inner.of(column)) == *expected))
            }
            Expression::Between(parts) => {
                let [operand, low, high] = &**parts;
                let operand = operand.of(column);
                let low = truth(operate(">=", operand, low.of(column)));
                value(both(low, truth(operate("<=", operand, high.of(column)))))
            }
            Expression::In(operand, list) => {
                let operand = operand.of(column);
                let mut found = Some(0);
                for item in list {
                    found = operate("OR", found, operate("=", operand, item.of(column)));
                }
                found
            }
            Expression::Case(parts) => {
                let [when, then, otherwise] = &**parts;
                match when.holds(column) {
                    true => then.of(column),
                    false => otherwise.of(column),
                }
            }
        }
    }
}

#[test]
fn expressions_are_read_by_precedence() {
    let of = |text: &str| {
        let tokens: Vec<String> = text.split(' ').map(str::to_owned).collect();
        read(&tokens, None).of(&|_| Some(7))
    };
    assert_eq!(of("1 OR 0 AND 0"), Some(1));
    assert_eq!(of("1 XOR 1 OR 1"), Some(1));
    assert_eq!(of("NOT 0 = 5"), Some(1));
    assert_eq!(of("a BETWEEN 1 AND 2 = 0"), Some(1));
    assert_eq!(of("3 = 3 = 1"), Some(1));
    assert_eq!(of("a = ? OR 1"), Some(1));
    assert_eq!(of("a IN ( 1 , ? )"), None);
    assert_eq!(of("? IS NULL = 1"), Some(1));
    assert_eq!(of("2 - 1 - 1"), Some(0));
}

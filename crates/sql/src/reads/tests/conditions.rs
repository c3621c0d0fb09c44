//! Which conditions are told of texts, and what looks like one and is none.

use super::*;

#[test]
fn conditions_of_where() {
    let table: &[(&str, &[&str])] = &[
        ("SELECT * FROM t", &[]),
        ("SELECT * FROM t WHERE id = 5", &["t.id = 5"]),
        ("SELECT * FROM t WHERE ID=5;", &["t.id = 5"]),
        ("SELECT * FROM t WHERE `Id` = 5", &["t.id = 5"]),
        ("SELECT * FROM t WHERE 5 = id", &["t.id = 5"]),
        ("SELECT * FROM t WHERE t.id = 5", &["t.id = 5"]),
        ("SELECT * FROM db.t WHERE db.t.id = 5", &["t.id = 5"]),
        ("SELECT * FROM t WHERE db.t.id = 5", &["t.id = 5"]),
        ("SELECT * FROM db.t WHERE other.t.id = 5", &[]),
        ("SELECT * FROM t AS x WHERE x.id = 5", &["t.id = 5"]),
        ("SELECT * FROM t x WHERE t.id = 5", &[]),
        ("SELECT * FROM t `x` WHERE x.id = -5", &["t.id = -5"]),
        (
            "SELECT * FROM t WHERE id = - 5 AND k = +3",
            &["t.id = -5", "t.k = 3"],
        ),
        (
            "SELECT * FROM t WHERE id = ? AND k > ?",
            &["t.id = ?0", "t.k > ?1"],
        ),
        ("SELECT ? FROM t WHERE id = ? LIMIT ?", &["t.id = ?1"]),
        ("SELECT * FROM t WHERE id <=> 5", &["t.id <=> 5"]),
        (
            "SELECT * FROM t WHERE id<5 && k<=6",
            &["t.id < 5", "t.k <= 6"],
        ),
        (
            "SELECT * FROM t WHERE id>5 AND k>=6",
            &["t.id > 5", "t.k >= 6"],
        ),
        (
            "SELECT * FROM t WHERE 5 < id AND 6 >= k",
            &["t.id > 5", "t.k <= 6"],
        ),
        ("SELECT * FROM t WHERE id <-5", &["t.id < -5"]),
        (
            "SELECT * FROM t WHERE id BETWEEN 1 AND 9",
            &["t.id between 1,9"],
        ),
        (
            "SELECT * FROM t WHERE id BETWEEN ? AND -1 AND k = 3",
            &["t.id between ?0,-1", "t.k = 3"],
        ),
        (
            "SELECT * FROM t WHERE id IN (1, ?, 'x')",
            &["t.id in 1,?0,'x'"],
        ),
        (
            "SELECT * FROM t WHERE id IN (1) AND (k = 2)",
            &["t.id in 1", "t.k = 2"],
        ),
        (
            "SELECT * FROM t WHERE ((id = 5 AND (k = 6)))",
            &["t.id = 5", "t.k = 6"],
        ),
        (
            "SELECT * FROM t WHERE id = 'x' AND k = 0x1F AND l = x'00'",
            &["t.id = 'x'", "t.k = 0x1F", "t.l = x'00'"],
        ),
        (
            "SELECT * FROM t WHERE (a = 1 OR b = 2) AND id = 5",
            &["t.id = 5"],
        ),
        (
            "SELECT * FROM t WHERE id = 5 AND (a OR b) AND f IS NULL",
            &["t.id = 5"],
        ),
        ("SELECT * FROM t WHERE NOT id = 5 AND k = 6", &["t.k = 6"]),
        ("SELECT * FROM t WHERE a = b AND k = 6", &["t.k = 6"]),
        (
            "SELECT * FROM t WHERE a BETWEEN b AND id = 5 AND k = 6",
            &["t.k = 6"],
        ),
        (
            "SELECT * FROM t WHERE a NOT BETWEEN 1 AND id = 5 AND k = 6",
            &["t.k = 6"],
        ),
        (
            "SELECT * FROM t WHERE a BETWEEN 1 AND b BETWEEN 2 AND id = 5 AND k = 6",
            &["t.k = 6"],
        ),
        (
            "SELECT * FROM t WHERE a LIKE 'x' ESCAPE '!' AND id = 5",
            &["t.id = 5"],
        ),
        (
            "SELECT * FROM t WHERE id = 5 AND CASE WHEN a AND k = 6 AND b THEN 1 END AND l = 7",
            &["t.id = 5"],
        ),
        (
            "SELECT * FROM t WHERE id = 5 AND EXISTS (SELECT 1 FROM u WHERE u.id = 6 OR t.k = 3)",
            &["t.id = 5"],
        ),
        (
            "SELECT * FROM t WHERE id = 5 AND a IN (SELECT b FROM u WHERE k = 6)",
            &["t.id = 5"],
        ),
        (
            "SELECT * FROM t WHERE id = 5 AND a = (SELECT max(id) FROM t)",
            &["t.id = 5"],
        ),
        (
            "SELECT a FROM t WHERE id = 5 GROUP BY b HAVING c = 6 ORDER BY d LIMIT 1",
            &["t.id = 5"],
        ),
        (
            "SELECT a FROM t WHERE id = 5 ORDER BY id = 6",
            &["t.id = 5"],
        ),
        ("SELECT a FROM t USE INDEX (i) WHERE id = 5", &["t.id = 5"]),
        (
            "SELECT a FROM t x FORCE INDEX FOR ORDER BY (i) IGNORE KEY (j) WHERE id = 5",
            &["t.id = 5"],
        ),
        (
            "SELECT a FROM t PARTITION (p) AS x WHERE x.id = 5",
            &["t.id = 5"],
        ),
        (
            "SELECT (SELECT 1 FROM u WHERE u.id = 9), a FROM t WHERE id = 5",
            &["t.id = 5"],
        ),
        (
            "SELECT extract(DAY FROM d) FROM t WHERE id = 5",
            &["t.id = 5"],
        ),
        (
            "SELECT count(*) OVER (PARTITION BY a) FROM t WHERE id = 5",
            &["t.id = 5"],
        ),
        (
            "WITH c AS (SELECT 1 AS id) SELECT * FROM t WHERE id = 5",
            &["t.id = 5"],
        ),
        (
            "WITH c AS (SELECT 1 AS id) SELECT * FROM c, t WHERE c.id = 6 AND t.id = 5",
            &["t.id = 5"],
        ),
        // A quoted keyword is a name.
        ("SELECT * FROM t WHERE `true` = 5", &["t.true = 5"]),
    ];
    for mode in both() {
        for (text, expected) in table {
            assert_eq!(told(text, &mode), *expected, "{text}");
        }
    }
}

/// Texts that look as if they fixed `id`.
#[test]
fn what_is_no_condition() {
    let table = [
        "id = 5 OR k = 6",
        "id = 5 AND k = 6 OR l = 7",
        "l = 7 OR id = 5 AND k = 6",
        "id = 5 || k",
        "id = 5 AND k || l",
        "id = 5 XOR k",
        "k XOR id = 5",
        "NOT id = 5",
        "! id = 5",
        "NOT (id = 5)",
        "!(id = 5)",
        "-id = 5",
        "+id = 5",
        "~id = 5",
        "-(id = 5)",
        "BINARY id = 5",
        "id = 5 + 1",
        "id = 5 - 1",
        "id = 5 * 2",
        "id = 5 / 2",
        "id = 5 % 2",
        "id = 5 DIV 2",
        "id = 5 MOD 2",
        "id = 5 | 2",
        "id = 5 & 2",
        "id = 5 << 2",
        "id = 5 ^ 2",
        "id = 5 = 1",
        "1 = id = 5",
        "a = id = 5",
        "id = 5 IS NULL",
        "id = 5 IS NOT TRUE",
        "id = 5 <=> 0",
        "id = 5 IN (0)",
        "id = 5 LIKE 0",
        "id = 5 BETWEEN 0 AND 0",
        "id = 5 COLLATE utf8mb4_bin",
        "id = -k",
        "id = --5",
        "id = -?",
        "id = 5.0",
        "id = 5e0",
        "id = b'101'",
        "id = N'x'",
        "id = _binary'x'",
        "id = 'a' 'b'",
        "id = NULL",
        "id = TRUE",
        "TRUE = 5",
        "NULL = 5",
        "id = DATE '2024-01-01'",
        "id <> 5",
        "id != 5",
        "5 <> id",
        "id << 5",
        "id >> 5",
        "id < = 5",
        "id < => 5",
        "id = k",
        "id = (5)",
        "(id) = 5",
        "(id = 5) = 0",
        "(id = 5) IS FALSE",
        "(id = 5) + 1",
        "(id = 5 AND k = 6) = 0",
        "((id = 5) = 0)",
        "(id = 5, k) = (0, 1)",
        "(k, id = 5) = (1, 0)",
        "ROW(id = 5, 1) = ROW(0, 1)",
        "(id, k) = (5, 6)",
        "(id = 5 OR k)",
        "((id = 5) OR k)",
        "(id = 5) OR k",
        "(id = 5 AND a) AND b OR c",
        "id NOT IN (5)",
        "id IN (5, 6 + 1)",
        "id IN (5, NULL)",
        "id IN (SELECT 5)",
        "id IN (5) = 0",
        "id IN ()",
        "5 IN (id)",
        "5 BETWEEN id AND 6",
        "id NOT BETWEEN 1 AND 2",
        "id BETWEEN 1 AND 2 + 3",
        "id BETWEEN 1 + 1 AND 5",
        "id BETWEEN 1 AND k",
        "id BETWEEN 1 AND 5 = 0",
        "k BETWEEN 1 AND id = 5",
        "id BETWEEN 1 AND 5 OR k",
        "CASE WHEN a AND id = 5 AND b THEN 0 ELSE 1 END",
        "CASE WHEN a AND (id = 5) AND b THEN 0 ELSE 1 END",
        "k = CASE WHEN a AND id = 5 AND b THEN 0 ELSE 1 END",
        "5 = CASE WHEN a AND id = 5 AND b THEN 0 ELSE 1 END",
        "if(a AND id = 5 AND b, 0, 1)",
        "EXISTS (SELECT 1 FROM u WHERE id = 5)",
        "abs(id) = 5",
        "id + 0 = 5",
        "id->'$.a' = 5",
        "id.5 = 5",
        "x.id = 5",
        "t.x.id.y = 5",
        "id SOUNDS LIKE 5",
        "id REGEXP 5",
        "id = ANY (SELECT 5)",
        "x = qualify OR id = 5",
        "id = 5 AND x = window OR y",
        "id = 5 AND x = qualify OR y",
        "id = 5 GROUP BY 1 UNION SELECT 1 FROM t",
        "id = 5 UNION SELECT 1 FROM t WHERE id = 5",
        "id = 5 EXCEPT SELECT 1 FROM t",
        "é = 5",
        "`é` = 5",
    ];
    for mode in both() {
        for end in table {
            let text = format!("SELECT * FROM t WHERE {end}");
            let (statement, out) = read(&text, &mode);
            let about_id: Vec<_> = out
                .conditions
                .iter()
                .filter(|condition| condition.column.as_slice() != b"k")
                .map(|condition| in_words(condition, &statement, &out, &text))
                .collect();
            assert!(about_id.is_empty(), "{text} {about_id:?}");
        }
    }
    let texts = [
        "SELECT 1 FROM t UNION SELECT 1 FROM t WHERE id = 5",
        "(SELECT 1 FROM t WHERE id = 5)",
        "(SELECT 1 FROM t) UNION SELECT 1 FROM t WHERE id = 5",
        "WITH c AS (SELECT 1) (SELECT 1 FROM t) UNION SELECT 1 FROM t WHERE id = 5",
        "WITH c AS (SELECT 1 FROM t WHERE id = 5) SELECT * FROM c",
        "WITH c AS (SELECT 1) SELECT * FROM c WHERE id = 5",
        "WITH t AS (SELECT 1) SELECT * FROM t WHERE id = 5",
        "SELECT * FROM (SELECT * FROM t WHERE id = 5) d",
        "SELECT * FROM (SELECT * FROM t) d WHERE id = 5",
        "SELECT * FROM (SELECT * FROM t) d WHERE d.id = 5",
        "SELECT * FROM t, u WHERE id = 5",
        "SELECT * FROM t JOIN u WHERE id = 5",
        "SELECT * FROM t JOIN (SELECT 1) d WHERE id = 5",
        "SELECT * FROM t, t AS T WHERE t.id = 5",
        "SELECT * FROM a.t, b.t WHERE t.id = 5",
        "SELECT * FROM (t) WHERE id = 5",
        "SELECT * FROM (t, u) WHERE t.id = 5",
        "SELECT * FROM t NATURAL JOIN u WHERE t.id = 5",
        "SELECT * FROM t LEFT JOIN u ON t.id = 5",
        "SELECT * FROM t LEFT JOIN u ON u.id = 5",
        "SELECT * FROM t RIGHT JOIN u ON t.id = 5",
        "SELECT * FROM t LEFT JOIN u JOIN v ON v.id = 5 ON u.id = 5",
        "SELECT * FROM t LEFT JOIN u ON t.a = u.a WHERE u.id <=> ?",
        "SELECT * FROM t GROUP BY a HAVING id = 5",
        "SELECT id = 5 FROM t",
        "TABLE t",
    ];
    for mode in both() {
        for text in texts {
            let (_, out) = read(text, &mode);
            assert_eq!(out.conditions.len(), 0, "{text}");
        }
    }
}

#[test]
fn conditions_of_joins() {
    let table: &[(&str, &[&str])] = &[
        (
            "SELECT * FROM t, u WHERE t.id = 5 AND u.id = 6",
            &["t.id = 5", "u.id = 6"],
        ),
        (
            "SELECT * FROM t JOIN u ON t.a = u.a WHERE t.id = 5",
            &["t.id = 5"],
        ),
        (
            "SELECT * FROM t JOIN u ON t.a = u.a AND u.id = 6 WHERE t.id = 5",
            &["u.id = 6", "t.id = 5"],
        ),
        (
            "SELECT * FROM t INNER JOIN u ON (u.id = 6) CROSS JOIN v WHERE v.id = 7",
            &["u.id = 6", "v.id = 7"],
        ),
        ("SELECT * FROM t STRAIGHT_JOIN u ON u.id = 6", &["u.id = 6"]),
        (
            "SELECT * FROM t JOIN u USING (id) WHERE t.id = 5",
            &["t.id = 5"],
        ),
        (
            "SELECT * FROM t x JOIN t y ON x.a = y.a WHERE x.id = 5 AND y.id = 6",
            &["t.id = 5", "t.id = 6"],
        ),
        (
            "SELECT * FROM a.t JOIN b.t ON a.t.x = b.t.x WHERE a.t.id = 5 AND b.t.id = 6",
            &["t.id = 5", "t.id = 6"],
        ),
        (
            "SELECT * FROM t JOIN (SELECT 1 AS a) AS d ON t.id = 5 AND d.a = 6",
            &["t.id = 5"],
        ),
        (
            "SELECT * FROM t LEFT JOIN u ON t.a = u.a WHERE t.id = 5",
            &["t.id = 5"],
        ),
        (
            "SELECT * FROM t LEFT JOIN u ON t.a = u.a WHERE u.id = 5",
            &["u.id = 5"],
        ),
        (
            "SELECT * FROM t LEFT OUTER JOIN u ON t.a = u.a WHERE t.id <=> 5 AND u.id <=> ?",
            &["t.id <=> 5"],
        ),
        (
            "SELECT * FROM t RIGHT JOIN u ON t.a = u.a WHERE t.id = 5",
            &["t.id = 5"],
        ),
        (
            "SELECT * FROM t LEFT JOIN u ON t.id = 8 JOIN v ON v.id = 5 WHERE t.id = 6",
            &["v.id = 5", "t.id = 6"],
        ),
        (
            "SELECT * FROM t LEFT JOIN u USING (a) WHERE t.id = 5",
            &["t.id = 5"],
        ),
        (
            "SELECT * FROM t JOIN u ON left(t.a, 1) = u.a LEFT JOIN v ON v.a = u.a WHERE t.id = 5",
            &["t.id = 5"],
        ),
        (
            "SELECT * FROM t JOIN u ON t.a = u.a AND t.b OR t.id = 5 WHERE u.id = 6",
            &["u.id = 6"],
        ),
        (
            "SELECT * FROM t, JSON_TABLE(t.j, '$[*]' COLUMNS(a INT PATH '$')) jt WHERE t.id = 5 AND jt.a = 6",
            &["t.id = 5"],
        ),
    ];
    for mode in both() {
        for (text, expected) in table {
            assert_eq!(told(text, &mode), *expected, "{text}");
        }
    }
}

/// A table that is named twice has conditions only where they stand.
#[test]
fn conditions_are_of_one_naming() {
    let text = "SELECT * FROM u, t WHERE t.id = 5 AND t.a IN (SELECT b FROM t)";
    let (statement, out) = read(text, &mysql());
    assert_eq!(statement.tables.len(), 3);
    let counts: Vec<usize> = (0..3)
        .map(|table| out.conditions_on(table).count())
        .collect();
    assert_eq!(counts, [0, 1, 0]);
}

#[test]
fn constants_have_values() {
    let text = "SELECT 1, 'x' FROM t WHERE a = 'it''s' AND b = 0xABC AND c = x'00fF' AND d = 340282366920938463463374607431768211456 \
                AND e = 'a\\n' AND f = \"q\" AND g = X'0' AND h = ?";
    let (_, out) = read(text, &mysql());
    let values: Vec<_> = out
        .conditions
        .iter()
        .map(|condition| {
            let constant = out.constants(condition)[0];
            let literal = constant.literal();
            let written = literal.map_or(&b""[..], |literal| literal.span.of(text.as_bytes()));
            let bytes = constant.bytes(written).map(|bytes| bytes.to_vec());
            (
                literal.map(|literal| literal.place),
                bytes,
                constant.integer(written),
            )
        })
        .collect();
    assert_eq!(
        values,
        [
            (Some(2), Some(b"it's".to_vec()), None),
            (Some(3), Some(vec![0x0A, 0xBC]), None),
            (Some(4), Some(vec![0x00, 0xFF]), None),
            (Some(5), None, None),
            (Some(6), None, None),
            (Some(7), Some(b"q".to_vec()), None),
            (Some(8), None, None),
            (None, None, None),
        ]
    );
    assert_eq!(out.parameters, 1);
    let digits = Literal {
        span: Span::default(),
        place: 0,
    };
    let most = Constant::Integer {
        negative: true,
        digits,
    };
    assert_eq!(most.integer(&[b'9'; 38]), Some(1 - 10_i128.pow(38)));
    assert_eq!(most.integer(&[b'9'; 39]), None);
    assert_eq!(most.integer(b"1a"), None);
    assert_eq!(most.integer(b""), None);
}

#[test]
fn long_lists_and_deep_groups_are_passed_over() {
    let mode = mysql();
    let list = |len: usize| {
        let items = vec!["7"; len].join(",");
        told(
            &format!("SELECT * FROM t WHERE id IN ({items}) AND k = 1"),
            &mode,
        )
        .len()
    };
    assert_eq!((list(256), list(257)), (2, 1));
    let deep = |depth: usize| {
        let (open, close) = ("(".repeat(depth), ")".repeat(depth));
        told(
            &format!("SELECT * FROM t WHERE {open}id = 5{close} AND k = 1"),
            &mode,
        )
        .len()
    };
    assert_eq!((deep(16), deep(17), deep(50_000)), (2, 1, 1));
    let many = vec!["id = 5"; 200].join(" AND ");
    assert_eq!(
        told(&format!("SELECT * FROM t WHERE {many}"), &mode).len(),
        64
    );
}

/// The answer is the same for all values of a shape.
#[test]
fn values_change_nothing() {
    let texts = [
        "SELECT a FROM t WHERE id = 5 AND b IN (1, 'x') LIMIT 9",
        "SELECT a FROM t WHERE id = 4711 AND b IN (22222, '') LIMIT 10",
    ];
    let [one, other] = texts.map(|text| {
        let (_, out) = read(text, &mysql());
        let places: Vec<_> = out
            .conditions
            .constants
            .iter()
            .map(|c| c.literal().unwrap().place)
            .collect();
        let columns: Vec<_> = out
            .conditions
            .iter()
            .map(|c| (c.table, c.column.clone(), c.comparison))
            .collect();
        (places, columns)
    });
    assert_eq!(one, other);
    assert_eq!(one.0, [0, 1, 2]);
}

/// A term that ends the walk is still taken to its end.
#[test]
fn terms_of_words_that_end_the_walk() {
    for word in ["sql_no_cache", "match", "sysdate", "current_date"] {
        let text = format!("SELECT * FROM t WHERE a = 1 AND b = 2 AND 5 = {word} AND c = 3");
        let (_, out) = read(&text, &mariadb());
        assert!(out.unstable.is_some(), "{text}");
        assert!(out.conditions.is_empty(), "{text}");
    }
}

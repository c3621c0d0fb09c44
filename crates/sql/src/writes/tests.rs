//! Texts with what must be said of them.

use super::*;
use crate::{Comparison, Family, Span, classify};

fn mysql() -> LexMode {
    LexMode::new(Family::MySql, 90_704)
}

fn mariadb() -> LexMode {
    LexMode::new(Family::MariaDb, 101_119)
}

fn both() -> [LexMode; 2] {
    [mysql(), mariadb()]
}

fn read(text: &str, mode: &LexMode) -> (Statement, Writes) {
    let mut statement = Statement::default();
    classify(text.as_bytes(), mode, &mut statement);
    // What it said before changes nothing.
    let mut out = Writes::default();
    let before = "INSERT INTO b (x, y) VALUES (1, 2), (3, 4) ON DUPLICATE KEY UPDATE z = 1";
    let mut other = Statement::default();
    classify(before.as_bytes(), &mysql(), &mut other);
    writes(before.as_bytes(), &mysql(), &other, &mut out);
    assert_eq!(out.rows(), 2);
    writes(text.as_bytes(), mode, &statement, &mut out);
    (statement, out)
}

fn constant(constant: &Constant, text: &str) -> String {
    let of = |span: Span| &text[span.start as usize..span.end as usize];
    match constant {
        Constant::Parameter(place) => format!("?{place}"),
        Constant::Integer { digits, negative } => {
            let sign = if *negative { "-" } else { "" };
            format!("{sign}{}", of(digits.span))
        }
        Constant::Text(literal) | Constant::Hex(literal) => of(literal.span).to_owned(),
    }
}

/// All that is told, in words: `t | id = 5 | set v | (id) 5,_ | replaces`. Nothing where it was not understood.
fn told(text: &str, mode: &LexMode) -> String {
    let (statement, out) = read(text, mode);
    let Some(table) = out.table else {
        assert_eq!(out, Writes::default(), "{text}");
        return String::new();
    };
    let name = |name: &ColumnName| String::from_utf8_lossy(name).into_owned();
    let names = |all: &[ColumnName]| all.iter().map(name).collect::<Vec<_>>().join(",");
    let table_name = statement.tables[usize::from(table)].name;
    let mut words = vec![String::from_utf8_lossy(table_name.of(text.as_bytes())).into_owned()];
    for condition in &out.conditions {
        assert_eq!(condition.table, table, "{text}");
        let comparison = match condition.comparison {
            Comparison::Equal => "=",
            Comparison::NullSafeEqual => "<=>",
            Comparison::Less => "<",
            Comparison::LessOrEqual => "<=",
            Comparison::Greater => ">",
            Comparison::GreaterOrEqual => ">=",
            Comparison::Between => "between",
            Comparison::In => "in",
        };
        let constants = out.constants(condition).iter();
        let constants: Vec<_> = constants.map(|one| constant(one, text)).collect();
        let column = name(&condition.column);
        words.push(format!("{column} {comparison} {}", constants.join(",")));
    }
    if !out.assigned.is_empty() {
        words.push(format!("set {}", names(&out.assigned)));
    }
    for at in 0..out.rows() {
        let values = out.row(at).iter();
        let values: Vec<_> = values
            .map(|value| {
                value
                    .as_ref()
                    .map_or("_".to_owned(), |one| constant(one, text))
            })
            .collect();
        words.push(format!("({}) {}", names(&out.columns), values.join(",")));
    }
    assert!(out.rows() > 0 || out.columns.is_empty(), "{text}");
    if out.replaces {
        words.push("replaces".to_owned());
    }
    words.join(" | ")
}

fn check(modes: &[LexMode], table: &[(&str, &str)]) {
    for mode in modes {
        for (text, wanted) in table {
            assert_eq!(told(text, mode), *wanted, "{text} {mode:?}");
        }
    }
}

#[test]
fn updates() {
    check(
        &both(),
        &[
            ("UPDATE t SET v = 1", "t | set v"),
            ("UPDATE t SET v = 1 WHERE id = 5", "t | id = 5 | set v"),
            ("update T set V=1 where ID=5;", "T | id = 5 | set v"),
            (
                "UPDATE t SET v = 1 WHERE id = 5 ; -- x",
                "t | id = 5 | set v",
            ),
            (
                "/* a */UPDATE/* b */t/* c */SET/**/v=1# d\nWHERE/*e*/id/*f*/=/*g*/5",
                "t | id = 5 | set v",
            ),
            (
                "UPDATE t SET a = 1, b = b + 1, c = ? WHERE id = ?",
                "t | id = ?1 | set a,b,c",
            ),
            ("UPDATE t SET id = 6 WHERE id = 5", "t | id = 5 | set id"),
            (
                "UPDATE t SET v = 'it''s, WHERE id = 7' WHERE id = 5",
                "t | id = 5 | set v",
            ),
            (
                "UPDATE t SET v = 'a\\' WHERE id = 7' WHERE id = -5",
                "t | id = -5 | set v",
            ),
            (
                "UPDATE t SET v = now(), w = if(a, b, c) WHERE id = 5",
                "t | id = 5 | set v,w",
            ),
            (
                "UPDATE t SET v = CASE WHEN a = 1 AND b THEN 2 ELSE 3 END, w = 1 WHERE id = 5",
                "t | id = 5 | set v,w",
            ),
            (
                "UPDATE t SET v = (SELECT max(x) FROM u WHERE id = 9), w = 1 WHERE id = 5",
                "t | id = 5 | set v,w",
            ),
            (
                "UPDATE t SET v = 1 WHERE id IN (SELECT id FROM u) AND k < 3",
                "t | k < 3 | set v",
            ),
            (
                "UPDATE t SET v = 1 WHERE id IN (1, ?, 3)",
                "t | id in 1,?0,3 | set v",
            ),
            (
                "UPDATE t SET v = 1 WHERE id BETWEEN 1 AND 3 AND k = 0x1F",
                "t | id between 1,3 | k = 0x1F | set v",
            ),
            ("UPDATE t SET v = 1 WHERE id = 5 OR 1", "t | set v"),
            ("UPDATE t SET v = 1 WHERE id = 5 || 1", "t | set v"),
            (
                "UPDATE t SET v = 1 WHERE id = 5 AND v = 3",
                "t | id = 5 | v = 3 | set v",
            ),
            (
                "UPDATE t SET v = 1 WHERE id = 5 AND now() > d",
                "t | id = 5 | set v",
            ),
            ("UPDATE t SET v = 1 WHERE NOT id = 5", "t | set v"),
            ("UPDATE t SET v = 1 WHERE id = 5 + 1", "t | set v"),
            ("UPDATE t SET v = 1 WHERE id = 'a' 'b'", "t | set v"),
            (
                "UPDATE t SET v = 1 WHERE id = @a AND k = 1",
                "t | k = 1 | set v",
            ),
            (
                "UPDATE t SET v = 1 WHERE @a = 5 AND @@sql_mode = 'x' AND k = 1",
                "t | k = 1 | set v",
            ),
            (
                "UPDATE t SET v = 1 WHERE current_date = 5 AND `current_date` = 6",
                "t | current_date = 6 | set v",
            ),
            (
                "UPDATE t SET v = @a WHERE id = 5 ORDER BY k DESC LIMIT 3",
                "t | id = 5 | set v",
            ),
            ("UPDATE t SET v = 1 ORDER BY id LIMIT 1", "t | set v"),
            ("UPDATE t SET v = 1 LIMIT ?", "t | set v"),
            (
                "UPDATE LOW_PRIORITY IGNORE t SET v = 1 WHERE id = 5",
                "t | id = 5 | set v",
            ),
            (
                "UPDATE db.t SET db.t.v = 1, t.w = 2 WHERE db.t.id = 5",
                "t | id = 5 | set v,w",
            ),
            ("UPDATE db.t SET v = 1 WHERE other.t.id = 5", "t | set v"),
            (
                "UPDATE `d``b`.`t` SET `V a` = 1 WHERE `Id` = 5",
                "`t` | id = 5 | set v a",
            ),
            (
                "UPDATE t AS x SET x.v = 1 WHERE x.id = 5",
                "t | id = 5 | set v",
            ),
            ("UPDATE t x SET x.v = 1 WHERE t.id = 5", "t | set v"),
            (
                "UPDATE t x USE INDEX (i) SET v = 1 WHERE id = 5",
                "t | id = 5 | set v",
            ),
            (
                "UPDATE t IGNORE INDEX (i) SET v = 1 WHERE id = 5",
                "t | id = 5 | set v",
            ),
            (
                "UPDATE t SET v = last_insert_id(v + 1) WHERE id = 5",
                "t | id = 5 | set v",
            ),
            (
                "UPDATE t SET v = default, w = default(v) WHERE id = 5",
                "t | id = 5 | set v,w",
            ),
            ("UPDATE t SET v = 1 WHERE \"id\" = 5", "t | set v"),
        ],
    );
}

#[test]
fn deletes() {
    check(
        &both(),
        &[
            ("DELETE FROM t", "t"),
            ("DELETE FROM t WHERE id = 5", "t | id = 5"),
            (
                "DELETE LOW_PRIORITY QUICK IGNORE FROM db.t WHERE (id = 5) AND ((k >= ?))",
                "t | id = 5 | k >= ?0",
            ),
            (
                "DELETE FROM t WHERE 5 > id ORDER BY k LIMIT 1;",
                "t | id < 5",
            ),
            (
                "DELETE FROM t WHERE id = 5 AND EXISTS (SELECT 1 FROM u WHERE u.id = t.id OR 1)",
                "t | id = 5",
            ),
            ("DELETE FROM t WHERE id = 5 AND k NOT IN (1)", "t | id = 5"),
            (
                "DELETE FROM t WHERE id <=> ? AND k IS NULL",
                "t | id <=> ?0",
            ),
            ("DELETE FROM t WHERE id = 5 XOR k = 1", "t"),
            ("DELETE FROM t AS x WHERE x.id = 5", "t | id = 5"),
        ],
    );
    check(
        &[mariadb()],
        &[
            ("DELETE FROM t RETURNING *", "t"),
            (
                "DELETE FROM t WHERE id = 5 RETURNING id, k = 3",
                "t | id = 5",
            ),
            ("DELETE FROM t WHERE rownum = 3 AND id = 5", "t | id = 5"),
        ],
    );
    check(
        &[mysql()],
        &[
            (
                "DELETE FROM t WHERE id = 5 AND returning = 3",
                "t | id = 5 | returning = 3",
            ),
            (
                "DELETE /*+ NO_RANGE_OPTIMIZATION(t) */ FROM t WHERE id = 5",
                "t | id = 5",
            ),
        ],
    );
}

#[test]
fn inserts() {
    check(
        &both(),
        &[
            ("INSERT INTO t VALUES (1, 'a')", "t | () 1,'a'"),
            ("INSERT t VALUES (1)", "t | () 1"),
            (
                "INSERT INTO t (id, V) VALUES (1, 'it''s, (')",
                "t | (id,v) 1,'it''s, ('",
            ),
            (
                "INSERT INTO t(id,v)VALUES(-1,?),( +2 , ? );",
                "t | (id,v) -1,?0 | (id,v) 2,?1",
            ),
            (
                "INSERT INTO db.`t` (`Id`, t.v, db.t.w) VALUE (1, 2, 3)",
                "`t` | (id,v,w) 1,2,3",
            ),
            (
                "INSERT LOW_PRIORITY IGNORE INTO t (id) VALUES (0x1F), (x'00')",
                "t | (id) 0x1F | (id) x'00'",
            ),
            ("INSERT DELAYED t VALUES (1)", "t | () 1"),
            ("INSERT HIGH_PRIORITY t VALUES (1)", "t | () 1"),
            ("INSERT INTO t () VALUES ()", "t | () "),
            ("INSERT INTO t VALUES (), ()", "t | ()  | () "),
            ("INSERT INTO t () VALUES (1, 2)", "t | () 1,2"),
            (
                "INSERT INTO t (a, b, c, d, e, f, g) VALUES (NULL, DEFAULT, 1 + 1, now(), 1.5, 'a' 'b', (1))",
                "t | (a,b,c,d,e,f,g) _,_,_,_,_,_,_",
            ),
            (
                "INSERT INTO t (a, b, c, d, e, f, g) VALUES (- -1, _utf8mb4'x', N'x', b'01', 1e3, @a, TRUE)",
                "t | (a,b,c,d,e,f,g) _,_,_,_,_,_,_",
            ),
            (
                "INSERT INTO t (a, b, c) VALUES (f, concat('a', 'b'), (SELECT max(x) FROM u WHERE y = 3))",
                "t | (a,b,c) _,_,_",
            ),
            (
                "INSERT INTO t (a, b) VALUES (1 OR 2, 5 COLLATE binary)",
                "t | (a,b) _,_",
            ),
            ("INSERT INTO t (a) VALUES (DEFAULT(a))", "t | (a) _"),
            // Too many or too few: a server refuses them.
            ("INSERT INTO t (a) VALUES (1, 2)", "t"),
            ("INSERT INTO t (a, b) VALUES (1)", "t"),
            ("INSERT INTO t (a, b) VALUES ()", "t"),
            ("INSERT INTO t VALUES (1, 2), (3)", "t"),
            ("INSERT INTO t VALUES (1, 2), ()", "t"),
            // A name that servers compare by rules of their own.
            ("INSERT INTO t (id, ä) VALUES (1, 2)", "t"),
            (
                "INSERT INTO t SET id = 5, t.v = v + 1, w = ?",
                "t | (id,v,w) 5,_,?0",
            ),
            ("INSERT t SET id = 5", "t | (id) 5"),
            ("INSERT INTO t SELECT * FROM u WHERE id = 5", "t"),
            ("INSERT INTO t (a) SELECT a FROM t JOIN u ON t.x = u.x", "t"),
            ("INSERT INTO t (a) (SELECT 1) UNION SELECT 2", "t"),
            ("INSERT INTO t (SELECT 1)", "t"),
            ("INSERT INTO t WITH c AS (SELECT 1) SELECT * FROM c", "t"),
            (
                "REPLACE INTO t (id, v) VALUES (1, 2)",
                "t | (id,v) 1,2 | replaces",
            ),
            ("REPLACE LOW_PRIORITY t SET id = 5", "t | (id) 5 | replaces"),
            ("REPLACE INTO t SELECT 1", "t | replaces"),
            (
                "INSERT INTO t (id, v) VALUES (1, 2) ON DUPLICATE KEY UPDATE v = VALUES(v), t.w = w + 1;",
                "t | set v,w | (id,v) 1,2 | replaces",
            ),
            (
                "INSERT INTO t SET id = 1 ON DUPLICATE KEY UPDATE id = 9",
                "t | set id | (id) 1 | replaces",
            ),
            (
                "INSERT INTO t (a, b) VALUES (1) ON DUPLICATE KEY UPDATE v = 1",
                "t | set v | replaces",
            ),
        ],
    );
    check(
        &[mysql()],
        &[
            (
                "INSERT INTO t (id) VALUES ROW(1), ROW(?)",
                "t | (id) 1 | (id) ?0",
            ),
            (
                "INSERT INTO t (id, v) VALUES (1, 2) AS new ON DUPLICATE KEY UPDATE v = new.v",
                "t | set v | (id,v) 1,2 | replaces",
            ),
            (
                "INSERT INTO t (id, v) VALUES (1, 2) AS new (a, b) ON DUPLICATE KEY UPDATE v = b",
                "t | set v | (id,v) 1,2 | replaces",
            ),
            (
                "INSERT INTO t SET id = 1 AS new ON DUPLICATE KEY UPDATE v = new.id",
                "t | set v | (id) 1 | replaces",
            ),
            ("INSERT INTO t TABLE u", "t"),
        ],
    );
    check(
        &[mariadb()],
        &[
            (
                "INSERT INTO t (id) VALUES (1) RETURNING id, (SELECT 1)",
                "t | (id) 1",
            ),
            ("INSERT INTO t SET id = 1 RETURNING id", "t | (id) 1"),
            ("REPLACE t VALUES (1) RETURNING *", "t | () 1 | replaces"),
            (
                "INSERT INTO t VALUES (1) ON DUPLICATE KEY UPDATE v = 1 RETURNING id",
                "t | set v | () 1 | replaces",
            ),
        ],
    );
}

#[test]
fn what_is_not_understood() {
    let texts = [
        "",
        ";",
        "SELECT 1",
        "SELECT * FROM t WHERE id = 5 FOR UPDATE",
        "TRUNCATE t",
        "LOAD DATA INFILE 'x' INTO TABLE t",
        "CALL p()",
        "EXPLAIN UPDATE t SET v = 1 WHERE id = 5",
        "UPDATE t, u SET t.v = 1 WHERE t.id = 5",
        "UPDATE t JOIN u ON t.id = u.id SET t.v = 1",
        "UPDATE t LEFT JOIN u USING (id) SET t.v = 1",
        "UPDATE t NATURAL JOIN u SET t.v = 1",
        "UPDATE (SELECT 1) x, t SET t.v = 1",
        "UPDATE (t) SET v = 1",
        "UPDATE t PARTITION (p) SET v = 1 WHERE id = 5",
        "UPDATE t FOR PORTION OF p FROM 1 TO 2 SET v = 1 WHERE id = 5",
        "UPDATE t AS 'x' SET v = 1",
        "UPDATE t SET ä = 1 WHERE id = 5",
        "UPDATE t SET v = f(1) WHERE id = 5",
        "UPDATE t SET v = 1 WHERE db.f(id)",
        "UPDATE t SET v = 1 WHERE id = 5 AND @a := 3",
        "UPDATE t SET v = @a := 3 WHERE id = 5",
        "UPDATE t SET v = {d '2020-01-01'} WHERE id = 5",
        "UPDATE t SET v = 1 /*! WHERE id = 5 */",
        "UPDATE t SET v = 1 WHERE id = 5; DELETE FROM t",
        "UPDATE t SET v = 1 WHERE id = 'x",
        "UPDATE t SET v = 1 WHERE id = 5)",
        "UPDATE t SET v = 1 WHERE (id = 5",
        "UPDATE t SET v = 1 WHERE id = 5 UNION SELECT 1",
        "UPDATE t SET v = 1 WHERE id = 5 GROUP BY id",
        "UPDATE t SET v = 1 WHERE id = 5, k = 6",
        "UPDATE t SET v = 1 FROM u",
        "UPDATE t SET v WHERE id = 5",
        "UPDATE t WHERE id = 5",
        "UPDATE t SET v = get_lock('a', 1) WHERE id = 5",
        "UPDATE mysql.t SET v = 1 WHERE id = 5",
        "UPDATE",
        "UPDATE t",
        "WITH c AS (SELECT 1) UPDATE t SET v = 1 WHERE id = 5",
        "WITH c AS (SELECT 1) DELETE FROM t WHERE id = 5",
        "DELETE t FROM t WHERE id = 5",
        "DELETE t, u FROM t JOIN u WHERE t.id = 5",
        "DELETE FROM t USING t JOIN u WHERE t.id = 5",
        "DELETE FROM t, u USING t JOIN u WHERE t.id = 5",
        "DELETE FROM t.* USING t WHERE t.id = 5",
        "DELETE FROM t PARTITION (p) WHERE id = 5",
        "DELETE FROM t FOR PORTION OF p FROM 1 TO 2",
        "DELETE HISTORY FROM t",
        "DELETE t",
        "INSERT INTO t PARTITION (p) (id) VALUES (1)",
        "INSERT INTO t",
        "INSERT INTO t (id",
        "INSERT INTO t (id) VALUES",
        "INSERT INTO t (id) VALUES (1",
        "INSERT INTO t (id) VALUES (1) (2)",
        "INSERT INTO t (id) VALUES (1), ",
        "INSERT INTO t (id) VALUES 1",
        "INSERT INTO t (id) VALUES (1) UNION SELECT 2",
        "INSERT INTO t (id) VALUES (1) ON DUPLICATE KEY UPDATE",
        "INSERT INTO t (id) VALUES (1) ON DUPLICATE KEY UPDATE ä = 1",
        "INSERT INTO t (id) VALUES (1) ON DUPLICATE KEY UPDATE v = 1 WHERE id = 5",
        "INSERT INTO t (id) SET id = 5",
        "INSERT INTO t SELECT 1 ON DUPLICATE KEY UPDATE v = 1",
        "INSERT INTO t (id) VALUES (f(1))",
        "INSERT INTO t (id) VALUES (/*! 1 */)",
        "INSERT INTO t (id) VALUES (@a := 1)",
    ];
    for mode in both() {
        for text in texts {
            assert_eq!(told(text, &mode), "", "{text} {mode:?}");
        }
    }
    let hint = "UPDATE /*+ SET_VAR(sql_mode = '') */ t SET v = 1 WHERE id = 5";
    assert_eq!(told(hint, &mysql()), "");
    // MySQL refuses it.
    let returning = "DELETE FROM t WHERE id = 5 RETURNING id";
    assert_eq!(told(returning, &mysql()), "t");
    let of_mariadb = [
        "SET STATEMENT sql_mode = '' FOR UPDATE t SET v = 1 WHERE id = 5",
        "INSERT INTO t (id) VALUES (nextval(s))",
        "INSERT INTO t (id) VALUES (NEXT VALUE FOR s)",
        "UPDATE t SET v = 1 WHERE NEXT VALUE FOR s = 5",
    ];
    for text in of_mariadb {
        assert_eq!(told(text, &mariadb()), "", "{text}");
    }
    let mut oracle = mariadb();
    oracle.oracle_mode = true;
    assert_eq!(told("DELETE FROM t WHERE id = 5", &oracle), "");
}

#[test]
fn quotes_mean_what_the_mode_says() {
    let mut ansi = mysql();
    ansi.ansi_quotes = true;
    check(
        &[ansi],
        &[
            (
                "UPDATE \"t\" SET \"V\" = 'x' WHERE \"id\" = 5",
                "\"t\" | id = 5 | set v",
            ),
            ("UPDATE t SET v = 1 WHERE id = \"5\"", "t | set v"),
            (
                "INSERT INTO t (\"id\", v) VALUES (\"x\", 'y')",
                "t | (id,v) _,'y'",
            ),
        ],
    );
    let mut plain = mysql();
    plain.no_backslash_escapes = true;
    check(
        &[plain],
        &[("UPDATE t SET v = 'a\\' WHERE id = 7", "t | id = 7 | set v")],
    );
}

/// Places and numbers are those of the whole text.
#[test]
fn constants_are_counted_from_the_beginning() {
    let text = "UPDATE t SET a = 1.5, b = ?, c = 'x' WHERE d = ? AND id = 7";
    let (_, out) = read(text, &mysql());
    let constants: Vec<_> = out
        .conditions_on(0)
        .map(|condition| out.constants(condition)[0])
        .collect();
    assert_eq!(constants[0], Constant::Parameter(1));
    assert_eq!(constants[1].literal().unwrap().place, 2);
    let text = "INSERT INTO t VALUES (1.5, ?, 'x'), (?, f, 3)";
    let (_, out) = read(text, &mysql());
    assert_eq!(out.row(0)[2].unwrap().literal().unwrap().place, 1);
    assert_eq!(out.row(1)[0], Some(Constant::Parameter(1)));
    assert_eq!(out.row(1)[2].unwrap().literal().unwrap().place, 2);
    assert_eq!(out.row(2), []);
}

/// More than is worth the memory is not told at all.
#[test]
fn long_inserts_are_cut_short() {
    let of = |rows: usize, row: &str| {
        format!(
            "INSERT INTO t VALUES {row}{}",
            format!(", {row}").repeat(rows - 1)
        )
    };
    let rows = |text: &str| {
        let (_, out) = read(text, &mysql());
        (out.table, out.rows())
    };
    assert_eq!(rows(&of(2048, "(1, ?)")), (Some(0), 2048));
    assert_eq!(rows(&of(2049, "(1, ?)")), (Some(0), 0));
    assert_eq!(rows(&of(4097, "()")), (Some(0), 0));
    assert_eq!(rows(&of(70_000, "(1)")), (Some(0), 0));
}

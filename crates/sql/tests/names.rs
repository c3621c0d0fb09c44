//! Tables, functions, variables and other names found in statements.

mod common;

use common::{functions, mariadb, mysql, read, spanned, tables};
use millrace_sql::{
    Access, Assignment, ExprFlags, Flags, Isolation, Kill, KillTarget, Kind, LexMode, Scope,
    TableUse, Target, TextSource, ValueKind, ident,
};

#[test]
fn tables_are_found() {
    let table: &[(&str, &[&str])] = &[
        ("SELECT 1", &[]),
        ("SELECT 1 FROM dual", &[]),
        ("SELECT * FROM t", &["t"]),
        (
            "SELECT * FROM a, b AS x, `c` y, d.e",
            &["a", "b", "`c`", "d.e"],
        ),
        ("SELECT * FROM d . t", &["d.t"]),
        (
            "SELECT * FROM a JOIN b USING (x) LEFT OUTER JOIN c ON a.x = c.x, d",
            &["a", "b", "c", "d"],
        ),
        ("SELECT * FROM a STRAIGHT_JOIN b", &["a", "b"]),
        ("SELECT STRAIGHT_JOIN x, y FROM a", &["a"]),
        (
            "SELECT * FROM (a, b) JOIN (c JOIN d ON 1) ON 2",
            &["a", "b", "c", "d"],
        ),
        (
            "SELECT * FROM (SELECT x, y FROM t) AS d (a, b), u",
            &["t", "u"],
        ),
        (
            "SELECT * FROM ((SELECT 1 FROM a) UNION (SELECT 2 FROM b)) d",
            &["a", "b"],
        ),
        (
            "SELECT x FROM a WHERE x IN (SELECT y, z FROM b, c) AND q = 1",
            &["a", "b", "c"],
        ),
        ("SELECT x FROM a USE INDEX FOR JOIN (i, j), b", &["a", "b"]),
        (
            "SELECT x FROM a FORCE INDEX FOR ORDER BY (i), b",
            &["a", "b"],
        ),
        ("SELECT x FROM a PARTITION (p0, p1), b", &["a", "b"]),
        ("SELECT x FROM a ORDER BY b, c LIMIT 1, 2", &["a"]),
        ("SELECT x FROM a GROUP BY b, c WITH ROLLUP, d", &["a"]),
        ("SELECT x FROM {OJ a LEFT JOIN b ON 1}", &["a", "b"]),
        ("SELECT x FROM a UNION SELECT y FROM b", &["a", "b"]),
        ("SELECT EXTRACT(DAY FROM x), TRIM(y FROM z) FROM a", &["a"]),
        ("SELECT (SELECT 1 FROM b LIMIT 1), c FROM a", &["b", "a"]),
        (
            "WITH c AS (SELECT * FROM t) SELECT * FROM c, u",
            &["t", "u"],
        ),
        ("WITH t AS (SELECT * FROM t) SELECT * FROM t", &["t"]),
        ("WITH t (a, b) AS (SELECT * FROM t) SELECT * FROM T", &["t"]),
        (
            "WITH RECURSIVE t AS (SELECT 1 UNION SELECT * FROM t) SELECT * FROM t",
            &[],
        ),
        (
            "WITH a AS (SELECT 1), `b` AS (SELECT * FROM a) SELECT * FROM b JOIN x.b",
            &["x.b"],
        ),
        (
            "SELECT * FROM (WITH c AS (SELECT 1) SELECT * FROM c) d, c",
            &["c"],
        ),
        (
            "INSERT INTO t (a, b) SELECT c, d FROM u, v",
            &["t", "u", "v"],
        ),
        (
            "INSERT INTO d.t VALUES ((SELECT MAX(a) FROM u))",
            &["d.t", "u"],
        ),
        ("REPLACE t SET a = 1, b = 2", &["t"]),
        (
            "UPDATE a, b JOIN c ON 1 SET a.x = b.y, c.z = 1 WHERE q IN (SELECT 1 FROM d)",
            &["a", "b", "c", "d"],
        ),
        ("UPDATE LOW_PRIORITY IGNORE t SET a = 1, b = 2", &["t"]),
        ("DELETE FROM t WHERE a IN (SELECT 1 FROM u)", &["t", "u"]),
        (
            "DELETE QUICK a.*, b FROM a JOIN b ON 1",
            &["a", "b", "a", "b"],
        ),
        (
            "DELETE FROM a, b USING a JOIN b USING (x)",
            &["a", "b", "a", "b"],
        ),
        (
            "SELECT * FROM user, date, value, `select`",
            &["user", "date", "value", "`select`"],
        ),
        ("DROP TABLE IF EXISTS a, d.b CASCADE", &["a", "d.b"]),
        ("CREATE TABLE a LIKE b", &["a", "b"]),
        ("CREATE TABLE a (LIKE b)", &["a", "b"]),
        ("CREATE TABLE a AS SELECT * FROM b", &["a", "b"]),
        ("CREATE VIEW v AS SELECT * FROM b, c", &["v", "b", "c"]),
        ("ALTER TABLE d.t ADD x INT", &["d.t"]),
        ("RENAME TABLE a TO b, c TO d", &["a", "b", "c", "d"]),
        ("TRUNCATE t", &["t"]),
        ("CREATE INDEX i ON t (a)", &["t"]),
        ("LOCK TABLES a READ, b AS c WRITE", &["a", "b"]),
        ("LOAD DATA INFILE 'x' INTO TABLE t (a)", &["t"]),
        ("DESC d.t", &["d.t"]),
        ("SHOW COLUMNS FROM t", &["t"]),
        ("SHOW CREATE VIEW v", &["v"]),
        ("EXPLAIN SELECT * FROM t", &["t"]),
        (
            "SELECT * FROM JSON_TABLE('[]', '$[*]' COLUMNS (a INT PATH '$.a')) j, t",
            &["t"],
        ),
    ];
    for mode in [mysql(), mariadb()] {
        for (text, want) in table {
            assert_eq!(&tables(text, &mode), want, "{text}");
        }
    }
    assert_eq!(tables("TABLE a UNION TABLE b", &mysql()), ["a", "b"]);
    assert_eq!(
        tables("SELECT * FROM a, LATERAL (SELECT 1 FROM b) c", &mysql()),
        ["a", "b"]
    );
    assert_eq!(tables("INSERT INTO a TABLE b", &mysql()), ["a", "b"]);
    assert_eq!(
        tables("SELECT * FROM a, qualify, b", &mariadb()),
        ["a", "qualify", "b"]
    );
    assert_eq!(tables("SELECT * FROM a window, b", &mariadb()), ["a", "b"]);
    assert_eq!(
        tables("SELECT * FROM a FOR SYSTEM_TIME AS OF NOW(), b", &mariadb()),
        ["a", "b"]
    );
}

#[test]
fn uses_of_tables() {
    let uses = |text: &str| -> Vec<TableUse> {
        read(text, &mysql())
            .tables
            .iter()
            .map(|table| table.usage)
            .collect()
    };
    assert_eq!(
        uses("INSERT INTO a SELECT * FROM b"),
        [TableUse::Write, TableUse::Read]
    );
    assert_eq!(
        uses("UPDATE a SET x = (SELECT 1 FROM b)"),
        [TableUse::Write, TableUse::Read]
    );
    assert_eq!(uses("DROP TABLE a"), [TableUse::Define]);
    assert_eq!(uses("LOCK TABLES a READ"), [TableUse::Lock]);
}

#[test]
fn unknown_functions_are_listed() {
    let table: &[(&str, &[&str])] = &[
        (
            "SELECT COUNT(*), SUM(a), MAX(b), GROUP_CONCAT(c ORDER BY d SEPARATOR ',') FROM t",
            &[],
        ),
        (
            "SELECT f(1), d.g(2), `h` (3), d . i (4)",
            &["f", "d.g", "`h`", "d.i"],
        ),
        ("SELECT count (*) FROM t", &["count"]),
        ("SELECT `count`(1)", &["`count`"]),
        ("SELECT abs (1), `abs`(1), concat /* c */ ('a')", &[]),
        ("SELECT now(), now ()", &["now"]),
        (
            "SELECT a IN (1), NOT (b), (c) AND (d), EXISTS (SELECT 1), x = ANY (SELECT 1)",
            &[],
        ),
        (
            "SELECT CAST(a AS CHAR(10)), CAST(a AS DECIMAL(10,2)), CONVERT(b, DATETIME(6))",
            &[],
        ),
        (
            "SELECT * FROM (SELECT 1) d (a), t x WHERE MATCH (a) AGAINST ('b' IN BOOLEAN MODE)",
            &[],
        ),
        (
            "SELECT ROW_NUMBER() OVER (PARTITION BY a ORDER BY b), RANK() OVER w FROM t WINDOW w AS (ORDER BY a)",
            &[],
        ),
        (
            "SELECT LEFT(a, 1), RIGHT(a, 1), IF(a, b, c), REPLACE(a, b, c), INSERT(a, 1, 1, b), REPEAT(a, 2)",
            &[],
        ),
        (
            "SELECT DATE(a), TIME(a), TIMESTAMP(a), YEAR(a), MOD(a, 2), CHAR(65 USING utf8mb4), INTERVAL(1, 2)",
            &[],
        ),
        (
            "INSERT INTO t (a, b) VALUES (f(1), 2) ON DUPLICATE KEY UPDATE a = VALUES(a)",
            &["f"],
        ),
        ("INSERT INTO d.t (a) VALUES (1)", &[]),
        ("INSERT INTO t PARTITION (p) (a) VALUES (1)", &[]),
        (
            "CREATE TABLE t (a INT, b VARCHAR(10), KEY k (a), CONSTRAINT c FOREIGN KEY f (a) REFERENCES u (a)) SELECT g(1)",
            &["g"],
        ),
        ("WITH c (a) AS (SELECT f(1)) SELECT * FROM c", &["f"]),
        (
            "SELECT * FROM t JOIN u USING (a), v USE INDEX (i) IGNORE KEY (j)",
            &[],
        ),
        ("SELECT {fn f(1)}", &["f"]),
        ("SELECT a LIKE 'b' ESCAPE f(1)", &["f"]),
        ("SELECT DISTINCT f(1)", &["f"]),
        ("SELECT -f(1), @a := f(2), a*f(3)", &["f", "f", "f"]),
        ("CALL p(f(1))", &["f"]),
        ("SHOW TABLES WHERE f(1)", &["f"]),
        (
            "SELECT ST_GeomFromText('POINT(1 1)'), JSON_EXTRACT(a, '$.b')",
            &[],
        ),
        (
            "SELECT * FROM JSON_TABLE(x, '$[*]' COLUMNS (a VARCHAR(5) PATH '$.a', NESTED PATH '$.b' COLUMNS (c INT PATH '$')))  j",
            &[],
        ),
    ];
    for mode in [mysql(), mariadb()] {
        for (text, want) in table {
            assert_eq!(&functions(text, &mode), want, "{text}");
        }
        let mut spaced = mode;
        spaced.ignore_space = true;
        assert!(functions("SELECT count (*) FROM t", &spaced).is_empty());
    }
    assert_eq!(
        functions("SELECT uuid_to_bin(1)", &mariadb()),
        ["uuid_to_bin"]
    );
    assert_eq!(functions("SELECT nvl(1, 2)", &mysql()), ["nvl"]);
    assert!(
        functions(
            "INSERT INTO t VALUES (1) AS n(a) ON DUPLICATE KEY UPDATE a = n.a",
            &mysql()
        )
        .is_empty()
    );
    assert!(functions("VALUES ROW(1)", &mysql()).is_empty());
    let out = read("SELECT f(1)", &mysql());
    assert_eq!(
        (out.access, out.access_if_calls_read),
        (Access::Write, Access::Read)
    );
}

#[test]
fn variables() {
    let text = "SELECT @a, @'b c', @`d`, @e := 1, @@f, @@global.g, @@session . `h`, @@c.i";
    let out = read(text, &mysql());
    let read_vars: Vec<_> = out
        .user_vars_read
        .iter()
        .map(|s| spanned(text, *s))
        .collect();
    assert_eq!(read_vars, ["a", "'b c'", "`d`"]);
    let set_vars: Vec<_> = out
        .user_vars_assigned
        .iter()
        .map(|s| spanned(text, *s))
        .collect();
    assert_eq!(set_vars, ["e"]);
    let sysvars: Vec<_> = out
        .sysvars_read
        .iter()
        .map(|v| (v.scope, spanned(text, v.name)))
        .collect();
    assert_eq!(
        sysvars,
        [
            (Scope::Session, "f".into()),
            (Scope::Global, "g".into()),
            (Scope::Session, "`h`".into()),
            (Scope::Session, "c.i".into())
        ]
    );
    assert_eq!(ident::user_var_key(b"'B c'"), b"b c");
}

fn set(text: &str) -> (Vec<Assignment>, Kind) {
    let out = read(text, &mysql());
    (out.assignments.to_vec(), out.kind)
}

fn describe(text: &str) -> Vec<String> {
    let (items, _) = set(text);
    items
        .iter()
        .map(|item| {
            let target = match item.target {
                Target::UserVar(name) => format!("@{}", spanned(text, name)),
                Target::System { scope, name } => format!("{scope:?}.{}", spanned(text, name)),
                Target::Names { collation } => {
                    format!(
                        "names/{}",
                        collation.map(|c| spanned(text, c)).unwrap_or_default()
                    )
                }
                Target::CharacterSet => "charset".to_owned(),
                Target::Transaction {
                    scope,
                    isolation,
                    read_only,
                } => {
                    format!("{scope:?} {isolation:?} {read_only:?}")
                }
            };
            format!("{target}={} {:?}", spanned(text, item.value), item.kind)
        })
        .collect()
}

#[test]
fn assignments() {
    assert_eq!(
        describe("SET @@x = 1, @@session.y=-2, SESSION z=ON, @a:='q', GLOBAL w=DEFAULT, v=1.5"),
        [
            "Session.x=1 Number",
            "Session.y=-2 Number",
            "Session.z=ON Word",
            "@a='q' String",
            "Global.w=DEFAULT Default",
            "Global.v=1.5 Number",
        ]
    );
    assert_eq!(
        describe("SET GLOBAL a=1, @@b=2, c=3, NAMES utf8 COLLATE utf8_bin, @@persist.d=4, e=5"),
        [
            "Global.a=1 Number",
            "Session.b=2 Number",
            "Global.c=3 Number",
            "names/utf8_bin=utf8 Word",
            "Persist.d=4 Number",
            "Global.e=5 Number",
        ]
    );
    assert_eq!(
        describe("SET NAMES DEFAULT, character set 'latin1', charset utf8"),
        [
            "names/=DEFAULT Default",
            "charset='latin1' String",
            "charset=utf8 Word"
        ]
    );
    assert_eq!(
        describe("SET `sql_mode` = CONCAT(@@sql_mode, ',X'), @b = @a, c = 'x' 'y', d = ?, e.f = 1"),
        [
            "Session.`sql_mode`=CONCAT(@@sql_mode, ',X') Expression",
            "@b=@a UserVar",
            "Session.c='x' 'y' Expression",
            "Session.d=? Parameter",
            "Session.e.f=1 Number",
        ]
    );
    assert_eq!(describe("SET @a = 1, 2"), ["@a=1 Number"]);
    assert_eq!(set("SET @a = 1, 2").1, Kind::Unknown);
    assert_eq!(
        describe("SET names = 1, role = 2")[0],
        "Session.names=1 Number"
    );
    assert_eq!(
        describe("SET @@tx_isolation = 'x'"),
        ["NextTransaction.tx_isolation='x' String"]
    );
    let level = format!("Session {:?} Some(true)", Some(Isolation::ReadCommitted));
    assert_eq!(
        describe("SET SESSION TRANSACTION READ ONLY, ISOLATION LEVEL READ COMMITTED"),
        [format!(
            "{level}=READ ONLY, ISOLATION LEVEL READ COMMITTED Word"
        )]
    );
    assert_eq!(
        describe("SET @a = N'x', @b = +1 + 2, @c = -1")[0],
        "@a=N'x' Expression"
    );
    assert_eq!(
        describe("SET @a = N'x', @b = +1 + 2, @c = -1")[1],
        "@b=+1 + 2 Expression"
    );
    assert_eq!(
        describe("SET @a = N'x', @b = +1 + 2, @c = -1")[2],
        "@c=-1 Number"
    );
}

#[test]
fn contents_of_values() {
    let expr = |text: &str| set(text).0[0].expr;
    assert_eq!(expr("SET @a = 1"), ExprFlags::empty());
    assert!(expr("SET @a = (SELECT 1)").contains(ExprFlags::SUBQUERY));
    assert!(expr("SET @a = f(1)").contains(ExprFlags::CALL));
    assert!(expr("SET @a = @b + 1").contains(ExprFlags::USER_VARS));
    assert!(expr("SET @a = @@x + 1").contains(ExprFlags::SYSVARS));
    assert!(expr("SET @a = RAND()").contains(ExprFlags::NONDETERMINISTIC));
    assert!(expr("SET @a = @b := 1").contains(ExprFlags::ASSIGNS));
    let items = set("SET @a = NOW(), @b = UPPER('x')").0;
    assert!(!items[1].expr.contains(ExprFlags::NONDETERMINISTIC));
    assert_eq!(items[1].kind, ValueKind::Expression);
}

#[test]
fn kills() {
    let kill = |text: &str, mode| read(text, mode).kill;
    let my = mysql();
    let ma = mariadb();
    let id = |target| {
        Some(Kill {
            target,
            soft: false,
        })
    };
    assert_eq!(kill("KILL 5", &my), id(KillTarget::Connection(5)));
    assert_eq!(
        kill("KILL CONNECTION 5;", &my),
        id(KillTarget::Connection(5))
    );
    assert_eq!(kill("KILL QUERY 5", &my), id(KillTarget::Query(5)));
    assert_eq!(kill("KILL QUERY ID 5", &ma), id(KillTarget::QueryId(5)));
    assert_eq!(
        kill("KILL SOFT QUERY 5", &ma),
        Some(Kill {
            target: KillTarget::Query(5),
            soft: true
        })
    );
    assert!(matches!(
        kill("KILL QUERY @a", &my),
        Some(Kill {
            target: KillTarget::Expression { query: true, .. },
            ..
        })
    ));
    let text = "KILL USER 'a'@'b'";
    let Some(Kill {
        target: KillTarget::User { name, query: false },
        ..
    }) = kill(text, &ma)
    else {
        panic!("{:?}", read(text, &ma));
    };
    assert_eq!(spanned(text, name), "'a'@'b'");
    assert_eq!(kill("KILL", &my), None);
    assert_eq!(read("KILL 5 + 1", &my).kind, Kind::Kill);
}

#[test]
fn names_of_statements() {
    for (text, want) in [
        ("USE `a b`", "`a b`"),
        ("SAVEPOINT s1", "s1"),
        ("ROLLBACK TO s1", "s1"),
        ("RELEASE SAVEPOINT `x`", "`x`"),
        ("PREPARE st FROM 'SELECT 1'", "st"),
        ("EXECUTE st USING @a", "st"),
        ("DROP PREPARE st", "st"),
        ("CALL db.p(1)", "p"),
        ("HANDLER t OPEN h", "h"),
    ] {
        let name = read(text, &mysql()).name.expect(text);
        assert_eq!(spanned(text, name.name), want);
    }
    let source = |text: &str, mode: LexMode| read(text, &mode).source;
    let text = "PREPARE s FROM 'a'";
    let Some(TextSource::Literal(span)) = source(text, mysql()) else {
        panic!()
    };
    assert_eq!(spanned(text, span), "'a'");
    let text = "PREPARE s FROM @q";
    let Some(TextSource::UserVar(span)) = source(text, mysql()) else {
        panic!()
    };
    assert_eq!(spanned(text, span), "q");
    let text = "EXECUTE IMMEDIATE CONCAT('a', @b) USING 1";
    let Some(TextSource::Expression(span)) = source(text, mariadb()) else {
        panic!()
    };
    assert_eq!(spanned(text, span), "CONCAT('a', @b)");
    let read_vars = read("EXECUTE s USING @a, @b", &mysql())
        .user_vars_read
        .len();
    assert_eq!(read_vars, 2);
    assert!(read("CREATE USER a@b", &mysql()).flags == Flags::IMPLICIT_COMMIT);
}

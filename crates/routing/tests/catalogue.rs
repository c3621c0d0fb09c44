//! The catalogue's queries on real servers: what their information schemas really say.
#![allow(clippy::unwrap_used, reason = "a test: what fails is to be seen")]

use millrace_routing::{Access, Catalogue, Row};
use millrace_sandbox::{Cluster, ClusterSpec, Family, MONITOR, skip_unless};
use millrace_sql::{LexMode, Statement, classify};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder, Value};

const OBJECTS: &[&str] = &[
    "CREATE TABLE t (id INT PRIMARY KEY, a INT)",
    "CREATE FUNCTION f_pure(x INT) RETURNS INT DETERMINISTIC RETURN x * 2",
    "CREATE FUNCTION f_nosql(x INT) RETURNS INT NO SQL DETERMINISTIC RETURN coalesce(x, 0) * 2",
    "CREATE FUNCTION f_reads(x INT) RETURNS INT READS SQL DATA
     BEGIN DECLARE n INT DEFAULT 0; SELECT count(*) INTO n FROM t WHERE a = x; RETURN n; END",
    "CREATE FUNCTION f_liar(x INT) RETURNS INT READS SQL DATA
     BEGIN INSERT INTO t VALUES (x, x); RETURN x; END",
    "CREATE FUNCTION f_calls_reads(x INT) RETURNS INT READS SQL DATA RETURN f_reads(x) + 1",
    "CREATE FUNCTION f_calls_liar(x INT) RETURNS INT READS SQL DATA RETURN app.f_liar(x) + 1",
    "CREATE FUNCTION f_lock() RETURNS INT READS SQL DATA RETURN get_lock('a', 0)",
    "CREATE FUNCTION f_last() RETURNS BIGINT READS SQL DATA RETURN last_insert_id()",
    "CREATE PROCEDURE p_reads() READS SQL DATA SELECT * FROM t",
    "CREATE PROCEDURE p_plain() SELECT * FROM t",
    "CREATE PROCEDURE p_writes() MODIFIES SQL DATA DELETE FROM t",
    "CREATE VIEW v_plain AS SELECT a, upper('x') u, date_format(now(), '%Y') y FROM t",
    "CREATE VIEW v_reads AS SELECT f_reads(a) r FROM t",
    "CREATE VIEW v_liar AS SELECT f_liar(a) r FROM t",
    "CREATE VIEW v_over AS SELECT * FROM v_liar",
    "CREATE VIEW v_last AS SELECT last_insert_id() l",
    "CREATE VIEW v_lock AS SELECT is_free_lock('a') l",
    "CREATE FUNCTION f_on_view() RETURNS INT READS SQL DATA RETURN (SELECT max(r) FROM v_over)",
    "CREATE TRIGGER tr BEFORE INSERT ON t FOR EACH ROW SET NEW.a = last_insert_id()",
];

const STATEMENTS: &[(&str, Access)] = &[
    ("SELECT f_pure(1)", Access::Read),
    ("SELECT f_nosql(1)", Access::Read),
    ("SELECT f_reads(1)", Access::Read),
    ("SELECT f_calls_reads(1)", Access::Read),
    ("SELECT f_liar(1)", Access::Write),
    ("SELECT f_calls_liar(1)", Access::Write),
    ("SELECT f_lock()", Access::Write),
    ("SELECT f_last()", Access::Write),
    ("SELECT f_on_view()", Access::Write),
    ("CALL p_reads()", Access::Read),
    ("CALL p_plain()", Access::Write),
    ("CALL p_writes()", Access::Write),
    ("SELECT * FROM t", Access::Read),
    ("SELECT * FROM v_plain", Access::Read),
    ("SELECT * FROM v_reads", Access::Read),
    ("SELECT * FROM v_liar", Access::Write),
    ("SELECT * FROM v_over", Access::Write),
    ("SELECT * FROM v_last", Access::Write),
    ("SELECT * FROM v_lock", Access::Write),
];

fn versioned(family: Family) -> (millrace_sql::Family, u32) {
    match family {
        Family::MySql => (millrace_sql::Family::MySql, 90700),
        Family::MariaDb => (millrace_sql::Family::MariaDb, 101100),
    }
}

/// What the account `user` sees of the catalogue.
async fn read(cluster: &Cluster, family: Family, user: &str, password: &str) -> Catalogue {
    let (family, version) = versioned(family);
    let options = OptsBuilder::default()
        .socket(cluster.primary().socket.to_str())
        .user(Some(user))
        .pass(Some(password));
    let mut conn = Conn::new(options).await.unwrap();
    let mut rows: [Vec<Row>; 4] = Default::default();
    for (query, rows) in Catalogue::queries(family).iter().zip(&mut rows).take(3) {
        for row in conn.query::<mysql_async::Row, _>(*query).await.unwrap() {
            rows.push(row.unwrap().into_iter().map(cell).collect());
        }
    }
    conn.disconnect().await.unwrap();
    Catalogue::from_rows(family, version, &rows)
}

fn cell(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

fn access(catalogue: &Catalogue, family: Family, text: &str) -> Access {
    let (family, version) = versioned(family);
    let mut statement = Statement::default();
    let mode = LexMode::new(family, version);
    classify(text.as_bytes(), &mode, &mut statement);
    catalogue.effective_access(&statement, text.as_bytes(), b"app")
}

async fn check(family: Family) {
    if !skip_unless(family, "the catalogue") {
        return;
    }
    let mut spec = ClusterSpec::new(family);
    spec.replicas = 0;
    let cluster = Cluster::up(spec).await.unwrap();
    let primary = cluster.primary().name;
    let mut root = cluster.control(&primary).await.unwrap();
    root.run("USE app").await.unwrap();
    for object in OBJECTS {
        root.run(object).await.unwrap();
    }
    let trigger = format!("GRANT TRIGGER ON *.* TO '{}'@'%'", MONITOR.user);
    root.run(&trigger).await.unwrap();
    let catalogue = read(&cluster, family, MONITOR.user, MONITOR.password).await;
    for (text, expected) in STATEMENTS {
        assert_eq!(
            access(&catalogue, family, text),
            *expected,
            "{family}: {text}"
        );
    }
    assert!(catalogue.triggers().last_insert_id);

    // An account that may run everything but see no body knows nothing.
    root.run("CREATE USER 'blind'@'%' IDENTIFIED BY 'blind-secret'")
        .await
        .unwrap();
    root.run("GRANT EXECUTE, SELECT ON app.* TO 'blind'@'%'")
        .await
        .unwrap();
    let catalogue = read(&cluster, family, "blind", "blind-secret").await;
    assert_eq!(catalogue.counts().0, 0, "{family}");
    for text in ["SELECT f_pure(1)", "CALL p_reads()", "SELECT * FROM v_liar"] {
        assert_eq!(
            access(&catalogue, family, text),
            Access::Write,
            "{family}: {text}"
        );
    }
    drop(root);
    cluster.down().await.unwrap();
}

#[tokio::test]
async fn mariadb() {
    check(Family::MariaDb).await;
}

#[tokio::test]
async fn mysql() {
    check(Family::MySql).await;
}

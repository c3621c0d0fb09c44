use millrace_sql::{LexMode, classify};
use millrace_topology::Family;

use super::*;

const STRICT: &str = "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION";

fn row(cells: &[&str]) -> Row {
    cells
        .iter()
        .map(|cell| (*cell != "NULL").then(|| cell.as_bytes().to_vec()))
        .collect()
}

/// As information_schema shows them: name, access, body.
fn routine(kind: &str, name: &str, access: &str, body: &str) -> Row {
    row(&["shop", name, kind, access, "SQL", body, STRICT])
}

fn rows() -> [Vec<Row>; 4] {
    let function = |name, access, body| routine("FUNCTION", name, access, body);
    let procedure = |name, access, body| routine("PROCEDURE", name, access, body);
    let (reads, contains) = ("READS SQL DATA", "CONTAINS SQL");
    let view = |name: &str, text: &str| row(&["shop", name, text]);
    let mut ansi = function("f_ansi", reads, "RETURN 1");
    ansi[6] = Some(b"ANSI_QUOTES,STRICT_TRANS_TABLES".to_vec());
    let mut script = function("f_script", reads, "return 1");
    script[4] = Some(b"EXTERNAL".to_vec());
    let routines = vec![
        function("f_pure", contains, "RETURN x * 2"),
        function("f_select", contains, "RETURN (SELECT 1)"),
        function("f_nosql", "NO SQL", "RETURN coalesce(x, 0) * 2"),
        function("F_Reads", reads, "RETURN (SELECT count(*) FROM t)"),
        function(
            "f_liar",
            reads,
            "BEGIN INSERT INTO t VALUES (1); RETURN 1; END",
        ),
        function("f_writes", "MODIFIES SQL DATA", "RETURN 1"),
        function("f_calls_reads", reads, "RETURN f_reads() + shop.f_nosql(1)"),
        function("f_calls_liar", reads, "RETURN `f_liar`() + 1"),
        function("f_calls_unknown", reads, "RETURN elsewhere.f(1)"),
        function("f_calls_itself", reads, "RETURN f_calls_itself(1)"),
        function("f_lock", reads, "RETURN get_lock('a', 0)"),
        function("f_last", reads, "RETURN last_insert_id()"),
        function("f_view", reads, "RETURN (SELECT max(r) FROM v_over)"),
        function("f_hidden", reads, "NULL"),
        ansi,
        script,
        procedure("p_reads", reads, "SELECT * FROM t"),
        procedure("p_plain", contains, "SELECT * FROM t"),
        procedure("p_writes", reads, "DELETE FROM t"),
        procedure("p_calls", reads, "CALL p_reads()"),
        procedure("p_calls_writes", reads, "CALL p_writes()"),
        row(&["shop", "f_short"]),
    ];
    let views = vec![
        view(
            "v_plain",
            "select `shop`.`t`.`a` AS `a`,ucase('x') AS `u` from `shop`.`t`",
        ),
        view(
            "v_reads",
            "select `f_reads`(`shop`.`t`.`a`) AS `r` from `shop`.`t`",
        ),
        view(
            "v_liar",
            "select `f_liar`(`shop`.`t`.`a`) AS `r` from `shop`.`t`",
        ),
        view("V_Over", "select `v_liar`.`r` AS `r` from `shop`.`v_liar`"),
        view("v_last", "select last_insert_id() AS `l`"),
        view("v_lock", "select is_free_lock('a') AS `l`"),
        view("v_hidden", ""),
    ];
    [routines, views, Vec::new(), Vec::new()]
}

fn access_in(catalogue: &Catalogue, text: &str, database: &str) -> Access {
    let mut statement = Statement::default();
    let mode = LexMode::new(millrace_sql::Family::MariaDb, 101100);
    classify(text.as_bytes(), &mode, &mut statement);
    catalogue.effective_access(&statement, text.as_bytes(), database.as_bytes())
}

#[test]
fn functions_views_and_procedures_decide() {
    let catalogue = Catalogue::from_rows(Family::MariaDb, 101100, &rows());
    let (r, w) = (Access::Read, Access::Write);
    let table = [
        ("SELECT 1", r),
        ("SELECT * FROM t", r),
        ("SELECT f_pure(1)", r),
        ("SELECT f_pure (1)", r),
        ("SELECT F_PURE(1)", r),
        ("SELECT `f_pure`(1), shop.f_nosql(2)", r),
        ("SELECT f_reads(1)", r),
        ("SELECT f_calls_reads(1)", r),
        ("SELECT f_calls_itself(1)", r),
        ("SELECT f_select(1)", w),
        ("SELECT f_liar(1)", w),
        ("SELECT f_writes(1)", w),
        ("SELECT f_calls_liar(1)", w),
        ("SELECT f_calls_unknown(1)", w),
        ("SELECT f_lock()", w),
        ("SELECT f_last()", w),
        ("SELECT f_view()", w),
        ("SELECT f_hidden()", w),
        ("SELECT f_ansi()", w),
        ("SELECT f_script()", w),
        ("SELECT f_unheard_of()", w),
        ("SELECT f_pure(1) + f_liar(1)", w),
        ("SELECT other.f_pure(1)", w),
        ("SELECT * FROM v_plain", r),
        ("SELECT * FROM v_reads", r),
        ("SELECT * FROM v_liar", w),
        ("SELECT * FROM shop.V_LIAR x", w),
        ("SELECT * FROM t JOIN v_over USING (a)", w),
        ("SELECT * FROM `v_over`", w),
        ("SELECT (SELECT max(l) FROM v_last)", w),
        ("SELECT * FROM v_lock", w),
        ("SELECT * FROM v_hidden", w),
        ("SELECT * FROM other.v_liar", r),
        ("CALL p_reads()", r),
        ("CALL shop.p_reads", r),
        ("CALL p_calls()", r),
        ("CALL p_reads(f_pure(1))", r),
        ("CALL p_reads(f_liar(1))", w),
        ("CALL p_reads(@x)", w),
        ("CALL p_reads((SELECT 1))", r),
        ("CALL p_reads((SELECT a FROM t FOR UPDATE))", w),
        ("CALL p_reads(get_lock('a', 0))", w),
        ("CALL p_reads(); CALL p_reads()", w),
        ("SELECT f_pure(1); SELECT f_reads(2)", r),
        ("SELECT f_pure(1); SELECT f_liar(2)", w),
        ("CALL p_plain()", w),
        ("CALL p_writes()", w),
        ("CALL p_calls_writes()", w),
        ("CALL p_unheard_of()", w),
        ("INSERT INTO t VALUES (f_pure(1))", w),
        ("SELECT f_pure(1) FROM t FOR UPDATE", w),
    ];
    for (text, expected) in table {
        assert_eq!(access_in(&catalogue, text, "shop"), expected, "{text}");
    }
    assert_eq!(access_in(&catalogue, "SELECT f_pure(1)", ""), w);
    assert_eq!(access_in(&catalogue, "SELECT f_pure(1)", "other"), w);
    assert_eq!(catalogue.counts(), (5, 2, 5));
}

#[test]
fn without_a_catalogue_every_stored_routine_counts_as_writing() {
    let catalogue = Catalogue::default();
    let table = [
        ("SELECT upper('x') FROM t", Access::Read),
        ("SELECT f(1)", Access::Write),
        ("CALL p()", Access::Write),
    ];
    for (text, expected) in table {
        assert_eq!(access_in(&catalogue, text, "shop"), expected, "{text}");
    }
}

/// Of what a table, a view over it and a function that reads it hold, one server alone has the rows.
#[test]
fn rows_that_are_not_replicated_are_read_where_they_are_written() {
    let mut rows = rows();
    rows[3] = vec![row(&["shop", "T"]), row(&["shop", "memory"])];
    let catalogue = Catalogue::from_rows(Family::MariaDb, 101100, &rows);
    let access = |text: &str| access_in(&catalogue, text, "shop");
    for text in [
        "SELECT * FROM memory",
        "SELECT * FROM shop.t",
        "SELECT 1 FROM other JOIN T",
        "SELECT * FROM v_reads",
    ] {
        assert_eq!(access(text), Access::PrimaryRead, "{text}");
    }
    assert_eq!(access("SELECT * FROM other"), Access::Read);
    assert_eq!(access("SELECT 1"), Access::Read);
    assert_eq!(access("INSERT INTO memory VALUES (1)"), Access::Write);
}

#[test]
fn an_unsafe_view_beyond_ascii_is_suspected_behind_any_such_name() {
    let views = vec![row(&["shop", "v\u{e9}", ""])];
    let rows = [Vec::new(), views, Vec::new(), Vec::new()];
    let catalogue = Catalogue::from_rows(Family::MySql, 90700, &rows);
    let access = |text: &str| access_in(&catalogue, text, "shop");
    assert_eq!(access("SELECT * FROM v\u{e9}"), Access::Write);
    assert_eq!(access("SELECT * FROM v\u{ea}"), Access::Write);
    assert_eq!(access("SELECT * FROM v"), Access::Read);
}

#[test]
fn triggers_say_what_they_do_to_a_session() {
    let effects = |text: &str| {
        let triggers = vec![row(&["shop", "t", text, STRICT])];
        Catalogue::from_rows(
            Family::MySql,
            90700,
            &[Vec::new(), Vec::new(), triggers, Vec::new()],
        )
        .triggers()
    };
    let none = TriggerEffects::default();
    assert_eq!(effects("SET NEW.a = upper(NEW.a)"), none);
    let last_insert_id = TriggerEffects {
        last_insert_id: true,
        ..none
    };
    assert_eq!(
        effects("INSERT INTO log VALUES (LAST_INSERT_ID())"),
        last_insert_id
    );
    let user_variables = TriggerEffects {
        user_variables: true,
        ..none
    };
    assert_eq!(effects("SET @seen = NEW.a"), user_variables);
    for text in ["CALL p()", "SET NEW.a = f(1)", "NULL"] {
        let unknown = TriggerEffects {
            unknown: true,
            ..none
        };
        assert_eq!(effects(text), unknown, "{text}");
    }
}

#[test]
fn what_stored_code_leaves_is_known() {
    let function = |name, body| routine("FUNCTION", name, "MODIFIES SQL DATA", body);
    let procedure = |name, body| routine("PROCEDURE", name, "MODIFIES SQL DATA", body);
    let routines = vec![
        function("f_plain", "RETURN (SELECT @a + count(*) FROM t)"),
        function("f_lock", "RETURN get_lock('a', 0)"),
        function("f_locks", "RETURN get_lock(concat('a', x), 0)"),
        function("f_sets", "BEGIN SET @a = 1; RETURN 1; END"),
        function("f_calls", "RETURN f_lock() + f_sets()"),
        function("f_hidden", "NULL"),
        procedure("p_calls", "SELECT f_calls()"),
        procedure("p_into", "SELECT 1 INTO @x"),
        procedure("p_dynamic", "EXECUTE s"),
        procedure("p_elsewhere", "CALL other.p()"),
        procedure(
            "p_names",
            "BEGIN SET @Plain=1, @`Quo``ted`=@only_read+1; SELECT 1 INTO @into; CALL q(@out); \
             GET DIAGNOSTICS @rows=ROW_COUNT; END",
        ),
        procedure("p_string", "SET @'a b'=1"),
        procedure("p_dots", "SET @a.b=1"),
        procedure("q", "SELECT @x"),
    ];
    let triggers = vec![row(&[
        "shop",
        "t",
        "INSERT INTO log VALUES (f_lock())",
        STRICT,
    ])];
    let views = vec![row(&["shop", "v_lock", "select get_lock('b',0) AS `l`"])];
    let catalogue = Catalogue::from_rows(
        Family::MySql,
        90_704,
        &[routines, views, triggers, Vec::new()],
    );
    let mode = LexMode::new(millrace_sql::Family::MySql, 90_704);
    let leaves = |text: &str| {
        let mut statement = Statement::default();
        classify(text.as_bytes(), &mode, &mut statement);
        let leaves = catalogue.leaves(&statement, text.as_bytes(), b"shop");
        let names = leaves.variables.iter();
        let names: Vec<_> = names.map(|name| String::from_utf8_lossy(name)).collect();
        (
            leaves.user_variables || !names.is_empty(),
            leaves.locks.join(","),
            leaves.unknown_locks,
        )
    };
    let expect = |variables, locks: &str, unknown| (variables, locks.to_owned(), unknown);
    assert_eq!(leaves("SELECT 1 FROM t"), expect(false, "", false));
    assert_eq!(leaves("SELECT f_plain()"), expect(false, "", false));
    assert_eq!(leaves("SELECT f_lock()"), expect(false, "'a'", false));
    assert_eq!(leaves("SELECT F_LOCKS(1)"), expect(false, "", true));
    let (_, locks, _) = leaves("SELECT * FROM v_lock");
    assert!(locks.contains("'b'"), "{locks}");
    assert_eq!(leaves("DO shop.f_sets()"), expect(true, "", false));
    assert_eq!(leaves("CALL p_calls()"), expect(true, "'a'", false));
    assert_eq!(leaves("CALL p_into()"), expect(true, "", false));
    for unseen in [
        "SELECT f_hidden()",
        "CALL p_dynamic()",
        "CALL p_elsewhere()",
        "CALL p()",
    ] {
        assert_eq!(leaves(unseen), expect(true, "", true), "{unseen}");
    }
    assert_eq!(
        leaves("INSERT INTO t VALUES (1)"),
        expect(false, "'a'", false)
    );
    let names = |text: &str| {
        let mut statement = Statement::default();
        classify(text.as_bytes(), &mode, &mut statement);
        let leaves = catalogue.leaves(&statement, text.as_bytes(), b"shop");
        let names = leaves.variables.iter();
        let mut names: Vec<_> = names
            .map(|n| String::from_utf8_lossy(n).into_owned())
            .collect();
        names.sort();
        (leaves.user_variables, names.join(" "))
    };
    assert_eq!(
        names("CALL p_names()"),
        (false, "into out plain quo`ted rows".to_owned())
    );
    assert_eq!(names("CALL p_string()"), (true, String::new()));
    assert_eq!(names("CALL p_dots()"), (true, String::new()));
}

/// What DDL touches, and who names it.
#[test]
fn what_leans_on_touched_names_is_touched() {
    let function =
        |name: &str, body: &str| row(&["shop", name, "FUNCTION", "NO SQL", "SQL", body, STRICT]);
    let routines = vec![
        function("f", "RETURN 1"),
        function("g", "RETURN f()"),
        function("h", "RETURN 2"),
    ];
    let trigger = |table: &str, body: &str| row(&["shop", table, body, STRICT]);
    let triggers = vec![
        trigger("t", "SET NEW.a = g()"),
        trigger("u", "SET NEW.a = 1"),
    ];
    let views = vec![
        row(&["shop", "v", "select `shop`.`g`() AS `x`"]),
        row(&["shop", "w", "select `shop`.`v`.`x` AS `x` from `shop`.`v`"]),
    ];
    let catalogue = Catalogue::from_rows(
        Family::MySql,
        90_704,
        &[routines, views, triggers, Vec::new()],
    );
    let mode = LexMode::new(millrace_sql::Family::MySql, 90_704);
    let read = |text: &str| {
        let mut statement = Statement::default();
        classify(text.as_bytes(), &mode, &mut statement);
        statement
    };
    let names = |ddl: &str, text: &str| {
        let touched = Catalogue::touched(&read(ddl), ddl.as_bytes(), b"shop");
        catalogue.names_any(&read(text), text.as_bytes(), b"shop", &|name| {
            touched.iter().any(|other| **other == *name)
        })
    };
    let function = "CREATE OR REPLACE FUNCTION F() RETURNS INT RETURN 3";
    for text in [
        "SELECT f()",
        "SELECT shop.g()",
        "SELECT x FROM v",
        "SELECT x FROM shop.w",
        "INSERT INTO t VALUES (1)",
    ] {
        assert!(names(function, text), "{text}");
    }
    for text in [
        "SELECT h()",
        "SELECT other.f()",
        "INSERT INTO u VALUES (1)",
        "INSERT INTO other.t VALUES (1)",
    ] {
        assert!(!names(function, text), "{text}");
    }
    let trigger = "CREATE TRIGGER x BEFORE INSERT ON u FOR EACH ROW SET @a = 1";
    assert!(names(trigger, "INSERT INTO u VALUES (1)"));
    assert!(names(trigger, "UPDATE shop.anything SET a = 1"));
    assert!(!names(trigger, "SELECT a FROM u"));
    assert!(!names(trigger, "INSERT INTO other.u VALUES (1)"));
    let renamed = "ALTER TABLE u ADD COLUMN b INT, RENAME TO `New`";
    assert!(names(renamed, "INSERT INTO new VALUES (1)"));
    assert!(!names(renamed, "INSERT INTO t VALUES (1)"));
}

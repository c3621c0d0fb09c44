use super::difference::{assignments, late_assignment};
use super::*;

fn state(database: &str, variables: &[(&str, &str)]) -> SessionState {
    let mut state = SessionState {
        database: database.as_bytes().into(),
        ..SessionState::default()
    };
    for (name, value) in variables {
        state.set(name, Value::Reported(value.as_bytes().into()));
    }
    state
}

#[test]
fn only_the_difference_is_set() {
    let from = state(
        "a",
        &[("sql_mode", "ANSI"), ("time_zone", "+01:00"), ("x", "1")],
    );
    let to = state(
        "a",
        &[("sql_mode", ""), ("time_zone", "+01:00"), ("y", "2.5")],
    );
    let text = assignments(&from, &to);
    assert_eq!(
        String::from_utf8_lossy(&text),
        "SET @@session.x=DEFAULT,@@session.sql_mode=_utf8mb4'',@@session.y=2.5"
    );
}

#[test]
fn what_another_variable_sets_is_set_behind_it() {
    let text = |from: &[(&str, &str)], to: &[(&str, &str)]| {
        let basis = [
            ("max_join_size", "18446744073709551615"),
            ("sql_big_selects", "1"),
        ];
        let set = assignments(&based(from, &basis), &based(to, &basis));
        String::from_utf8_lossy(&set).into_owned()
    };
    let few = [("max_join_size", "10"), ("sql_big_selects", "OFF")];
    let few_but_big = [("max_join_size", "20"), ("sql_big_selects", "ON")];
    assert_eq!(
        text(&few, &few_but_big),
        "SET @@session.max_join_size=20,@@session.sql_big_selects=1"
    );
    assert_eq!(
        text(
            &[("max_join_size", "10"), ("sql_big_selects", "1")],
            &few_but_big
        ),
        "SET @@session.max_join_size=20,@@session.sql_big_selects=1",
        "it was on, and goes off with the first"
    );
    assert_eq!(
        text(&few, &[]),
        "SET @@session.max_join_size=18446744073709551615,@@session.sql_big_selects=1"
    );
    assert_eq!(
        text(&[], &[("sql_big_selects", "0")]),
        "SET @@session.sql_big_selects=0"
    );
    assert_eq!(text(&few, &few), "");
}

fn based(variables: &[(&str, &str)], basis: &[(&str, &str)]) -> SessionState {
    let values = basis
        .iter()
        .map(|(name, value)| (Box::from(*name), value.as_bytes().into()));
    let mut state = SessionState {
        basis: Rc::new(Basis::new(values.collect())),
        ..SessionState::default()
    };
    for (name, value) in variables {
        state.set(name, Value::Reported(value.as_bytes().into()));
    }
    state
}

#[test]
fn what_globals_were_at_the_login_is_set_where_they_are_others() {
    let text = |from: &SessionState, to: &SessionState| {
        String::from_utf8_lossy(&assignments(from, to)).into_owned()
    };
    let before = based(
        &[("sql_mode", "ANSI")],
        &[
            ("autocommit", "1"),
            ("sql_mode", ""),
            ("time_zone", "SYSTEM"),
        ],
    );
    let after = based(
        &[],
        &[
            ("autocommit", "0"),
            ("sql_mode", ""),
            ("time_zone", "SYSTEM"),
        ],
    );
    assert_eq!(
        text(&after, &before),
        "SET @@session.sql_mode=_utf8mb4'ANSI',@@session.autocommit=1"
    );
    // DEFAULT would be what the global value is now.
    assert_eq!(
        text(&before, &after),
        "SET @@session.sql_mode=_utf8mb4'',@@session.autocommit=0"
    );
    let set = based(&[("autocommit", "OFF")], &[("autocommit", "1")]);
    let same = based(&[], &[("autocommit", "0")]);
    assert_eq!(text(&same, &set), "");
    assert!(set.is_off("autocommit") && same.is_off("autocommit"));
    let back = based(&[("autocommit", "ON")], &[("autocommit", "1")]);
    assert!(back.variables.is_empty(), "it is what it was");
}

#[test]
fn what_a_set_may_not_take_back_is_reset() {
    let plain = state("", &[("sql_mode", "ANSI"), ("sort_buffer_size", "1000")]);
    let one_way = state("", &[("require_row_format", "ON")]);
    let none = SessionState::default();
    assert!(!needs_reset(&plain, &none));
    assert!(needs_reset(&one_way, &none));
    assert!(!needs_reset(&one_way, &one_way));
    assert!(!needs_reset(&none, &one_way));
}

#[test]
fn results_that_were_set_apart_stay_apart() {
    let charsets = [
        ("character_set_client", "utf8mb4"),
        ("character_set_results", "utf8mb4"),
        ("collation_connection", "utf8mb4_bin"),
    ];
    let mut to = state("", &charsets);
    let names = b"utf8mb4 COLLATE utf8mb4_bin".as_slice();
    to.set(NAMES, Value::Literal(names.into()));
    let from = SessionState::default();
    let text = |set: Vec<u8>| String::from_utf8_lossy(&set).into_owned();
    assert_eq!(results_by_names(&to), Some(&b"utf8mb4_bin"[..]));
    assert_eq!(
        text(assignments(&from, &to)),
        "SET NAMES utf8mb4 COLLATE utf8mb4_bin"
    );
    let apart = Value::Literal(b"utf8mb4".as_slice().into());
    to.set("character_set_results", apart);
    assert_eq!(results_by_names(&to), None);
    assert_eq!(
        text(assignments(&from, &to)),
        "SET NAMES utf8mb4 COLLATE utf8mb4_bin,@@session.character_set_results=utf8mb4"
    );
}

#[test]
fn names_are_set_as_they_were() {
    let mut to = state(
        "",
        &[
            ("character_set_client", "utf8mb4"),
            ("character_set_results", "latin1"),
            ("collation_connection", "utf8mb4_bin"),
            ("time_zone", "+01:00"),
            ("system_versioning_asof", "2024-01-01"),
        ],
    );
    to.set(
        NAMES,
        Value::Literal(b"utf8mb4 COLLATE utf8mb4_bin".as_slice().into()),
    );
    let from = state("", &[("unique_checks", "OFF")]);
    let text = |set: Vec<u8>| String::from_utf8_lossy(&set).into_owned();
    assert_eq!(
        text(assignments(&from, &to)),
        "SET NAMES utf8mb4 COLLATE utf8mb4_bin,@@session.character_set_results=_utf8mb4'latin1',\
         @@session.unique_checks=@@global.unique_checks,@@session.time_zone=_utf8mb4'+01:00'"
    );
    assert_eq!(
        text(late_assignment(&from, &to)),
        "SET @@session.system_versioning_asof=_utf8mb4'2024-01-01'"
    );
}

#[test]
fn awkward_values_become_hexadecimal() {
    let to = state("", &[("lc_messages", "a'b\\c")]);
    let text = assignments(&SessionState::default(), &to);
    assert_eq!(
        String::from_utf8_lossy(&text),
        "SET @@session.lc_messages=_utf8mb4 x'6127625C63'"
    );
}

#[test]
fn nothing_to_do_costs_nothing() {
    let (mut out, mut steps) = (Vec::new(), Vec::new());
    let same = state("a", &[("sql_mode", "ANSI")]);
    difference(&same, &same, true, &mut out, &mut steps);
    assert!(out.is_empty() && steps.is_empty());
}

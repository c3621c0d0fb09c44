use millrace_sql::{LexMode, classify};
use millrace_topology::{Family, Health, Role, ServerId, Unfit, Waits};

use super::*;

fn server_view(id: u16, role: Role, executed: &str) -> ServerView {
    ServerView {
        id: ServerId(id),
        address: format!("db{id}:3306").into(),
        zone: "".into(),
        weight: 1,
        share: 100,
        role,
        health: Health::Up,
        unfit: None,
        lag_seconds: (role == Role::Replica).then_some(0),
        waits: Waits::Gtids,
        executed: GtidSet::parse_mariadb(executed.as_bytes()).unwrap(),
        report: None,
        probed_at: None,
        incarnation: 0,
        draining: false,
        gone: false,
        listed: true,
        address_of: None,
    }
}

fn world() -> Snapshot {
    let mut late = server_view(2, Role::Replica, "0-1-5");
    late.unfit = Some(Unfit::ApplierStopped);
    Snapshot {
        unreplicated: None,
        overruled: None,
        generation: 1,
        epoch: 1,
        servers: vec![
            server_view(0, Role::Primary, "0-1-9"),
            server_view(1, Role::Replica, "0-1-7"),
            late,
        ],
        primary: Some(ServerId(0)),
        without: None,
        conflict: Vec::new(),
        family: Some(Family::MariaDb),
        version_number: 101_100,
    }
}

fn explained(text: &str) -> String {
    let mode = LexMode::new(Family::MariaDb, 101_100);
    let mut class = Statement::default();
    classify(text.as_bytes(), &mode, &mut class);
    let required = GtidSet::parse_mariadb(b"0-1-9").unwrap();
    let lines = explain(&Question {
        text: text.as_bytes(),
        class: &class,
        access: class.access,
        directions: None,
        unknown_hint: None,
        rules: &Rules::default(),
        pins: &[],
        session: SessionView::new(&required),
        world: &world(),
        options: &Options::default(),
        load: Load {
            outstanding: &[1, 4],
            response_us: &[],
            known: &[],
            behind: 0,
            rotation: 0,
        },
    });
    lines
        .into_iter()
        .map(|(about, what)| format!("{about}: {what}\n"))
        .collect()
}

#[test]
fn a_read_after_a_write() {
    let expected = "\
statement: select
needs: a server with the data: it only reads
tables: shop.orders, users
level: instance
must have: 0-1-9
server: db0:3306 primary, takes reads, 1 statements under way here, known to have 0-1-9
server: db1:3306 replica, takes reads, 0 s behind, 4 statements under way here, known to have 0-1-7
server: db2:3306 replica, takes no reads (applier stopped), 0 s behind, 0 statements under way here, known to have 0-1-5
goes to: db1:3306 (asked to wait), then db0:3306
because: read_after_wait
";
    assert_eq!(explained("SELECT * FROM shop.orders JOIN users"), expected);
}

#[test]
fn why_a_statement_needs_the_primary() {
    let table = [
        ("SELECT 1 FROM t FOR UPDATE", "it locks rows"),
        ("INSERT INTO t VALUES (1)", "it may change something"),
        ("SELECT f(1)", "it calls functions that may write"),
        (
            "SHOW PROCESSLIST",
            "its answer differs from server to server",
        ),
        ("FROBNICATE", "it is not understood"),
    ];
    for (text, why) in table {
        let found = explained(text);
        assert!(
            found.contains(&format!("needs: the primary: {why}\n")),
            "{text}\n{found}"
        );
        assert!(found.contains("goes to: db0:3306\n"), "{text}\n{found}");
    }
}

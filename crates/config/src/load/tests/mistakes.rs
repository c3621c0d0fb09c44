use super::*;

/// What is added to a small right file, and the error that it makes. Lines count from 5.
#[test]
fn each_mistake_is_named_with_its_place_and_a_way_out() {
    let table = [
        (
            "lisen = 1",
            "unknown key `lisen` at m.toml:4; did you mean `listen`?",
        ),
        (
            "[pol]",
            "unknown key `pol` at m.toml:5; did you mean `pool`?",
        ),
        ("[weird]\nx = 1", "unknown key `weird` at m.toml:5"),
        (
            "[pool]\nmax-connections = 1",
            "unknown key `max-connections` at m.toml:6; did you mean `max_connections`?",
        ),
        (
            "[pool]\nmax_connections = 0",
            "`max_connections` must be a number from 1 to 100000, not 0 at m.toml:6",
        ),
        (
            "[pool]\nmax_connections = \"many\"",
            "`max_connections` must be a number from 1 to 100000, not \"many\" at m.toml:6",
        ),
        (
            "[pool]\nwait_timeout = 10",
            "`wait_timeout` must be a duration such as \"500ms\", \"10s\" or \"5m\", not 10 at \
             m.toml:6; give a unit: \"10s\" or \"10ms\"",
        ),
        (
            "[pool]\nidle_timeout = \"1ms\"",
            "`idle_timeout` must be at least 1s, not \"1ms\" at m.toml:6",
        ),
        (
            "[limits]\nmax_packet = \"2GiB\"",
            "`max_packet` must be from 1KiB to 1GiB, not \"2GiB\" at m.toml:6",
        ),
        (
            "[limits]\nmax_packet = \"big\"",
            "`max_packet` must be a size such as \"64MiB\" or \"512KiB\", not \"big\" at m.toml:6",
        ),
        (
            "[routing]\nreads = \"replica\"",
            "`reads` must be one of \"replicas\", \"all\", not \"replica\" at m.toml:6; did you \
             mean \"replicas\"?",
        ),
        (
            "[routing]\nconsistency = \"strong\"",
            "`consistency` must be one of \"eventual\", \"session\", \"instance\", \"global\", not \
             \"strong\" at m.toml:6",
        ),
        (
            "[tls]\nrequired = \"yes\"",
            "`required` must be true or false, not \"yes\" at m.toml:6",
        ),
        (
            "[tls]\ncert = \"a.pem\"",
            "`cert` and `key` of [tls] belong together at m.toml:5",
        ),
        (
            "[tls]\ncert = \"a.crt\"\nkey = \"b.pem\"",
            "`cert` names a file that cannot be read: no such file at m.toml:6\n`cert` and `key` \
             of [tls] belong together at m.toml:5",
        ),
        (
            "[tls]\ncert = \"a.pem\"\nkey = \"b.pem\"\nkeep = \"k.pem\"",
            "`keep` of [tls] is for a certificate that is made: there is none where `cert` is given at m.toml:5",
        ),
        (
            "[tls]\nclient_certificates = \"required\"",
            "client_certificates = \"required\" of [tls] needs `ca`: without it no client is asked at m.toml:5; \
             name in `ca` the authority that signs clients' certificates",
        ),
        (
            "[server_tls]\nmode = \"verify_ca\"",
            "this `mode` of [server_tls] needs `ca` at m.toml:5",
        ),
        (
            "[monitor]\nuser = \"m\"\npassword = \"x\"",
            "`password` is not allowed at m.toml:7; passwords are not kept in this file: put it \
             into a file of its own and name that with `password_file`, or into an environment \
             variable and name that with `password_env`",
        ),
        (
            "[monitor]\nuser = \"m\"\npassword_file = \"gone\"",
            "`password_file` names a file that cannot be read: no such file at m.toml:7",
        ),
        (
            "[monitor]\nuser = \"m\"\npassword_env = \"GONE\"",
            "`password_env` names `GONE`, which is not in the environment at m.toml:7",
        ),
        (
            "[monitor]\nuser = \"m\"\npassword_file = \"secret\"\npassword_env = \
             \"MILLRACE_MONITOR_PASSWORD\"",
            "`password_env` must not stand beside `password_file` at m.toml:8",
        ),
        (
            "[monitor]\npassword_file = \"secret\"",
            "`user` is missing at m.toml:5",
        ),
        (
            "[[account]]\nname = \"app\"",
            "`password_file`, `password_env` or `consistency` is missing at m.toml:5",
        ),
        (
            "[[account]]\npassword_file = \"secret\"",
            "`name` is missing at m.toml:5",
        ),
        (
            "[[account]]\nname = \"app\"\npassword_file = \"secret\"\n[[account]]\nname = \
             \"app\"\npassword_file = \"secret\"",
            "the account `app` is there already at m.toml:8",
        ),
        (
            "[[listen]]\naddress = \"127.0.0.1:1\"",
            "the listener 127.0.0.1:1 is there already at m.toml:5",
        ),
        (
            "[[listen]]\naddress = \"localhost\"",
            "`address` is wrong: `localhost` has no port; write `localhost:3306` at m.toml:6",
        ),
        (
            "[[listen]]\ntarget = \"auto\"",
            "`address` is missing at m.toml:5",
        ),
        (
            "[listen2]\n[server]\naddress = \"a\"",
            "duplicate key at m.toml:6",
        ),
        (
            "[http]\nlisten = \"*:1\"",
            "*:1 is a listener for clients already at m.toml:5",
        ),
        (
            "[admin]\nlisten = \"127.0.0.1:6032\"",
            "`password_file` or `password_env` is missing at m.toml:5",
        ),
        (
            "[admin]\npassword_file = \"empty\"",
            "the password of [admin] is empty at m.toml:5",
        ),
        (
            "[admin]\nlisten = \"127.0.0.1:1\"\npassword_file = \"secret\"",
            "127.0.0.1:1 is a listener already at m.toml:5",
        ),
        (
            "[[server]]\naddress = \"b\"",
            "several servers, but no account to ask them for their roles in m.toml; add \
             [monitor] with user and password_file or password_env",
        ),
        (
            "[[pool]]\nmax_connections = 1",
            "`pool` is one table; write [pool], not [[pool]] at m.toml:5",
        ),
        (
            "[account]\nname = \"a\"",
            "`account` is a list of tables; write [[account]] at m.toml:5",
        ),
        (
            "[log]\nlevel = \"loud\"",
            "`level` must be one of \"error\", \"warn\", \"info\", \
             \"debug\", \"trace\", not \"loud\" at m.toml:6",
        ),
    ];
    for (added, expected) in table {
        let text = if added.starts_with('[') {
            format!("{SMALL}{added}\n")
        } else {
            // A key of the root stands before the tables.
            format!("{}\n{SMALL}", added)
        };
        let expected = expected.replace("m.toml:4", "m.toml:1");
        let found = errors(&text);
        let first_lines = |text: &str| {
            let mut lines: Vec<&str> = text.lines().collect();
            lines.sort_unstable();
            lines.join("\n")
        };
        if expected.starts_with("duplicate") {
            assert!(found.contains("at m.toml:"), "{added}\n{found}");
        } else {
            assert_eq!(first_lines(&found), first_lines(&expected), "{added}");
        }
    }
}

#[test]
fn all_errors_come_at_once_in_the_order_of_lines() {
    let text = "workers = 0\n[[listen]]\nadress = \"*:1\"\n[pool]\nmax_waiting = -1\n[log]\nformat = \
                \"xml\"\n";
    assert_eq!(
        errors(text),
        "`workers` must be \"auto\" or a number from 1 to 1024 at m.toml:1\n\
         `address` is missing at m.toml:2\n\
         unknown key `adress` at m.toml:3; did you mean `address`?\n\
         `max_waiting` must be a number from 0 to 10000000, not -1 at m.toml:5\n\
         `format` must be one of \"text\", \"json\", not \"xml\" at m.toml:7\n\
         no server in m.toml; add [[server]] with address = \"host:3306\""
    );
}

#[test]
fn an_empty_file_says_what_is_needed() {
    assert_eq!(
        errors(""),
        "no listener in m.toml; add [[listen]] with address = \"127.0.0.1:3306\"\n\
         no server in m.toml; add [[server]] with address = \"host:3306\""
    );
}

#[test]
fn what_is_no_toml_is_an_error_with_its_line() {
    let text = format!("{SMALL}[pool\nmax_connections = \n");
    let found = errors(&text);
    assert!(found.contains("m.toml:5"), "{found}");
    assert!(found.contains("m.toml:6"), "{found}");
}

#[test]
fn servers_are_checked_against_each_other_and_the_listeners() {
    let server =
        |address: &str| format!("[[server]]\naddress = \"{address}\"\nrole = \"primary\"\n");
    let monitor = "[monitor]\nuser = \"m\"\npassword_file = \"empty\"\n";
    let listen = "[[listen]]\naddress = \"x:3306\"\n";
    let found = errors(&format!("{listen}{}{}{monitor}", server("a"), server("b")));
    assert!(
        found.starts_with("a second server with role = \"primary\" at m.toml:6;"),
        "{found}"
    );
    let found = errors(&format!("{listen}{}{monitor}", server("x")));
    assert_eq!(
        found,
        "the server x:3306 is a listener: it would call itself at m.toml:3"
    );
    let two =
        format!("{listen}[[server]]\naddress = \"a\"\n[[server]]\naddress = \"a:3306\"\n{monitor}");
    assert_eq!(
        errors(&two),
        "the server a:3306 is there already at m.toml:5"
    );
}

//! Clients beside the crowd of a torture test: they vanish, are killed, change tables, rights,
//! roles and globals. What they are answered is checked like the crowd's answers; what they do to
//! others shows in the crowd.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::ingredients::Ingredient;
use super::{Dice, Plan, Report, Trouble, Turn, good, rows, same};
use crate::vanish::{How, Side, Vanish, Vanishing};
use crate::wire::{Connection, Login, Reply, Target};

/// How many clients each ingredient has; they have rows behind the crowd's.
pub(super) const COUNTS: [(Ingredient, u32); 6] = [
    (Ingredient::Vanish, 6),
    (Ingredient::Kill, 2),
    (Ingredient::Ddl, 2),
    (Ingredient::Grants, 1),
    (Ingredient::Roles, 1),
    (Ingredient::Globals, 1),
];

/// When a new login must know what was changed on the servers: the option's second, and as much
/// again for a machine that does other things too.
const FRESH: Duration = Duration::from_secs(3);

const PASSWORD: &str = "beside-secret";

/// The statements that make what these clients use, to be run on the primary beforehand.
pub(super) fn setup() -> Vec<String> {
    let mut out: Vec<String> = [
        "DROP DATABASE IF EXISTS torture_g",
        "CREATE DATABASE torture_g",
        "CREATE TABLE torture_g.t (x INT)",
        "DROP USER IF EXISTS t_grants, t_roles",
        "DROP ROLE IF EXISTS torture_one, torture_two",
        "CREATE ROLE torture_one, torture_two",
    ]
    .map(str::to_owned)
    .to_vec();
    for user in ["t_grants", "t_roles"] {
        out.push(format!("CREATE USER {user} IDENTIFIED BY '{PASSWORD}'"));
    }
    for sql in [
        "GRANT SELECT ON torture_g.* TO t_grants",
        "GRANT SELECT ON torture_g.* TO t_roles",
        "GRANT torture_one TO t_roles",
        "GRANT torture_two TO t_roles",
    ] {
        out.push(sql.to_owned());
    }
    out
}

/// One client's whole life.
pub(super) async fn live(ingredient: Ingredient, number: u32, plan: &Plan, end: Instant) -> Report {
    let mut one = Beside {
        number,
        plan,
        dice: Dice((u64::from(number) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        report: Report::default(),
    };
    while Instant::now() < end && one.report.failed.len() + one.report.wrong.len() < 3 {
        let (name, outcome) = match ingredient {
            Ingredient::Vanish => ("vanish", one.vanish().await),
            Ingredient::Kill => ("kill", one.kill().await),
            Ingredient::Ddl => ("ddl", one.ddl().await),
            Ingredient::Grants => ("grants", one.grants().await),
            Ingredient::Roles => ("roles", one.roles().await),
            Ingredient::Globals => ("globals", one.globals().await),
            // The crowd has these among its turns.
            Ingredient::Cursors | Ingredient::Charsets => return one.report,
        };
        *one.report.turns.entry(name).or_default() += 1;
        match outcome {
            Ok(()) => {}
            Err(Trouble::Wrong(what)) => {
                *one.report.wrong_kinds.entry(name).or_default() += 1;
                one.report.wrong.push(format!("{name} {number}: {what}"));
            }
            Err(Trouble::Failed(what)) => {
                one.report.failed.push(format!("{name} {number}: {what}"));
            }
        }
    }
    one.report
}

struct Beside<'a> {
    number: u32,
    plan: &'a Plan,
    dice: Dice,
    report: Report,
}

async fn open(login: &Login) -> Result<Connection, Trouble> {
    Connection::open(login)
        .await
        .map_err(|e| Trouble::Failed(format!("login: {e}")))
}

async fn ask(connection: &mut Connection, sql: &str) -> Result<Reply, Trouble> {
    good(sql, connection.query(sql).await)
}

async fn check(connection: &mut Connection, sql: &str, expected: &str) -> Turn {
    let reply = ask(connection, sql).await?;
    same(sql, &rows(&reply), expected)
}

/// The statement must fail with this error.
async fn check_error(connection: &mut Connection, sql: &str, code: u16) -> Turn {
    let reply = connection.query(sql).await;
    match reply.err() {
        Some(err) if err.code == code => Ok(()),
        _ => Err(Trouble::Wrong(format!(
            "{sql}: {:?} instead of error {code}",
            reply.render()
        ))),
    }
}

impl Beside<'_> {
    fn account(&self, user: &str) -> Login {
        let mut login = Login::new(self.plan.login.target.clone(), user, PASSWORD);
        login.timeout = self.plan.login.timeout;
        login
    }

    // --- Vanish ---

    async fn vanish(&mut self) -> Turn {
        let Target::Tcp(address) = &self.plan.login.target else {
            return Err(Trouble::Failed("vanishing needs TCP".to_owned()));
        };
        let address: SocketAddr = address
            .parse()
            .map_err(|e| Trouble::Failed(format!("{address}: {e}")))?;
        let plan = self.when_and_how();
        let forwarder = Vanishing::start(address, Some(plan))
            .await
            .map_err(|e| Trouble::Failed(format!("no forwarder: {e}")))?;
        let mut login = self.plan.login.clone();
        login.target = Target::Tcp(format!("127.0.0.1:{}", forwarder.port));
        if let Ok(mut connection) = Connection::open(&login).await {
            for _ in 0..=self.dice.roll(8) {
                let sql = self.anything();
                let reply = connection.query(&sql).await;
                self.report.statements += 1;
                if reply.broken().is_some() {
                    break;
                }
            }
        }
        forwarder.gone().await;
        Ok(())
    }

    fn when_and_how(&mut self) -> Vanish {
        let side = if self.dice.roll(3) == 0 {
            Side::Up
        } else {
            Side::Down
        };
        // Half of them vanish within the login or soon after it, the others within an answer.
        let most = if side == Side::Up || self.dice.roll(2) == 0 {
            400
        } else {
            60_000
        };
        let how = match self.dice.roll(3) {
            0 => How::Fin,
            1 => How::Reset,
            _ => How::Silence(Duration::from_millis(50 + self.dice.roll(450))),
        };
        Vanish {
            side,
            after: 1 + self.dice.roll(most),
            how,
        }
    }

    /// Whatever leaves something behind or has a long answer.
    fn anything(&mut self) -> String {
        let number = self.number;
        match self.dice.roll(10) {
            0 => "SELECT REPEAT('V', 30000)".to_owned(),
            1 => "SELECT 'V'; SELECT REPEAT('V', 20000); SELECT 'V'".to_owned(),
            2 => "BEGIN".to_owned(),
            3 => format!("UPDATE torture_a.own SET v=v+1 WHERE client={number}"),
            4 => "SET @me='vanished', @name='vanished', @counter=-1".to_owned(),
            5 => "SET time_zone='-11:00', group_concat_max_len=5, sql_mode=''".to_owned(),
            6 => "USE torture_b".to_owned(),
            7 => "CREATE TEMPORARY TABLE IF NOT EXISTS scratch (y INT)".to_owned(),
            8 => "SELECT SLEEP(0.05), 'V'".to_owned(),
            _ => "SELECT k, v, REPEAT('V', 500) FROM torture_a.own LIMIT 100".to_owned(),
        }
    }

    // --- Kill ---

    async fn kill(&mut self) -> Turn {
        let mut victim = open(&self.plan.login).await?;
        let mut killer = open(&self.plan.administrator).await?;
        let number = self.number;
        ask(&mut victim, &format!("SET @me={number}")).await?;
        let id = ask(&mut victim, "SELECT CONNECTION_ID()").await?;
        let id = id.scalar().unwrap_or_default();
        match self.dice.roll(3) {
            0 => self.kill_query(&mut victim, &mut killer, &id).await,
            1 => self.kill_idle(&mut victim, &mut killer, &id).await,
            _ => self.kill_transaction(&mut victim, &mut killer, &id).await,
        }
    }

    /// The statement ends, and the session is as it was.
    async fn kill_query(
        &mut self,
        victim: &mut Connection,
        killer: &mut Connection,
        id: &str,
    ) -> Turn {
        let pause = Duration::from_millis(20 + self.dice.roll(400));
        let sleeping = victim.query("SELECT SLEEP(3)");
        let killing = async {
            tokio::time::sleep(pause).await;
            ask(killer, &format!("KILL QUERY {id}")).await
        };
        let (slept, killed) = tokio::join!(sleeping, killing);
        killed?;
        match (slept.err(), slept.scalar().as_deref()) {
            // MariaDB's answer, and MySQL's.
            (Some(err), _) if err.code == 1317 => {}
            (None, Some("1")) => {}
            // A statement that had no connection yet.
            (None, Some("0")) => *self.report.turns.entry("kill, too early").or_default() += 1,
            _ => {
                return Err(Trouble::Wrong(format!(
                    "a killed SLEEP: {:?}",
                    slept.render()
                )));
            }
        }
        let expected = format!("{}|{id}", self.number);
        check(victim, "SELECT @me, CONNECTION_ID()", &expected).await
    }

    async fn kill_idle(
        &mut self,
        victim: &mut Connection,
        killer: &mut Connection,
        id: &str,
    ) -> Turn {
        ask(killer, &format!("KILL {id}")).await?;
        gone(victim).await
    }

    /// What was not committed is gone with its session.
    async fn kill_transaction(
        &mut self,
        victim: &mut Connection,
        killer: &mut Connection,
        id: &str,
    ) -> Turn {
        let sum = format!(
            "SELECT SUM(v) FROM torture_a.own WHERE client={} FOR UPDATE",
            self.number
        );
        let before = rows(&ask(victim, &sum).await?);
        ask(victim, "BEGIN").await?;
        let write = format!(
            "UPDATE torture_a.own SET v=v+1000 WHERE client={}",
            self.number
        );
        ask(victim, &write).await?;
        ask(killer, &format!("KILL {id}")).await?;
        gone(victim).await?;
        check(killer, &sum, &before).await
    }

    // --- DDL ---

    async fn ddl(&mut self) -> Turn {
        let mut connection = open(&self.plan.administrator).await?;
        let c = &mut connection;
        let n = self.number;
        ask(c, "USE torture_a").await?;
        ask(c, &format!("DROP TABLE IF EXISTS ddl_{n}")).await?;
        ask(
            c,
            &format!("CREATE TABLE ddl_{n} (id INT PRIMARY KEY, v INT)"),
        )
        .await?;
        ask(c, &format!("INSERT INTO ddl_{n} VALUES (1, {n})")).await?;
        for _ in 0..8 {
            let k = self.dice.roll(1_000_000);
            match self.dice.roll(4) {
                0 => ddl_column(c, n, k).await?,
                1 => ddl_view(c, n, k).await?,
                2 => ddl_function(c, n, k).await?,
                _ => ddl_table(c, n, k).await?,
            }
            self.report.statements += 6;
            tokio::time::sleep(Duration::from_millis(self.dice.roll(300))).await;
        }
        connection.quit().await;
        Ok(())
    }

    // --- What a login has ---

    /// A login that is new has the rights of now, while a session from before stands.
    async fn grants(&mut self) -> Turn {
        let login = self.account("t_grants").database("torture_g");
        let mut before = open(&login).await?;
        let mut control = open(&self.plan.control).await?;
        // Servers look at a table's rights with each statement, at a database's when it is chosen,
        // and at all others when the client logs in.
        let scope = ["torture_g.t", "torture_g.*", "*.*"][self.dice.roll(3) as usize];
        let sql = "INSERT INTO t VALUES (1)";
        ask(
            &mut control,
            &format!("GRANT INSERT ON {scope} TO t_grants"),
        )
        .await?;
        tokio::time::sleep(FRESH).await;
        let mut now = open(&login).await?;
        ask(&mut now, sql).await?;
        now.quit().await;
        ask(
            &mut control,
            &format!("REVOKE INSERT ON {scope} FROM t_grants"),
        )
        .await?;
        tokio::time::sleep(FRESH).await;
        let mut now = open(&login).await?;
        check_error(&mut now, sql, 1142).await?;
        now.quit().await;
        check(&mut before, "SELECT 1", "1").await?;
        before.quit().await;
        Ok(())
    }

    async fn roles(&mut self) -> Turn {
        let login = self.account("t_roles");
        let mut control = open(&self.plan.control).await?;
        let role = ["torture_one", "torture_two"][self.dice.roll(2) as usize];
        let word = if self.plan.mariadb { "FOR" } else { "TO" };
        ask(
            &mut control,
            &format!("SET DEFAULT ROLE {role} {word} t_roles"),
        )
        .await?;
        tokio::time::sleep(FRESH).await;
        for _ in 0..3 {
            let mut now = open(&login).await?;
            // Replicas learn of it later, and are late here: the primary is asked.
            ask(&mut now, "BEGIN").await?;
            let sql =
                "SELECT CURRENT_ROLE() LIKE '%torture_one%', CURRENT_ROLE() LIKE '%torture_two%'";
            let expected = if role == "torture_one" { "1|0" } else { "0|1" };
            check(&mut now, sql, expected).await?;
            ask(&mut now, "COMMIT").await?;
            now.quit().await;
        }
        Ok(())
    }

    /// A login that is new has the globals of now; a session from before keeps its own.
    async fn globals(&mut self) -> Turn {
        let digits = 1 + self.dice.roll(12);
        self.set_globals(digits).await?;
        tokio::time::sleep(FRESH).await;
        let mut before = open(&self.plan.login).await?;
        let third = format!("0.{}", "3".repeat(digits as usize));
        check(&mut before, "SELECT 1/3", &third).await?;
        self.set_globals(13 + digits).await?;
        tokio::time::sleep(FRESH).await;
        for _ in 0..3 {
            let mut now = open(&self.plan.login).await?;
            let digits = (13 + digits).to_string();
            check(&mut now, "SELECT @@div_precision_increment", &digits).await?;
            now.quit().await;
            check(&mut before, "SELECT 1/3", &third).await?;
        }
        before.quit().await;
        Ok(())
    }

    async fn set_globals(&self, digits: u64) -> Turn {
        for server in &self.plan.servers {
            let mut control = open(server).await?;
            ask(
                &mut control,
                &format!("SET GLOBAL div_precision_increment={digits}"),
            )
            .await?;
            control.quit().await;
        }
        Ok(())
    }
}

/// A killed client learns it, at the latest when it asks something.
async fn gone(victim: &mut Connection) -> Turn {
    let reply = victim.query("SELECT 1").await;
    if reply.err().is_some() || reply.broken().is_some() {
        return Ok(());
    }
    Err(Trouble::Wrong(format!(
        "a killed client was answered: {:?}",
        reply.render()
    )))
}

async fn ddl_column(c: &mut Connection, n: u32, k: u64) -> Turn {
    ask(
        c,
        &format!("ALTER TABLE ddl_{n} ADD COLUMN c_{k} INT DEFAULT {k}"),
    )
    .await?;
    let select = format!("SELECT c_{k} FROM ddl_{n}");
    check(c, &select, &k.to_string()).await?;
    check(c, &select, &k.to_string()).await?;
    ask(c, &format!("ALTER TABLE ddl_{n} DROP COLUMN c_{k}")).await?;
    check_error(c, &select, 1054).await
}

async fn ddl_view(c: &mut Connection, n: u32, k: u64) -> Turn {
    ask(
        c,
        &format!("CREATE OR REPLACE VIEW ddl_v_{n} AS SELECT {k} AS k, v FROM ddl_{n}"),
    )
    .await?;
    let select = format!("SELECT k, v FROM ddl_v_{n}");
    check(c, &select, &format!("{k}|{n}")).await?;
    check(c, &select, &format!("{k}|{n}")).await?;
    ask(c, &format!("DROP VIEW ddl_v_{n}")).await?;
    check_error(c, &select, 1146).await
}

async fn ddl_function(c: &mut Connection, n: u32, k: u64) -> Turn {
    ask(c, &format!("DROP FUNCTION IF EXISTS ddl_f_{n}")).await?;
    ask(
        c,
        &format!("CREATE FUNCTION ddl_f_{n}() RETURNS INT DETERMINISTIC NO SQL RETURN {k}"),
    )
    .await?;
    let select = format!("SELECT ddl_f_{n}(), (SELECT v FROM ddl_{n})");
    check(c, &select, &format!("{k}|{n}")).await?;
    ask(c, &format!("DROP FUNCTION ddl_f_{n}")).await?;
    check_error(c, &select, 1305).await
}

async fn ddl_table(c: &mut Connection, n: u32, k: u64) -> Turn {
    ask(c, &format!("RENAME TABLE ddl_{n} TO ddl_{n}_{k}")).await?;
    check_error(c, &format!("SELECT v FROM ddl_{n}"), 1146).await?;
    check(c, &format!("SELECT v FROM ddl_{n}_{k}"), &n.to_string()).await?;
    ask(c, &format!("DROP TABLE ddl_{n}_{k}")).await?;
    check_error(c, &format!("SELECT v FROM ddl_{n}_{k}"), 1146).await?;
    ask(
        c,
        &format!("CREATE TABLE ddl_{n} (id INT PRIMARY KEY, v INT, w INT)"),
    )
    .await?;
    ask(c, &format!("INSERT INTO ddl_{n} VALUES (1, {n}, {k})")).await?;
    check(c, &format!("SELECT v, w FROM ddl_{n}"), &format!("{n}|{k}")).await
}

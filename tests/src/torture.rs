//! Many clients over few server connections, each checking everything that it knows about itself.
//!
//! It owns the clients and their checks; it starts no server. A client that gets an answer which
//! a server of its own would not have given is a wrong answer, however rare.

mod beside;
pub mod ingredients;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::LocalSet;

use ingredients::Ingredient;

use crate::wire::{Connection, Expect, Login, Param, Reply, com};

/// Rows that each client owns.
const ROWS: u32 = 8;

/// How hard.
#[derive(Debug, Clone)]
pub struct Plan {
    pub clients: u32,
    pub duration: Duration,
    /// Longest pause of a client between two turns.
    pub pause_max: Duration,
    pub login: Login,
    /// An administrator at the same address.
    pub administrator: Login,
    /// An administrator at the primary itself.
    pub control: Login,
    /// Administrators at every server.
    pub servers: Vec<Login>,
    pub mariadb: bool,
    pub ingredients: BTreeSet<Ingredient>,
}

/// What happened.
#[derive(Debug, Default)]
pub struct Report {
    /// Turns taken, by kind.
    pub turns: BTreeMap<&'static str, u64>,
    pub statements: u64,
    /// Answers that were not the right ones. Must be empty.
    pub wrong: Vec<String>,
    /// Errors and lost connections that nothing in the test asked for. Must be empty.
    pub failed: Vec<String>,
    /// How many wrong answers of each kind of turn.
    pub wrong_kinds: BTreeMap<&'static str, u64>,
    /// Clients that took at least one turn.
    pub clients: u32,
    /// The slowest statement.
    pub slowest: Duration,
}

impl Report {
    fn add(&mut self, other: Report) {
        self.clients += u32::from(other.statements > 0);
        self.add_beside(other);
    }

    /// A report of a client that is not one of the crowd.
    fn add_beside(&mut self, other: Report) {
        for (kind, n) in other.turns {
            *self.turns.entry(kind).or_default() += n;
        }
        for (kind, n) in other.wrong_kinds {
            *self.wrong_kinds.entry(kind).or_default() += n;
        }
        self.statements += other.statements;
        self.wrong.extend(other.wrong);
        self.failed.extend(other.failed);
        self.slowest = self.slowest.max(other.slowest);
    }
}

/// A procedure that walks a client's rows and has two result sets.
const WALK: &str = "CREATE PROCEDURE torture_a.walk(n INT) BEGIN \
     DECLARE x, total, done INT DEFAULT 0; \
     DECLARE c CURSOR FOR SELECT k FROM torture_a.own WHERE client=n ORDER BY k; \
     DECLARE CONTINUE HANDLER FOR NOT FOUND SET done=1; \
     OPEN c; \
     every: LOOP \
         FETCH c INTO x; \
         IF done THEN LEAVE every; END IF; \
         SET total=total+x; \
         IF x=3 THEN SELECT x, n; END IF; \
     END LOOP; \
     CLOSE c; \
     SELECT total, n; \
     END";

/// The statements that make the tables, to be run on the primary beforehand.
pub fn setup(clients: u32) -> Vec<String> {
    let beside: u32 = beside::COUNTS.iter().map(|(_, count)| count).sum();
    let clients = clients + beside;
    let mut out: Vec<String> = [
        "DROP DATABASE IF EXISTS torture_a",
        "DROP DATABASE IF EXISTS torture_b",
        "CREATE DATABASE torture_a CHARACTER SET utf8mb4",
        "CREATE DATABASE torture_b CHARACTER SET utf8mb4",
        "CREATE TABLE torture_a.own (client INT, k INT, v BIGINT, PRIMARY KEY (client, k))",
        "CREATE TABLE torture_a.auto (id BIGINT AUTO_INCREMENT PRIMARY KEY, client INT)",
        "CREATE TABLE torture_a.who (name VARCHAR(10))",
        "CREATE TABLE torture_b.who (name VARCHAR(10))",
        "INSERT INTO torture_a.who VALUES ('a')",
        "INSERT INTO torture_b.who VALUES ('b')",
        "CREATE TABLE torture_a.texts (t VARCHAR(10)) CHARACTER SET utf8mb4",
        "INSERT INTO torture_a.texts VALUES (_utf8mb4 X'C3A9')",
        WALK,
    ]
    .map(str::to_owned)
    .to_vec();
    out.extend(beside::setup());
    for first in (0..clients).step_by(100) {
        let rows: Vec<String> = (first..clients.min(first + 100))
            .flat_map(|client| (0..ROWS).map(move |k| format!("({client},{k},0)")))
            .collect();
        out.push(format!(
            "INSERT INTO torture_a.own VALUES {}",
            rows.join(",")
        ));
    }
    out
}

/// Runs the plan to its end.
pub async fn run(plan: &Plan) -> Report {
    let local = LocalSet::new();
    let plan = Rc::new(plan.clone());
    let end = Instant::now() + plan.duration;
    let tasks: Vec<_> = (0..plan.clients)
        .map(|number| {
            let plan = Rc::clone(&plan);
            local.spawn_local(async move { Client::live(number, &plan, end).await })
        })
        .collect();
    let kinds = beside::COUNTS
        .iter()
        .filter(|(ingredient, _)| plan.ingredients.contains(ingredient))
        .flat_map(|(ingredient, count)| (0..*count).map(|_| *ingredient));
    let beside: Vec<_> = (plan.clients..)
        .zip(kinds)
        .map(|(number, ingredient)| {
            let plan = Rc::clone(&plan);
            local.spawn_local(async move { beside::live(ingredient, number, &plan, end).await })
        })
        .collect();
    local
        .run_until(async {
            let mut report = Report::default();
            for task in beside {
                match task.await {
                    Ok(one) => report.add_beside(one),
                    Err(e) => report
                        .failed
                        .push(format!("a client beside ended badly: {e}")),
                }
            }
            for task in tasks {
                match task.await {
                    Ok(one) => report.add(one),
                    Err(e) => report.failed.push(format!("a client ended badly: {e}")),
                }
            }
            report
        })
        .await
}

/// Why a client cannot go on.
enum Trouble {
    Wrong(String),
    Failed(String),
}

type Turn = Result<(), Trouble>;

/// A small generator, so that a client's life depends on its number only.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

struct Client {
    number: u32,
    connection: Connection,
    dice: Dice,
    report: Report,
    rows: [i64; ROWS as usize],
    /// What LAST_INSERT_ID() must say.
    last_insert_id: u64,
    /// How many rows of `auto` are this client's.
    inserted: u64,
    counter: u64,
    database: char,
    group_concat: u32,
    zone: i32,
    quotes: bool,
    /// Which of [`CHARSETS`] was set.
    charset: Option<usize>,
    statements: Vec<(u32, &'static str)>,
}

/// Character set, collation, `é` in it as bytes, whether 'a'='A', and `é` as it is read here.
const CHARSETS: [(&str, &str, &[u8], &str, &str); 4] = [
    ("utf8mb4", "utf8mb4_bin", b"\xc3\xa9", "0", "é"),
    ("utf8mb4", "utf8mb4_unicode_ci", b"\xc3\xa9", "1", "é"),
    ("latin1", "latin1_german2_ci", b"\xe9", "1", "\u{fffd}"),
    ("latin1", "latin1_bin", b"\xe9", "0", "\u{fffd}"),
];

const PREPARED: [&str; 3] = [
    "SELECT ? + @me, ?",
    "SELECT v FROM torture_a.own WHERE client=? AND k=?",
    "SELECT CONCAT(?, @@group_concat_max_len)",
];

impl Client {
    async fn live(number: u32, plan: &Plan, end: Instant) -> Report {
        // Logins are spread, as clients of a real application are.
        tokio::time::sleep(Duration::from_millis(u64::from(number) * 2)).await;
        let mut report = Report::default();
        let mut rows = [0; ROWS as usize];
        let mut inserted = 0;
        let mut life = 0_u64;
        while Instant::now() < end && report.failed.len() + report.wrong.len() < 3 {
            life += 1;
            let connection = match Connection::open(&plan.login).await {
                Ok(connection) => connection,
                Err(e) => {
                    report.failed.push(format!("client {number}: login: {e}"));
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            let mut client = Client {
                number,
                connection,
                dice: Dice(
                    (u64::from(number) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (life << 32),
                ),
                report: Report::default(),
                rows,
                last_insert_id: 0,
                inserted,
                counter: 0,
                database: 'a',
                group_concat: 0,
                zone: 0,
                quotes: false,
                charset: None,
                statements: Vec::new(),
            };
            let outcome = client.session(plan, end).await;
            rows = client.rows;
            inserted = client.inserted;
            let mut one = client.report;
            match outcome {
                Ok(()) => client.connection.quit().await,
                Err(Trouble::Wrong(what)) => one.wrong.push(format!("client {number}: {what}")),
                Err(Trouble::Failed(what)) => one.failed.push(format!("client {number}: {what}")),
            }
            report.add(one);
        }
        report
    }

    async fn session(&mut self, plan: &Plan, end: Instant) -> Turn {
        self.begin().await?;
        let turns = 50 + self.dice.roll(200);
        for _ in 0..turns {
            if Instant::now() >= end {
                break;
            }
            self.turn(&plan.ingredients).await?;
            let pause = self.dice.roll(plan.pause_max.as_millis() as u64 + 1);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        self.check_rows().await
    }

    async fn turn(&mut self, ingredients: &BTreeSet<Ingredient>) -> Turn {
        let (name, outcome) = match self.dice.roll(19) {
            0 => ("variables", self.variables().await),
            1 => ("user variables", self.user_variables().await),
            2 => ("prepared", self.prepared().await),
            3 => ("insert id", self.insert_id().await),
            4 | 5 => ("own write", self.own_write().await),
            6 => ("own rows", self.check_rows().await),
            7 => ("transaction", self.transaction().await),
            8 => ("rollback", self.rollback().await),
            9 => ("temporary table", self.temporary_table().await),
            10 => ("database", self.switch_database().await),
            11 => ("warnings", self.warnings().await),
            12 => ("errors", self.errors().await),
            13 => ("found rows", self.found_rows().await),
            14 => ("change variables", self.change_variables().await),
            15 => ("several statements", self.several().await),
            16 if ingredients.contains(&Ingredient::Cursors) => ("cursors", self.cursors().await),
            17 if ingredients.contains(&Ingredient::Charsets) => {
                ("charsets", self.charsets().await)
            }
            _ => ("everything", self.everything().await),
        };
        *self.report.turns.entry(name).or_default() += 1;
        if matches!(outcome, Err(Trouble::Wrong(_))) {
            *self.report.wrong_kinds.entry(name).or_default() += 1;
        }
        outcome.map_err(|trouble| match trouble {
            Trouble::Wrong(what) => Trouble::Wrong(format!("{name}: {what}")),
            Trouble::Failed(what) => Trouble::Failed(format!("{name}: {what}")),
        })
    }

    // --- Asking ---

    async fn ask(&mut self, sql: &str) -> Result<Reply, Trouble> {
        let started = Instant::now();
        let reply = self.connection.query(sql).await;
        self.note(started);
        good(sql, reply)
    }

    fn note(&mut self, started: Instant) {
        self.report.statements += 1;
        self.report.slowest = self.report.slowest.max(started.elapsed());
    }

    /// Asks and compares all rows, values joined by `|`.
    async fn check(&mut self, sql: &str, expected: &str) -> Turn {
        let reply = self.ask(sql).await?;
        same(sql, &rows(&reply), expected)
    }

    // --- The state that a session has ---

    async fn begin(&mut self) -> Turn {
        let number = self.number;
        self.ask("USE torture_a").await?;
        self.ask(&format!(
            "SET @me={number}, @name='client {number}', @counter=0"
        ))
        .await?;
        self.change_variables().await?;
        for sql in PREPARED {
            let started = Instant::now();
            let reply = good(sql, self.connection.prepare(sql.as_bytes()).await)?;
            self.note(started);
            let (id, _) = reply
                .statement_id()
                .ok_or_else(|| Trouble::Failed("no handle".to_owned()))?;
            self.statements.push((id, sql));
        }
        Ok(())
    }

    async fn change_variables(&mut self) -> Turn {
        self.group_concat = 1000 + self.number * 10 + self.dice.roll(10) as u32;
        self.zone = self.dice.roll(12) as i32;
        self.quotes = self.dice.roll(2) == 0;
        let mode = if self.quotes {
            "ANSI_QUOTES"
        } else {
            "STRICT_ALL_TABLES"
        };
        let (length, zone) = (self.group_concat, self.zone);
        if self.dice.roll(2) == 0 {
            let sql = format!(
                "SET group_concat_max_len={length}, time_zone='+{zone:02}:00', sql_mode='{mode}'"
            );
            self.ask(&sql).await?;
        } else {
            self.ask(&format!("SET SESSION group_concat_max_len={length}"))
                .await?;
            self.ask(&format!("SET time_zone='+{zone:02}:00'")).await?;
            self.ask(&format!("SET @@sql_mode='{mode}'")).await?;
        }
        self.variables().await
    }

    async fn variables(&mut self) -> Turn {
        let mode = if self.quotes {
            "ANSI_QUOTES"
        } else {
            "STRICT_ALL_TABLES"
        };
        let expected = format!("{}|+{:02}:00|{mode}", self.group_concat, self.zone);
        self.check(
            "SELECT @@group_concat_max_len, @@time_zone, @@sql_mode",
            &expected,
        )
        .await?;
        if self.quotes {
            let name = self.database.to_string();
            self.check("SELECT \"name\" FROM \"who\"", &name).await?;
        } else {
            self.check("SELECT \"text\"", "text").await?;
        }
        let hour = self.zone;
        self.check(
            "SELECT FROM_UNIXTIME(0)",
            &format!("1970-01-01 {hour:02}:00:00"),
        )
        .await
    }

    async fn user_variables(&mut self) -> Turn {
        let (number, counter) = (self.number, self.counter);
        self.check(
            "SELECT @me, @name, @counter",
            &format!("{number}|client {number}|{counter}"),
        )
        .await?;
        self.counter += 1;
        match self.dice.roll(3) {
            0 => {
                self.check("SELECT @counter:=@counter+1", &self.counter.to_string())
                    .await?
            }
            1 => drop(self.ask("SET @counter=@counter+1").await?),
            _ => drop(
                self.ask(&format!("SELECT {} INTO @counter", self.counter))
                    .await?,
            ),
        }
        self.check(
            "SELECT @counter, @me",
            &format!("{}|{number}", self.counter),
        )
        .await
    }

    async fn prepared(&mut self) -> Turn {
        let at = self.dice.roll(self.statements.len() as u64) as usize;
        let (id, sql) = self.statements[at];
        let k = self.dice.roll(u64::from(ROWS)) as i64;
        let number = i64::from(self.number);
        let (params, expected) = match at {
            0 => {
                let tag = format!("tag {number} {k}");
                (
                    vec![Param::int(k), Param::text(&tag)],
                    format!("{}|{tag}", number + k),
                )
            }
            1 => (
                vec![Param::int(number), Param::int(k)],
                self.rows[k as usize].to_string(),
            ),
            _ => (vec![Param::text("x")], format!("x{}", self.group_concat)),
        };
        let started = Instant::now();
        let reply = good(sql, self.connection.execute(id, 0, &params, true).await)?;
        self.note(started);
        same(sql, &rows(&reply), &expected)
    }

    async fn insert_id(&mut self) -> Turn {
        if self.dice.roll(2) == 0 || self.last_insert_id == 0 {
            let sql = format!(
                "INSERT INTO torture_a.auto (client) VALUES ({})",
                self.number
            );
            let reply = self.ask(&sql).await?;
            self.inserted += 1;
            self.last_insert_id = reply.ok().map_or(0, |ok| ok.insert_id);
            if self.last_insert_id == 0 {
                return Err(Trouble::Wrong("an insert without an id".to_owned()));
            }
        }
        self.check("SELECT LAST_INSERT_ID()", &self.last_insert_id.to_string())
            .await?;
        let sql = "SELECT client FROM torture_a.auto WHERE id=LAST_INSERT_ID()";
        self.check(sql, &self.number.to_string()).await
    }

    // --- Rows ---

    async fn own_write(&mut self) -> Turn {
        let k = self.dice.roll(u64::from(ROWS)) as usize;
        let number = self.number;
        let v = self.dice.roll(1_000_000) as i64;
        let sql = format!("UPDATE torture_a.own SET v={v} WHERE client={number} AND k={k}");
        self.ask(&sql).await?;
        self.rows[k] = v;
        for _ in 0..=self.dice.roll(3) {
            self.check_row(k).await?;
        }
        Ok(())
    }

    async fn check_row(&mut self, k: usize) -> Turn {
        let sql = format!(
            "SELECT v FROM torture_a.own WHERE client={} AND k={k}",
            self.number
        );
        let expected = self.rows[k].to_string();
        self.check(&sql, &expected).await
    }

    async fn check_rows(&mut self) -> Turn {
        let number = self.number;
        let expected: Vec<String> = self.rows.iter().map(i64::to_string).collect();
        let sql = format!("SELECT v FROM torture_a.own WHERE client={number} ORDER BY k");
        self.check(&sql, &expected.join("\n")).await?;
        let sql = format!("SELECT SUM(v) FROM torture_a.own WHERE client={number}");
        let sum = self.rows.iter().sum::<i64>().to_string();
        self.check(&sql, &sum).await
    }

    async fn transaction(&mut self) -> Turn {
        let number = self.number;
        self.ask("BEGIN").await?;
        for _ in 0..2 {
            let k = self.dice.roll(u64::from(ROWS)) as usize;
            self.rows[k] += 1;
            let sql = format!("UPDATE torture_a.own SET v=v+1 WHERE client={number} AND k={k}");
            self.ask(&sql).await?;
            self.check_row(k).await?;
        }
        self.ask("COMMIT").await?;
        self.check_rows().await
    }

    async fn rollback(&mut self) -> Turn {
        let number = self.number;
        let k = self.dice.roll(u64::from(ROWS)) as usize;
        self.ask("START TRANSACTION").await?;
        self.ask(&format!(
            "UPDATE torture_a.own SET v=-1 WHERE client={number} AND k={k}"
        ))
        .await?;
        let sql = format!("SELECT v FROM torture_a.own WHERE client={number} AND k={k}");
        self.check(&sql, "-1").await?;
        self.ask("ROLLBACK").await?;
        self.check_row(k).await
    }

    async fn temporary_table(&mut self) -> Turn {
        let number = self.number;
        self.ask("CREATE TEMPORARY TABLE scratch (x INT)").await?;
        self.ask(&format!("INSERT INTO scratch VALUES ({number})"))
            .await?;
        self.check("SELECT x FROM scratch", &number.to_string())
            .await?;
        self.ask("DROP TEMPORARY TABLE scratch").await?;
        let reply = self.connection.query("SELECT x FROM scratch").await;
        match reply.err() {
            Some(err) if err.code == 1146 => Ok(()),
            _ => Err(Trouble::Wrong(format!(
                "a dropped temporary table: {:?}",
                reply.render()
            ))),
        }
    }

    // --- What the statement before left ---

    async fn switch_database(&mut self) -> Turn {
        self.database = if self.dice.roll(2) == 0 { 'a' } else { 'b' };
        let name = format!("torture_{}", self.database);
        if self.dice.roll(2) == 0 {
            self.ask(&format!("USE {name}")).await?;
        } else {
            let reply = self
                .connection
                .command(com::INIT_DB, name.as_bytes(), Expect::Single)
                .await;
            good("init db", reply)?;
        }
        self.check("SELECT DATABASE()", &name).await?;
        let expected = self.database.to_string();
        self.check("SELECT name FROM who", &expected).await
    }

    async fn warnings(&mut self) -> Turn {
        let tag = format!("{}x{}", self.number, self.dice.roll(1000));
        self.ask(&format!("SELECT CAST('{tag}' AS SIGNED)")).await?;
        let expected = format!("Warning|1292|Truncated incorrect INTEGER value: '{tag}'");
        self.check("SHOW WARNINGS", &expected).await
    }

    async fn errors(&mut self) -> Turn {
        let name = format!("column_of_{}", self.number);
        let reply = self
            .connection
            .query(format!("SELECT {name} FROM torture_a.who"))
            .await;
        match reply.err() {
            Some(err) if err.code == 1054 && err.message.contains(&name) => {}
            _ => {
                return Err(Trouble::Wrong(format!(
                    "an error of its own: {:?}",
                    reply.render()
                )));
            }
        }
        let sql = format!("INSERT INTO torture_a.own VALUES ({},0,0)", self.number);
        let reply = self.connection.query(&sql).await;
        match reply.err() {
            Some(err)
                if err.code == 1062 && err.message.contains(&format!("'{}-0'", self.number)) =>
            {
                Ok(())
            }
            _ => Err(Trouble::Wrong(format!(
                "a duplicate of its own: {:?}",
                reply.render()
            ))),
        }
    }

    async fn found_rows(&mut self) -> Turn {
        let sql = format!(
            "SELECT SQL_CALC_FOUND_ROWS k FROM torture_a.own WHERE client={} AND k<{} ORDER BY k LIMIT 1",
            self.number,
            1 + self.number % ROWS
        );
        self.check(&sql, "0").await?;
        self.check("SELECT FOUND_ROWS()", &(1 + self.number % ROWS).to_string())
            .await
    }

    async fn several(&mut self) -> Turn {
        let (number, k) = (self.number, self.dice.roll(u64::from(ROWS)) as usize);
        self.rows[k] += 5;
        let sql = format!(
            "UPDATE torture_a.own SET v=v+5 WHERE client={number} AND k={k}; \
             SELECT ROW_COUNT(); SELECT @me; SELECT v FROM torture_a.own WHERE client={number} AND k={k}"
        );
        let expected = format!("1\n{number}\n{}", self.rows[k]);
        self.check(&sql, &expected).await?;
        self.check_row(k).await
    }

    async fn cursors(&mut self) -> Turn {
        let number = self.number;
        let sum: u32 = (0..ROWS).sum();
        self.check(
            &format!("CALL torture_a.walk({number})"),
            &format!("3|{number}\n{sum}|{number}"),
        )
        .await?;
        self.check("SELECT @me", &number.to_string()).await
    }

    async fn charsets(&mut self) -> Turn {
        self.check_charset().await?;
        let at = self.dice.roll(CHARSETS.len() as u64) as usize;
        let (charset, collation, ..) = CHARSETS[at];
        if self.dice.roll(2) == 0 {
            self.ask(&format!("SET NAMES {charset} COLLATE {collation}"))
                .await?;
        } else {
            self.ask(&format!("SET NAMES {charset}")).await?;
            self.ask(&format!("SET collation_connection={collation}"))
                .await?;
        }
        self.charset = Some(at);
        self.check_charset().await
    }

    async fn check_charset(&mut self) -> Turn {
        let Some(at) = self.charset else {
            return Ok(());
        };
        let (charset, collation, bytes, equal, read) = CHARSETS[at];
        let sql = [
            b"SELECT @@character_set_client, @@character_set_results, @@collation_connection, \
              'a'='A', HEX(CONVERT('"
                .as_slice(),
            bytes,
            b"' USING utf8mb4)), t FROM torture_a.texts",
        ]
        .concat();
        let started = Instant::now();
        let reply = good("the character set", self.connection.query(&sql).await)?;
        self.note(started);
        let expected = format!("{charset}|{charset}|{collation}|{equal}|C3A9|{read}");
        same("the character set", &rows(&reply), &expected)
    }

    async fn everything(&mut self) -> Turn {
        let expected = format!(
            "{}|{}|{}|torture_{}|{}|{}",
            self.number,
            self.counter,
            self.last_insert_id,
            self.database,
            self.group_concat,
            self.inserted
        );
        let sql = format!(
            "SELECT @me, @counter, LAST_INSERT_ID(), DATABASE(), @@group_concat_max_len, \
             (SELECT COUNT(*) FROM torture_a.auto WHERE client={})",
            self.number
        );
        self.check(&sql, &expected).await
    }
}

fn good(sql: &str, reply: Reply) -> Result<Reply, Trouble> {
    match (reply.err(), reply.broken()) {
        (Some(err), _) => Err(Trouble::Failed(format!("{sql}: {err}"))),
        (None, Some(why)) => Err(Trouble::Failed(format!("{sql}: {why}"))),
        (None, None) => Ok(reply),
    }
}

fn same(sql: &str, got: &str, expected: &str) -> Turn {
    if got == expected {
        return Ok(());
    }
    Err(Trouble::Wrong(format!(
        "{sql}: {got:?} instead of {expected:?}"
    )))
}

fn rows(reply: &Reply) -> String {
    let lines: Vec<String> = reply
        .rows()
        .into_iter()
        .map(|row| {
            let row: Vec<String> = row
                .into_iter()
                .map(|v| v.unwrap_or_else(|| "NULL".to_owned()))
                .collect();
            row.join("|")
        })
        .collect();
    lines.join("\n")
}

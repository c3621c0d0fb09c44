//! One client of the workload: a session that knows what every answer must be, and checks it.
//! It knows nothing of servers; it sees one database.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::{FromRow, Queryable};
use mysql_async::{Conn, FromRowError, Opts, Params, Row, Value, from_row_opt};
use tokio::sync::watch;

use super::random::Random;
use super::schema::{ACCOUNTS, ITEMS, TOTAL_BALANCE, price};
use super::tally::{Tally, bump};

/// A client rests so long after each step on average, as applications do.
const REST_MS: u64 = 50;
/// Notes that a client keeps.
const NOTES_MAX: usize = 10;

/// Why a session cannot go on.
enum Fault {
    /// An error, from a server or on the way.
    Error(mysql_async::Error),
    /// Rows that are no answer to this statement.
    Shape(String),
}

impl From<mysql_async::Error> for Fault {
    fn from(error: mysql_async::Error) -> Self {
        Fault::Error(error)
    }
}

type Outcome = Result<(), Fault>;

/// Lives until `stop` says so; a session that fails is followed by a new one.
pub(super) async fn live(
    number: u64,
    opts: Opts,
    tally: Arc<Tally>,
    mut stop: watch::Receiver<bool>,
) {
    let mut seed = number;
    while !*stop.borrow() {
        match Client::connect(number, seed, opts.clone(), tally.clone()).await {
            Ok(client) => client.work(&mut stop).await,
            Err(fault) => tell(&tally, "login", fault),
        }
        if !*stop.borrow() {
            seed += 1 << 32;
            rest(&mut stop, 500).await;
        }
    }
}

fn tell(tally: &Tally, what: &str, fault: Fault) {
    match fault {
        Fault::Error(error) => tally.error(what, &error),
        Fault::Shape(text) => tally.wrong(what, text),
    }
}

/// Cut short when it is time to stop.
async fn rest(stop: &mut watch::Receiver<bool>, ms: u64) {
    // Elapsed is the usual case: the client has rested.
    let _ = tokio::time::timeout(Duration::from_millis(ms), stop.wait_for(|stop| *stop)).await;
}

/// A row that this client wrote and nobody else touches.
#[derive(Debug)]
struct Note {
    id: u64,
    body: String,
    edits: u64,
}

struct Client {
    number: u64,
    conn: Conn,
    tally: Arc<Tally>,
    random: Random,
    notes: Vec<Note>,
}

impl Client {
    /// Logs in, gives the session a state that no other client's has, and forgets what an earlier
    /// session of this client has written.
    async fn connect(number: u64, seed: u64, opts: Opts, tally: Arc<Tally>) -> Result<Self, Fault> {
        let mut client = Client {
            number,
            conn: Conn::new(opts).await?,
            tally,
            random: Random::new(seed),
            notes: Vec::new(),
        };
        let (zone, length) = (client.time_zone(), client.concat_length());
        client.session(&format!("SET @client = {number}")).await?;
        client
            .session(&format!(
                "SET time_zone = '{zone}', group_concat_max_len = {length}"
            ))
            .await?;
        client
            .write(
                "DELETE FROM demo_note WHERE client = ?",
                vec![number.into()],
            )
            .await?;
        Ok(client)
    }

    async fn work(mut self, stop: &mut watch::Receiver<bool>) {
        while !*stop.borrow() {
            let (name, outcome) = self.step().await;
            if let Err(fault) = outcome {
                tell(&self.tally, name, fault);
                return;
            }
            let ms = self.random.within(0..2 * REST_MS);
            rest(stop, ms).await;
        }
        if let Err(error) = self.conn.disconnect().await {
            self.tally.error("good-bye", &error);
        }
    }

    async fn step(&mut self) -> (&'static str, Outcome) {
        match self.random.within(0..20) {
            0..=6 => ("look up an item", self.look_up().await),
            7..=8 => ("list items", self.list().await),
            9..=11 if self.notes.len() < NOTES_MAX => ("write a note", self.write_note().await),
            9..=11 => ("delete a note", self.delete_note().await),
            12..=13 => ("edit a note", self.edit_note().await),
            14..=16 => ("transfer", self.transfer().await),
            17 => ("audit", self.audit().await),
            18 => ("snapshot", self.read_only_transaction().await),
            _ => ("session state", self.own_state().await),
        }
    }

    // --- Reads of what everybody reads ---

    async fn look_up(&mut self) -> Outcome {
        let id = self.random.within(1..ITEMS + 1);
        let sql = "SELECT name, price FROM demo_item WHERE id = ?";
        let rows: Vec<(String, u64)> = self.read(sql, vec![id.into()]).await?;
        self.check("the item", &rows, &vec![(format!("item {id}"), price(id))]);
        Ok(())
    }

    async fn list(&mut self) -> Outcome {
        let first = self.random.within(1..ITEMS - 20);
        let sql = "SELECT id, price FROM demo_item WHERE id BETWEEN ? AND ? ORDER BY id";
        let rows: Vec<(u64, u64)> = self
            .read(sql, vec![first.into(), (first + 19).into()])
            .await?;
        let expected = (first..first + 20).map(|id| (id, price(id))).collect();
        self.check("the items", &rows, &expected);
        Ok(())
    }

    /// Every server must at every moment show either both sides of a transfer or none.
    async fn audit(&mut self) -> Outcome {
        let sums = self.balances().await?;
        self.check("balances in all", &sums, &vec![TOTAL_BALANCE]);
        Ok(())
    }

    async fn balances(&mut self) -> Result<Vec<u64>, Fault> {
        let sql = "SELECT CAST(SUM(balance) AS UNSIGNED) FROM demo_account";
        self.read(sql, Vec::new()).await
    }

    /// Within one transaction the same rows are read twice.
    async fn read_only_transaction(&mut self) -> Outcome {
        let account = self.random.within(1..ACCOUNTS + 1);
        let sql = "SELECT balance FROM demo_account WHERE id = ?";
        self.transaction("START TRANSACTION READ ONLY").await?;
        let first: Vec<i64> = self.read(sql, vec![account.into()]).await?;
        let sums = self.balances().await?;
        let second: Vec<i64> = self.read(sql, vec![account.into()]).await?;
        self.transaction("COMMIT").await?;
        self.check("balances in the snapshot", &sums, &vec![TOTAL_BALANCE]);
        self.check("the balance read again", &second, &first);
        Ok(())
    }

    // --- Own writes ---

    async fn write_note(&mut self) -> Outcome {
        let body = format!(
            "note {} of client {}",
            self.random.within(0..1 << 40),
            self.number
        );
        let sql = "INSERT INTO demo_note (client, body, edits) VALUES (?, ?, 0)";
        let values = vec![self.number.into(), body.as_str().into()];
        self.write(sql, values).await?;
        let id = self.inserted();
        self.notes.push(Note { id, body, edits: 0 });
        if self.random.one_in(2) {
            let told: Vec<u64> = self.read("SELECT LAST_INSERT_ID()", Vec::new()).await?;
            self.check("LAST_INSERT_ID()", &told, &vec![id]);
        }
        self.read_note(self.notes.len() - 1).await
    }

    async fn edit_note(&mut self) -> Outcome {
        let Some(index) = self.any_note() else {
            return self.write_note().await;
        };
        let id = self.notes[index].id;
        let sql = "UPDATE demo_note SET edits = edits + 1 WHERE id = ?";
        let affected = self.write(sql, vec![id.into()]).await?;
        self.check("rows edited", &affected, &1);
        self.notes[index].edits += 1;
        self.read_note(index).await
    }

    async fn delete_note(&mut self) -> Outcome {
        let Some(index) = self.any_note() else {
            return Ok(());
        };
        let note = self.notes.swap_remove(index);
        let affected = self
            .write("DELETE FROM demo_note WHERE id = ?", vec![note.id.into()])
            .await?;
        self.check("rows deleted", &affected, &1);
        let sql = "SELECT COUNT(*), CAST(COALESCE(SUM(edits), 0) AS UNSIGNED) FROM demo_note \
                   WHERE client = ?";
        let rows: Vec<(u64, u64)> = self.read(sql, vec![self.number.into()]).await?;
        let edits = self.notes.iter().map(|note| note.edits).sum();
        self.check("own notes", &rows, &vec![(self.notes.len() as u64, edits)]);
        Ok(())
    }

    async fn read_note(&mut self, index: usize) -> Outcome {
        let note = &self.notes[index];
        let (id, expected) = (note.id, vec![(note.body.clone(), note.edits)]);
        let sql = "SELECT body, edits FROM demo_note WHERE id = ?";
        let rows: Vec<(String, u64)> = self.read(sql, vec![id.into()]).await?;
        self.check("the own note", &rows, &expected);
        Ok(())
    }

    fn any_note(&mut self) -> Option<usize> {
        let count = self.notes.len() as u64;
        (count > 0).then(|| self.random.within(0..count) as usize)
    }

    // --- Transactions ---

    /// Accounts are locked in the order of their numbers, so that no two transfers deadlock.
    async fn transfer(&mut self) -> Outcome {
        let lower = self.random.within(1..ACCOUNTS);
        let higher = self.random.within(lower + 1..ACCOUNTS + 1);
        let amount = self.random.within(1..20);
        let down = self.random.one_in(2);
        let (source, target) = if down {
            (higher, lower)
        } else {
            (lower, higher)
        };
        self.transaction("START TRANSACTION").await?;
        for account in [lower, higher] {
            let sign = if account == source { '-' } else { '+' };
            let sql = format!("UPDATE demo_account SET balance = balance {sign} ? WHERE id = ?");
            let affected = self
                .write(&sql, vec![amount.into(), account.into()])
                .await?;
            self.check("accounts changed", &affected, &1);
        }
        let sql = "INSERT INTO demo_transfer (source, target, amount) VALUES (?, ?, ?)";
        self.write(sql, vec![source.into(), target.into(), amount.into()])
            .await?;
        let id = self.inserted();
        self.read_transfer(id, &[(source, target, amount)]).await?;
        if self.random.one_in(5) {
            self.transaction("ROLLBACK").await?;
            self.read_transfer(id, &[]).await
        } else {
            self.transaction("COMMIT").await?;
            bump(&self.tally.transfers);
            self.read_transfer(id, &[(source, target, amount)]).await
        }
    }

    async fn read_transfer(&mut self, id: u64, expected: &[(u64, u64, u64)]) -> Outcome {
        let sql = "SELECT source, target, amount FROM demo_transfer WHERE id = ?";
        let rows: Vec<(u64, u64, u64)> = self.read(sql, vec![id.into()]).await?;
        self.check("the transfer", &rows.as_slice(), &expected);
        Ok(())
    }

    // --- The session's own state ---

    async fn own_state(&mut self) -> Outcome {
        let sql = "SELECT @client, @@time_zone, @@group_concat_max_len, DATABASE()";
        let rows: Vec<(u64, String, u64, String)> = self.read(sql, Vec::new()).await?;
        let expected = (
            self.number,
            self.time_zone(),
            self.concat_length(),
            "app".to_owned(),
        );
        self.check("the session's state", &rows, &vec![expected]);
        bump(&self.tally.reads);
        let ids: Vec<u32> = self.conn.query("SELECT CONNECTION_ID()").await?;
        self.check("CONNECTION_ID()", &ids, &vec![self.conn.id()]);
        Ok(())
    }

    fn time_zone(&self) -> String {
        format!("+{:02}:{:02}", self.number % 13, self.number / 13 % 60)
    }

    fn concat_length(&self) -> u64 {
        2000 + self.number
    }

    // --- Statements ---

    async fn read<R: FromRow + Send + 'static>(
        &mut self,
        sql: &str,
        values: Vec<Value>,
    ) -> Result<Vec<R>, Fault> {
        bump(&self.tally.reads);
        let rows: Vec<Row> = if self.prepared() {
            self.conn.exec(sql, params(values)).await?
        } else {
            self.conn.query(with_values(sql, &values)).await?
        };
        let converted = rows.into_iter().map(from_row_opt);
        converted
            .collect::<Result<_, FromRowError>>()
            .map_err(|error| Fault::Shape(format!("{sql}: got {:?}", error.0)))
    }

    /// The number of affected rows.
    async fn write(&mut self, sql: &str, values: Vec<Value>) -> Result<u64, Fault> {
        bump(&self.tally.writes);
        if self.prepared() {
            self.conn.exec_drop(sql, params(values)).await?;
        } else {
            self.conn.query_drop(with_values(sql, &values)).await?;
        }
        Ok(self.conn.affected_rows())
    }

    async fn transaction(&mut self, sql: &str) -> Outcome {
        bump(&self.tally.transaction_ends);
        Ok(self.conn.query_drop(sql).await?)
    }

    async fn session(&mut self, sql: &str) -> Outcome {
        bump(&self.tally.session);
        Ok(self.conn.query_drop(sql).await?)
    }

    /// Half of the statements are prepared, the others text.
    fn prepared(&mut self) -> bool {
        let prepared = self.random.one_in(2);
        if prepared {
            bump(&self.tally.prepared);
        }
        prepared
    }

    /// The id that the insert just done was given. That it is the right one shows when the row
    /// is read by it.
    fn inserted(&self) -> u64 {
        let id = self.conn.last_insert_id().unwrap_or(0);
        self.check("an id was given", &(id > 0), &true);
        id
    }

    fn check<T: PartialEq + std::fmt::Debug>(&self, what: &str, got: &T, expected: &T) {
        self.tally.check(what, got, expected);
    }
}

fn params(values: Vec<Value>) -> Params {
    if values.is_empty() {
        Params::Empty
    } else {
        Params::Positional(values)
    }
}

/// The statement as text, its placeholders filled in. The workload's texts have no other "?".
fn with_values(sql: &str, values: &[Value]) -> String {
    let mut parts = sql.split('?');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for (part, value) in parts.zip(values) {
        text += &value.as_sql(false);
        text += part;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_in_order() {
        let values = [Value::from(7), Value::from("it's")];
        let text = with_values("SELECT ? FROM t WHERE a = ? LIMIT 1", &values);
        assert_eq!(text, r"SELECT 7 FROM t WHERE a = 'it\'s' LIMIT 1");
        assert_eq!(with_values("SELECT 1", &[]), "SELECT 1");
    }
}

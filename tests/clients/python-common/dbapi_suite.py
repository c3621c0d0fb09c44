"""The application-like script for the two DB-API drivers, PyMySQL and mysqlclient.

Each driver's folder gives an `Adapter`; all the statements and what is expected of them are here.
"""

import datetime as dt
import decimal
import os
import random
import tempfile
import threading
import time

from check import Settings, Skip, Suite, equal, eventually, shorten, true

settings = Settings()
suite = Suite()
MYSQL = settings.family == "mysql"

ER_DUP_ENTRY = 1062
ER_PARSE_ERROR = 1064
ER_NO_SUCH_TABLE = 1146
ER_BAD_FIELD = 1054
ER_BAD_DB = 1049
ER_ACCESS_DENIED = 1045
ER_LOCK_WAIT_TIMEOUT = 1205
ER_LOCK_DEADLOCK = 1213
ER_ROW_IS_REFERENCED_2 = 1451
ER_NO_REFERENCED_ROW_2 = 1452
ER_QUERY_INTERRUPTED = 1317
ER_NO_SUCH_THREAD = 1094
ER_DATA_TOO_LONG = 1406
ER_DIVISION_BY_ZERO = 1365
ER_CANT_EXECUTE_IN_READ_ONLY = 1792
ER_UNKNOWN_STMT_HANDLER = 1243
ER_NET_PACKET_TOO_LARGE = 1153
ER_SIGNAL = 45


class Session:
    """One connection with the few verbs the groups need."""

    def __init__(self, adapter, **options):
        options.setdefault("db", settings.db)
        self.adapter = adapter
        self.con = adapter.connect(**options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.con.close()
        except Exception:
            pass

    def do(self, sql, args=None):
        """Runs a statement; returns (affected rows, last insert id)."""
        with self.con.cursor() as cur:
            cur.execute(sql, args)
            return cur.rowcount, cur.lastrowid

    def rows(self, sql, args=None):
        with self.con.cursor() as cur:
            cur.execute(sql, args)
            return list(cur.fetchall())

    def row(self, sql, args=None):
        rows = self.rows(sql, args)
        equal(len(rows), 1, f"rows of {sql}")
        return rows[0]

    def one(self, sql, args=None):
        return self.row(sql, args)[0]

    def error(self, sql, args=None):
        """Runs a statement that must fail; returns (code, message)."""
        try:
            with self.con.cursor() as cur:
                cur.execute(sql, args)
                cur.fetchall()
        except Exception as error:
            if not isinstance(error, self.adapter.Error):
                raise
            return error.args[0], str(error.args[1])
        raise AssertionError(f"{sql}: no error")


def fails(session, code, sql, args=None):
    got, message = session.error(sql, args)
    equal(got, code, f"{sql}: {message}")
    return message


@suite.group
def connect_and_identify(adapter):
    with Session(adapter, db=None) as s:
        version = s.one("SELECT VERSION()")
        equal("MariaDB" in version, not MYSQL, f"family of server version {version}")
        equal(s.one("SELECT DATABASE()"), None)
        equal(s.one("SELECT SUBSTRING_INDEX(USER(), '@', 1)"), settings.user)
        equal(s.one("SELECT CONNECTION_ID()"), s.con.thread_id(), "CONNECTION_ID() against the handshake's")
        equal(adapter.uses_tls(s.con), settings.tls, "TLS in use")
        equal(adapter.server_version(s.con).split("-")[0] in version or version in adapter.server_version(s.con),
              True, "the handshake's server version")
        s.con.ping()
        true(adapter.statistics(s.con) is None or "Threads" in adapter.statistics(s.con), "COM_STATISTICS")


@suite.group
def wrong_logins(adapter):
    for options, code in (({"password": settings.password + "x"}, ER_ACCESS_DENIED),
                          # MySQL feigns any of its plugins for such a user, also one the driver lacks.
                          ({"user": "nobody_of_this_name"}, None),
                          ({"db": "no_such_database_here"}, ER_BAD_DB)):
        try:
            Session(adapter, **{"db": None, **options})
        except adapter.Error as error:
            equal(error.args[0], code or error.args[0], f"login with {list(options)}")
        else:
            raise AssertionError(f"login with {options} went through")
    with Session(adapter, db=None) as s:
        equal(s.one("SELECT 1"), 1)


@suite.group
def schema(adapter):
    with Session(adapter, db=None) as s:
        s.do(f"DROP DATABASE IF EXISTS {settings.db}")
        s.do(f"CREATE DATABASE {settings.db} CHARACTER SET utf8mb4")
        s.con.select_db(settings.db)
        equal(s.one("SELECT DATABASE()"), settings.db)
        s.do("""CREATE TABLE customers (
                  id INT UNSIGNED AUTO_INCREMENT PRIMARY KEY,
                  email VARCHAR(100) NOT NULL UNIQUE,
                  name VARCHAR(60),
                  balance DECIMAL(20,4) NOT NULL DEFAULT 0,
                  created TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6)) ENGINE=InnoDB""")
        s.do("""CREATE TABLE orders (
                  id BIGINT AUTO_INCREMENT PRIMARY KEY,
                  customer INT UNSIGNED NOT NULL,
                  item VARCHAR(50), qty INT DEFAULT 1,
                  CONSTRAINT fk_customer FOREIGN KEY (customer) REFERENCES customers(id)) ENGINE=InnoDB""")
        s.do("CREATE VIEW rich AS SELECT id, email FROM customers WHERE balance >= 1000")
        s.do("CREATE TABLE nums (n INT PRIMARY KEY)")
        s.do("INSERT INTO nums VALUES " + ",".join(f"({n})" for n in range(1000)))
        s.do("ALTER TABLE customers ADD COLUMN note TEXT, ADD INDEX (name)")
        tables = [r[0] for r in s.rows("SHOW TABLES")]
        equal(sorted(tables), ["customers", "nums", "orders", "rich"])
        columns = [r[0] for r in s.rows("DESCRIBE customers")]
        equal(columns, ["id", "email", "name", "balance", "created", "note"])
        equal(s.one("SELECT COUNT(*) FROM information_schema.columns "
                    "WHERE table_schema = DATABASE() AND table_name = 'orders'"), 4)
        true("fk_customer" in s.row("SHOW CREATE TABLE orders")[1], "SHOW CREATE TABLE")
        true(len(s.rows("EXPLAIN SELECT * FROM customers WHERE id = 1")) == 1, "EXPLAIN")
    # A session of its own sees the new database at once: it was made before it logged in.
    with Session(adapter) as s:
        eventually("tables seen by a new session", 4, lambda: len(s.rows("SHOW TABLES")))


@suite.group
def generated_ids(adapter):
    with Session(adapter) as s:
        s.con.autocommit(True)
        _, first = s.do("INSERT INTO customers (email, name) VALUES (%s, %s)", ("ann@example.com", "Ann"))
        true(first > 0, "the driver's last insert id")
        equal(s.one("SELECT LAST_INSERT_ID()"), first)
        equal(s.one("SELECT name FROM customers WHERE id = LAST_INSERT_ID()"), "Ann")
        equal(s.one("SELECT name FROM customers WHERE id = %s", (first,)), "Ann")
        count, multi = s.do("INSERT INTO customers (email) VALUES ('b@x'), ('c@x'), ('d@x')")
        equal(count, 3)
        equal(s.one("SELECT LAST_INSERT_ID()"), multi)
        s.one("SELECT COUNT(*) FROM customers")
        s.do("UPDATE customers SET name = 'B' WHERE email = 'b@x'")
        equal(s.one("SELECT LAST_INSERT_ID()"), multi, "after reads and updates in between")
        _, order = s.do("INSERT INTO orders (customer, item) VALUES (LAST_INSERT_ID(), 'thing')")
        equal(s.one("SELECT customer FROM orders WHERE id = %s", (order,)), multi)
        s.do("UPDATE customers SET id = LAST_INSERT_ID(id), name = 'C' WHERE email = 'c@x'")
        equal(s.one("SELECT LAST_INSERT_ID()"), multi + 1, "LAST_INSERT_ID(expr)")
        count, same = s.do("INSERT INTO customers (email) VALUES ('d@x') "
                           "ON DUPLICATE KEY UPDATE id = LAST_INSERT_ID(id), name = 'D'")
        equal((count, same), (2, multi + 2), "ON DUPLICATE KEY UPDATE")


@suite.group
def own_writes_at_once(adapter):
    with Session(adapter) as s:
        s.con.autocommit(True)
        s.do("CREATE TABLE own (id INT PRIMARY KEY, v INT)")
        for i in range(60):
            s.do("INSERT INTO own VALUES (%s, %s)", (i, i * 2))
            equal(s.one("SELECT v FROM own WHERE id = %s", (i,)), i * 2, f"insert {i}")
            s.do("UPDATE own SET v = v + 1 WHERE id = %s", (i,))
            equal(s.one("SELECT v FROM own WHERE id = %s", (i,)), i * 2 + 1, f"update {i}")
            if i % 3 == 0:
                s.do("DELETE FROM own WHERE id = %s", (i,))
                equal(s.rows("SELECT v FROM own WHERE id = %s", (i,)), [], f"delete {i}")
        equal(s.row("SELECT COUNT(*), SUM(v) FROM own"),
              (40, sum(i * 2 + 1 for i in range(60) if i % 3)))
        for i in range(10):
            s.do(f"CREATE TABLE own_{i} (x INT)")
            equal(s.rows(f"SELECT * FROM own_{i}"), [])
            s.do(f"DROP TABLE own_{i}")
            fails(s, ER_NO_SUCH_TABLE, f"SELECT * FROM own_{i}")


@suite.group
def transactions(adapter):
    with Session(adapter) as s, Session(adapter) as other:
        other.con.autocommit(True)
        s.con.autocommit(False)
        s.do("CREATE TABLE tx (id INT PRIMARY KEY, v INT)")
        s.do("INSERT INTO tx VALUES (1, 10)")
        equal(s.one("SELECT v FROM tx WHERE id = 1"), 10, "own uncommitted row")
        equal(other.one("SELECT COUNT(*) FROM tx FOR UPDATE SKIP LOCKED"), 0, "another session before COMMIT")
        s.con.rollback()
        equal(s.rows("SELECT * FROM tx"), [], "after ROLLBACK")
        s.do("INSERT INTO tx VALUES (1, 10), (2, 20)")
        s.con.commit()
        equal(other.one("SELECT COUNT(*) FROM tx FOR UPDATE"), 2, "another session after COMMIT")

        s.do("INSERT INTO tx VALUES (3, 30)")
        s.do("SAVEPOINT a")
        s.do("INSERT INTO tx VALUES (4, 40)")
        s.do("ROLLBACK TO SAVEPOINT a")
        s.do("RELEASE SAVEPOINT a")
        s.con.commit()
        equal(s.rows("SELECT id FROM tx ORDER BY id"), [(1,), (2,), (3,)], "savepoint")
        s.con.commit()

        s.con.autocommit(True)
        for begin in ("BEGIN", "START TRANSACTION", "START TRANSACTION READ WRITE",
                      "START TRANSACTION WITH CONSISTENT SNAPSHOT", "begin work"):
            s.do(begin)
            s.do("UPDATE tx SET v = v + 1 WHERE id = 1")
            before = s.one("SELECT v FROM tx WHERE id = 1")
            s.do("ROLLBACK")
            equal(s.one("SELECT v FROM tx WHERE id = 1"), before - 1, begin)
        s.do("START TRANSACTION READ ONLY")
        s.one("SELECT COUNT(*) FROM tx")
        fails(s, ER_CANT_EXECUTE_IN_READ_ONLY, "INSERT INTO tx VALUES (9, 9)")
        s.do("COMMIT")
        s.do("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        s.do("START TRANSACTION")
        equal(s.one("SELECT v FROM tx WHERE id = 2"), 20)
        other.do("UPDATE tx SET v = 21 WHERE id = 2")
        equal(s.one("SELECT v FROM tx WHERE id = 2"), 21, "READ COMMITTED sees the other's commit")
        s.do("COMMIT")
        s.do("START TRANSACTION")
        s.do("DELETE FROM tx WHERE id = 3")
        s.do("CREATE TABLE implicit_commit (x INT)")
        s.do("ROLLBACK")
        equal(s.rows("SELECT * FROM tx WHERE id = 3"), [], "DDL commits what came before")
        s.do("BEGIN")
        s.do("UPDATE tx SET v = 5 WHERE id = 1")
        s.do("COMMIT AND CHAIN")
        s.do("UPDATE tx SET v = 6 WHERE id = 1")
        s.do("ROLLBACK")
        equal(s.one("SELECT v FROM tx WHERE id = 1"), 5, "COMMIT AND CHAIN")
        s.do("SET autocommit = 0")
        s.do("UPDATE tx SET v = 7 WHERE id = 1")
        s.do("SET autocommit = 1")
        s.do("ROLLBACK")
        equal(s.one("SELECT v FROM tx WHERE id = 1"), 7, "SET autocommit = 1 commits")


@suite.group
def a_dropped_connection_rolls_back(adapter):
    with Session(adapter) as watch:
        watch.con.autocommit(True)
        s = Session(adapter)
        s.do("BEGIN")
        s.do("INSERT INTO tx VALUES (100, 1)")
        s.con.close()
        eventually("row of a session that went away", 0,
                   lambda: watch.one("SELECT COUNT(*) FROM tx WHERE id = 100 FOR UPDATE"))


@suite.group
def locks_and_deadlocks(adapter):
    with Session(adapter) as a, Session(adapter) as b:
        for s in (a, b):
            s.con.autocommit(False)
            s.do("SET innodb_lock_wait_timeout = 1")
        a.one("SELECT v FROM tx WHERE id = 1 FOR UPDATE")
        fails(b, 3572 if MYSQL else ER_LOCK_WAIT_TIMEOUT, "SELECT v FROM tx WHERE id = 1 FOR UPDATE NOWAIT")
        b.con.rollback()
        fails(b, ER_LOCK_WAIT_TIMEOUT, "UPDATE tx SET v = 0 WHERE id = 1")
        a.con.rollback()
        b.con.rollback()

        for s in (a, b):
            s.do("SET innodb_lock_wait_timeout = 20")
        a.do("UPDATE tx SET v = v + 1 WHERE id = 1")
        b.do("UPDATE tx SET v = v + 1 WHERE id = 2")
        outcome = []

        def crosswise():
            try:
                a.do("UPDATE tx SET v = v + 1 WHERE id = 2")
                outcome.append(0)
            except adapter.Error as error:
                outcome.append(error.args[0])

        thread = threading.Thread(target=crosswise)
        thread.start()
        time.sleep(0.2)
        try:
            b.do("UPDATE tx SET v = v + 1 WHERE id = 1")
            outcome.append(0)
        except adapter.Error as error:
            outcome.append(error.args[0])
            b.con.rollback()
        thread.join(30)
        equal(sorted(outcome), [0, ER_LOCK_DEADLOCK], "one of the two is the deadlock's victim")
        a.con.rollback()
        b.con.rollback()

        a.con.autocommit(True)
        b.con.autocommit(True)
        name = settings.db + "_lock"
        equal(a.one("SELECT GET_LOCK(%s, 1)", (name,)), 1)
        equal(b.one("SELECT GET_LOCK(%s, 0)", (name,)), 0, "a lock another session holds")
        # Servers number their connections themselves: a proxy's clients have other numbers.
        true(b.one("SELECT IS_USED_LOCK(%s)", (name,)) is not None, "somebody holds it")
        equal(a.one("SELECT RELEASE_LOCK(%s)", (name,)), 1)
        equal(b.one("SELECT GET_LOCK(%s, 5)", (name,)), 1)
        equal(b.one("SELECT RELEASE_LOCK(%s)", (name,)), 1)

        a.do("LOCK TABLES tx WRITE")
        a.do("UPDATE tx SET v = v + 1 WHERE id = 1")
        fails(a, 1100, "SELECT COUNT(*) FROM nums")
        a.do("UNLOCK TABLES")
        equal(a.one("SELECT COUNT(*) FROM nums"), 1000)


@suite.group
def forty_clients_at_once(adapter):
    with Session(adapter) as s:
        s.do("CREATE TABLE crowd (id INT AUTO_INCREMENT PRIMARY KEY, who INT, n INT, txt VARCHAR(50), KEY (who))")
        s.do("CREATE TABLE tally (id INT PRIMARY KEY, total INT)")
        s.do("INSERT INTO tally VALUES (1, 0)")
        s.con.commit()
    problems = []
    gate = threading.Barrier(40, timeout=60)

    def client(who):
        try:
            with Session(adapter) as s:
                s.con.autocommit(True)
                me = f"client-{who}"
                zone = f"{'+' if who % 2 else '-'}{who % 12:02d}:30"
                s.do("SET @me = %s, time_zone = %s", (me, zone))
                gate.wait()
                for n in range(12):
                    _, key = s.do("INSERT INTO crowd (who, n, txt) VALUES (%s, %s, @me)", (who, n))
                    equal(s.row("SELECT who, n, txt FROM crowd WHERE id = %s", (key,)), (who, n, me))
                    equal(s.one("SELECT LAST_INSERT_ID()"), key, "last insert id")
                    equal(s.row("SELECT @me, @@time_zone"), (me, zone), "session state")
                    if n % 4 == 0:
                        s.do("BEGIN")
                        s.do("UPDATE tally SET total = total + 1 WHERE id = 1")
                        s.do("COMMIT")
                equal(s.one("SELECT COUNT(*) FROM crowd WHERE who = %s", (who,)), 12, "own rows")
        except Exception as error:
            problems.append(f"client {who}: {error!r}")

    threads = [threading.Thread(target=client, args=(who,)) for who in range(40)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(90)
    equal(problems[:3], [], f"{len(problems)} of 40 clients")
    with Session(adapter) as s:
        equal(s.one("SELECT total FROM tally FOR UPDATE"), 120)
        equal(s.one("SELECT COUNT(*) FROM crowd FOR UPDATE"), 480)


@suite.group
def session_settings(adapter):
    with Session(adapter) as s:
        s.con.autocommit(True)
        s.do("CREATE TABLE zones (ts TIMESTAMP, d DATETIME)")
        s.do("SET time_zone = '+02:00'")
        s.do("INSERT INTO zones VALUES ('2024-01-15 12:00:00', '2024-01-15 12:00:00')")
        s.do("SET time_zone = '-08:00'")
        equal(s.row("SELECT CAST(ts AS CHAR), CAST(d AS CHAR) FROM zones"),
              ("2024-01-15 02:00:00", "2024-01-15 12:00:00"), "time zones")
        strict = s.one("SELECT @@sql_mode")
        fails(s, ER_DATA_TOO_LONG, "INSERT INTO customers (email, name) VALUES ('long@x', REPEAT('x', 100))")
        s.do("SET sql_mode = ''")
        s.do("INSERT INTO customers (email, name) VALUES ('long@x', REPEAT('x', 100))")
        warnings = s.rows("SHOW WARNINGS")
        equal([(w[0], w[1]) for w in warnings], [("Warning", 1265)])
        s.do("SET SESSION sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES,PIPES_AS_CONCAT')")
        equal(s.one('''SELECT "name" || 'y' FROM customers WHERE "email" = 'ann@example.com' '''), "Anny", "ANSI_QUOTES")
        s.do("SET sql_mode = %s", (strict,))
        equal(s.one('SELECT "name"'), "name")
        s.do("SET SESSION group_concat_max_len = 10")
        equal(s.one("SELECT GROUP_CONCAT(n ORDER BY n SEPARATOR '') FROM nums"), "0123456789")
        s.do("SET @a = 5, @b := 'text', @c = NULL, @d = 1.50, @e = 0x41")
        equal(s.row("SELECT @a + 1, @b, @c, @d, CAST(@e AS CHAR)"), (6, "text", None, decimal.Decimal("1.50"), "A"))
        s.do("SELECT COUNT(*) INTO @counted FROM nums")
        equal(s.one("SELECT @counted"), 1000)
        s.rows("SELECT @x := n FROM nums WHERE n = 77")
        equal(s.one("SELECT @x"), 77)
        s.do("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        equal(s.one("SELECT @@transaction_isolation" if MYSQL else "SELECT @@tx_isolation"), "SERIALIZABLE")
        s.do("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        s.do("SET SESSION sql_select_limit = 3")
        equal(len(s.rows("SELECT n FROM nums")), 3)
        s.do("SET sql_select_limit = DEFAULT")
        equal(len(s.rows("SELECT n FROM nums")), 1000)
        s.rows("SELECT SQL_CALC_FOUND_ROWS n FROM nums WHERE n < 500 LIMIT 7")
        equal(s.one("SELECT FOUND_ROWS()"), 500)
        s.do("UPDATE nums SET n = n WHERE n < 10")
        true(s.one("SELECT ROW_COUNT()") in (0, 10), "ROW_COUNT()")
        s.do("CREATE TEMPORARY TABLE mine (x INT)")
        s.do("INSERT INTO mine VALUES (1), (2)")
        equal(s.one("SELECT SUM(x) FROM mine"), 3)
        s.rows("SELECT 1 FROM nums LIMIT 1")
        equal(s.one("SELECT COUNT(*) FROM mine JOIN nums ON n = x"), 2)
        s.do("CREATE TEMPORARY TABLE nums (hidden INT)")
        equal(s.rows("SELECT * FROM nums"), [], "a temporary table hides the real one")
        s.do("DROP TEMPORARY TABLE nums, mine")
        equal(s.one("SELECT COUNT(*) FROM nums"), 1000)
        fails(s, ER_NO_SUCH_TABLE, "SELECT * FROM mine")
        fails(s, 1193, "SET no_such_variable_of_any_server = 1")
    with Session(adapter, init_command="SET @greeting = 'hello', time_zone = '+09:00'") as s:
        equal(s.row("SELECT @greeting, @@time_zone"), ("hello", "+09:00"), "init command")


@suite.group
def warnings_and_diagnostics(adapter):
    with Session(adapter) as s:
        s.do("DROP TABLE IF EXISTS not_there_at_all")
        equal([w[1] for w in s.rows("SHOW WARNINGS")], [1051])
        equal(s.one("SELECT CAST('12x' AS SIGNED)"), 12)
        equal([w[1] for w in s.rows("SHOW WARNINGS")], [1292])
        equal(s.one("SELECT @@warning_count"), 1)
        s.error("SELECT * FROM nowhere_to_be_seen")
        equal([(w[0], w[1]) for w in s.rows("SHOW ERRORS")], [("Error", ER_NO_SUCH_TABLE)])
        s.error("SELECT * FROM nowhere_to_be_seen")
        s.do("GET DIAGNOSTICS CONDITION 1 @state = RETURNED_SQLSTATE, @code = MYSQL_ERRNO")
        equal(s.row("SELECT @state, @code"), ("42S02", ER_NO_SUCH_TABLE))
        equal(s.one("SELECT COUNT(*) FROM nums"), 1000)
        equal(s.rows("SHOW WARNINGS"), [], "a clean statement clears them")


@suite.group
def character_sets(adapter):
    text = "naïve Größe 日本語 😀 \u202eغربي"
    with Session(adapter) as s:
        s.con.autocommit(True)
        s.do("CREATE TABLE texts (id INT PRIMARY KEY, t VARCHAR(100) CHARACTER SET utf8mb4, l VARCHAR(20) CHARACTER SET latin1)")
        s.do("INSERT INTO texts VALUES (1, %s, %s)", (text, "café"))
        equal(s.row("SELECT t, l, CHAR_LENGTH(t), HEX(l) FROM texts WHERE id = 1"),
              (text, "café", len(text), "636166E9"))
        equal(s.one("SELECT id FROM texts WHERE t = %s", (text,)), 1)
        equal(s.one("SELECT %s", ("\\ ' \" \0 \n %% \x1a",)), "\\ ' \" \0 \n %% \x1a", "escapes")
        s.do("SET NAMES utf8mb4 COLLATE utf8mb4_bin")
        equal(s.one("SELECT @@collation_connection"), "utf8mb4_bin")
        equal(s.one("SELECT 'a' = 'A'"), 0)
        s.do("SET collation_connection = utf8mb4_general_ci")
        equal(s.one("SELECT 'a' = 'A'"), 1)
    with Session(adapter, charset="latin1") as s:
        equal(s.row("SELECT l, HEX(l), @@character_set_client FROM texts"), ("café", "636166E9", "latin1"))
        equal(s.one("SELECT HEX(%s)", ("é",)), "E9")
    with Session(adapter, charset="gbk") as s:
        equal(s.row("SELECT HEX('縗'), @@character_set_client"), ("BF5C", "gbk"), "a second byte that is a backslash")


@suite.group
def types(adapter):
    with Session(adapter) as s:
        s.con.autocommit(True)
        s.do("""CREATE TABLE types (id INT PRIMARY KEY, ti TINYINT, si SMALLINT UNSIGNED, mi MEDIUMINT, bi BIGINT, ub BIGINT UNSIGNED,
                f DOUBLE, dc DECIMAL(65,30), d DATE, dtm DATETIME(6), tm TIME(6), y YEAR, e ENUM('a','b'),
                st SET('x','y','z'), b BIT(16), bin VARBINARY(300), j JSON, t TEXT)""")
        every = bytes(range(256))
        values = (1, -128, 65535, -8388608, -2**63, 2**64 - 1, 1.5e300, decimal.Decimal("-12345678901234567890.000000000000000000000000000001"),
                  dt.date(1000, 1, 1), dt.datetime(2024, 2, 29, 23, 59, 59, 999999), "-838:59:58.500000", 2155, "b", "x,z",
                  b"\xab\xcd", adapter.Binary(every), '{"k": [1, 2.5, null, "é"]}', "plain")
        s.do("INSERT INTO types VALUES (" + ",".join(["%s"] * len(values)) + ")", values)
        got = s.row("SELECT * FROM types WHERE id = 1")
        equal(got[1:6], (-128, 65535, -8388608, -2**63, 2**64 - 1))
        equal(got[6], 1.5e300)
        equal(got[7], values[7])
        equal(got[8:10], (values[8], values[9]))
        equal(got[10], -dt.timedelta(hours=838, minutes=59, seconds=58.5))
        equal(got[11:12], (2155,))
        equal(got[12], "b")
        true(got[13] in ("x,z", {"x", "z"}), "SET")
        equal(bytes(got[14]), b"\xab\xcd")
        equal(bytes(got[15]), every)
        equal(s.one("SELECT JSON_UNQUOTE(JSON_EXTRACT(j, '$.k[3]')) FROM types"), "é")
        s.do("INSERT INTO types (id) VALUES (2)")
        equal(s.row("SELECT * FROM types WHERE id = 2"), (2,) + (None,) * 17)
        s.do("SET sql_mode = ''")
        s.do("INSERT INTO types (id, d, dtm) VALUES (3, '0000-00-00', '0000-00-00')")
        equal(s.row("SELECT CAST(d AS CHAR), CAST(dtm AS CHAR) FROM types WHERE id = 3"),
              ("0000-00-00", "0000-00-00 00:00:00.000000"))
        equal(s.row("SELECT '', NULL, 0, -0.0, 1 = 1, NULL IS NULL"), ("", None, 0, decimal.Decimal("0.0"), 1, 1))


@suite.group
def sql_prepare(adapter):
    with Session(adapter) as s:
        s.con.autocommit(True)
        s.do("PREPARE add_one FROM 'INSERT INTO own (id, v) VALUES (?, ?)'")
        s.do("PREPARE get_one FROM 'SELECT v FROM own WHERE id = ?'")
        for i in range(1000, 1010):
            s.do(f"SET @id = {i}, @v = {i * 3}")
            s.do("EXECUTE add_one USING @id, @v")
            equal(s.rows("EXECUTE get_one USING @id"), [(i * 3,)])
        s.do("ALTER TABLE own ADD COLUMN extra VARCHAR(10) DEFAULT 'new'")
        equal(s.rows("EXECUTE get_one USING @id"), [(1009 * 3,)], "after ALTER TABLE")
        s.do("PREPARE all_cols FROM 'SELECT * FROM own WHERE id = 1000'")
        equal(s.rows("EXECUTE all_cols"), [(1000, 3000, "new")])
        s.do("ALTER TABLE own DROP COLUMN extra")
        equal(s.rows("EXECUTE all_cols"), [(1000, 3000)], "SELECT * after a column went")
        s.do("DEALLOCATE PREPARE get_one")
        fails(s, ER_UNKNOWN_STMT_HANDLER, "EXECUTE get_one USING @id")
        s.do("DROP PREPARE add_one")
        s.do("SET @sql = 'SELECT ? + ?'")
        s.do("PREPARE sum_two FROM @sql")
        s.do("SET @a = 1, @b = 2")
        equal([float(r[0]) for r in s.rows("EXECUTE sum_two USING @a, @b")], [3.0])
    with Session(adapter) as s:
        fails(s, ER_UNKNOWN_STMT_HANDLER, "EXECUTE all_cols")


@suite.group
def batches_and_multiple_results(adapter):
    with Session(adapter, multi=True) as s:
        s.con.autocommit(True)
        with s.con.cursor() as cur:
            s.do("CREATE TABLE batch (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(20))")
            cur.executemany("INSERT INTO batch (v) VALUES (%s)", [(f"v{i}",) for i in range(2500)])
            equal(cur.rowcount, 2500)
            equal(s.one("SELECT COUNT(DISTINCT v) FROM batch"), 2500)
            cur.executemany("UPDATE batch SET v = %s WHERE id = %s", [("a", 1), ("b", 2)])
            cur.execute("SELECT 1; SELECT 2, 3 UNION ALL SELECT 4, 5; INSERT INTO batch (v) VALUES ('m'); SELECT 'end; really'")
            results = [cur.fetchall()]
            while cur.nextset():
                results.append(cur.fetchall() if cur.description else cur.rowcount)
            equal([list(r) if isinstance(r, (tuple, list)) else r for r in results],
                  [[(1,)], [(2, 3), (4, 5)], 1, [("end; really",)]])
            try:
                cur.execute("SELECT 1; SELECT * FROM missing_table; SELECT 3")
                equal(list(cur.fetchall()), [(1,)])
                cur.nextset()
            except adapter.Error as error:
                equal(error.args[0], ER_NO_SUCH_TABLE)
            else:
                raise AssertionError("the second of three statements should have failed")
        equal(s.one("SELECT 'still here'"), "still here")
        with s.con.cursor() as cur:
            cur.execute("SET @m = 1; SET time_zone = '+03:00'; USE " + settings.db)
            while cur.nextset():
                pass
        equal(s.row("SELECT @m, @@time_zone, DATABASE()"), (1, "+03:00", settings.db), "state set in a batch")
    with Session(adapter, multi=False) as s:
        fails(s, ER_PARSE_ERROR, "SELECT 1; SELECT 2")


@suite.group
def stored_routines(adapter):
    with Session(adapter) as s:
        s.con.autocommit(True)
        s.do("""CREATE PROCEDURE transfer(IN amount INT, OUT doubled INT, INOUT counter INT)
                BEGIN
                  SET doubled = amount * 2;
                  SET counter = counter + 1;
                  SELECT 'first' AS name, amount AS a;
                  SELECT n FROM nums WHERE n < 3 ORDER BY n;
                  INSERT INTO batch (v) VALUES (CONCAT('p', amount));
                END""")
        s.do("CREATE FUNCTION twice(x INT) RETURNS INT DETERMINISTIC NO SQL RETURN x * 2")
        s.do("CREATE FUNCTION log_it(x INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA "
             "BEGIN INSERT INTO batch (v) VALUES (CONCAT('f', x)); RETURN x; END")
        s.do("SET @out = 0, @counter = 41")
        with s.con.cursor() as cur:
            cur.execute("CALL transfer(21, @out, @counter)")
            equal(list(cur.fetchall()), [("first", 21)])
            true(cur.nextset(), "a second result")
            equal(list(cur.fetchall()), [(0,), (1,), (2,)])
            while cur.nextset():
                pass
        equal(s.row("SELECT @out, @counter"), (42, 42), "OUT and INOUT")
        equal(s.one("SELECT COUNT(*) FROM batch WHERE v = 'p21'"), 1, "the procedure's write is seen")
        with s.con.cursor() as cur:
            cur.callproc("transfer", (5, 0, 1))
            equal(list(cur.fetchall()), [("first", 5)])
            while cur.nextset():
                pass
            cur.execute("SELECT @_transfer_1, @_transfer_2")
            equal(list(cur.fetchall()), [(10, 2)], "callproc")
        equal(s.one("SELECT twice(21)"), 42)
        equal(s.one("SELECT log_it(7)"), 7, "a function that writes")
        equal(s.one("SELECT COUNT(*) FROM batch WHERE v = 'f7'"), 1)
        s.do("CREATE PROCEDURE fail() BEGIN SELECT 1; SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'on purpose', MYSQL_ERRNO = 5555; END")
        try:
            with s.con.cursor() as cur:
                cur.execute("CALL fail()")
                cur.fetchall()
                while cur.nextset():
                    pass
        except adapter.Error as error:
            equal((error.args[0], error.args[1]), (5555, "on purpose"))
        else:
            raise AssertionError("SIGNAL raised nothing")
        s.do("CREATE TRIGGER stamp BEFORE INSERT ON orders FOR EACH ROW SET NEW.item = UPPER(NEW.item)")
        _, key = s.do("INSERT INTO orders (customer, item) SELECT id, 'shout' FROM customers LIMIT 1")
        equal(s.one("SELECT item FROM orders WHERE id = %s", (key,)), "SHOUT", "trigger")


@suite.group
def load_data_local(adapter):
    with Session(adapter, local_infile=True) as s:
        s.con.autocommit(True)
        if not s.one("SELECT @@local_infile"):
            raise Skip("the server has local_infile off")
        s.do("CREATE TABLE loaded (id INT PRIMARY KEY, name VARCHAR(50), pad VARCHAR(200))")
        lines = 20000
        with tempfile.NamedTemporaryFile("w", suffix=".csv", delete=False, encoding="utf-8") as f:
            for i in range(lines):
                f.write(f"{i},näme {i},{'x' * 100}\n")
        try:
            count, _ = s.do(f"LOAD DATA LOCAL INFILE '{f.name}' INTO TABLE loaded CHARACTER SET utf8mb4 "
                            "FIELDS TERMINATED BY ',' (id, name, pad)")
            equal(count, lines)
        finally:
            os.unlink(f.name)
        equal(s.row("SELECT COUNT(*), SUM(id), MAX(name) FROM loaded"),
              (lines, decimal.Decimal(lines * (lines - 1) // 2), "näme 9999"))
        code, _ = s.error("LOAD DATA LOCAL INFILE '/no/such/file/here' INTO TABLE loaded")
        true(code in (1017, 2, 29, 13), f"a missing local file: {code}")
        equal(s.one("SELECT 'still here'"), "still here")


@suite.group
def big_blobs(adapter):
    with Session(adapter) as s:
        s.con.autocommit(True)
        limit = int(s.one("SELECT @@max_allowed_packet"))
        size = min(20 << 20, limit - (1 << 20))
        # Escaping doubles a quote: bytes that need none keep the statement under the limit.
        block = bytes(b for b in random.Random(7).randbytes(1 << 16) if b not in b"\0\n\r\\'\"\x1a")
        blob = (block * (size // len(block) + 1))[:size]
        s.do("CREATE TABLE blobs (id INT PRIMARY KEY, b LONGBLOB)")
        for key, length in ((1, size), (2, 65535), (3, 0)):
            s.do("INSERT INTO blobs VALUES (%s, %s)", (key, adapter.Binary(blob[:length])))
            got = s.row("SELECT b, LENGTH(b) FROM blobs WHERE id = %s", (key,))
            true(bytes(got[0]) == blob[:length], f"blob of {length} bytes came back changed")
            equal(got[1], length)
        # Row packets just below, at and above the length that needs a second packet: 4 bytes of
        # length come before the value.
        for length in ((1 << 24) - 6, (1 << 24) - 5, (1 << 24) - 4, (1 << 24) - 1, 1 << 24):
            true(s.one(f"SELECT REPEAT('z', {length})") == "z" * length, f"a value of {length} bytes")
        if size < 20 << 20:
            raise Skip(f"blobs up to {size} bytes only, max_allowed_packet is {limit}")


@suite.group
def a_packet_past_the_limit(adapter):
    with Session(adapter) as s:
        limit = int(s.one("SELECT @@max_allowed_packet"))
        if limit > 80 << 20:
            raise Skip(f"max_allowed_packet is {limit}")
        code, message = None, ""
        try:
            s.do("SELECT LENGTH(%s)", ("x" * (limit + (1 << 20)),))
        except adapter.Error as error:
            code, message = error.args[0], error
        # The answer is 1153 and the end; a client still writing sees the reset instead, or an
        # answer that comes before its last packet's turn.
        true("sequence number" in str(code) or code in (ER_NET_PACKET_TOO_LARGE, 2006, 2013, 2020, 0), f"{code} {shorten(message)}")
    with Session(adapter) as s:
        equal(s.one("SELECT 1"), 1)


@suite.group
def errors(adapter):
    with Session(adapter) as s:
        s.con.autocommit(True)
        message = fails(s, ER_DUP_ENTRY, "INSERT INTO customers (email) VALUES ('ann@example.com')")
        true("ann@example.com" in message, "the duplicate is named")
        message = fails(s, ER_PARSE_ERROR, "SELEC 1")
        true("SELEC 1" in message, "the syntax error quotes the statement")
        fails(s, ER_BAD_FIELD, "SELECT no_such_column FROM customers")
        message = fails(s, ER_NO_SUCH_TABLE, "SELECT * FROM missing")
        true(f"{settings.db}.missing" in message, message)
        fails(s, ER_NO_REFERENCED_ROW_2, "INSERT INTO orders (customer) VALUES (4000000)")
        fails(s, ER_ROW_IS_REFERENCED_2, "DELETE FROM customers")
        fails(s, 1305, "CALL no_such_procedure()")
        fails(s, ER_BAD_DB, "USE no_such_database_here")
        equal(s.one("SELECT DATABASE()"), settings.db, "a failed USE changes nothing")
        try:
            s.con.select_db("no_such_database_here")
        except adapter.Error as error:
            equal(error.args[0], ER_BAD_DB)
        equal(s.one("SELECT DATABASE()"), settings.db)
        fails(s, 1065, "")
        equal(s.rows("/* hint */ SELECT /*+ x */ 1 -- tail"), [(1,)])
        equal(s.rows("/*!40000 SELECT 8 */"), [(8,)])
        equal(s.rows("SELECT 1 # tail"), [(1,)])
        equal(s.rows("(SELECT 1) UNION (SELECT 2) ORDER BY 1"), [(1,), (2,)])
        equal(s.rows("WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 3) SELECT n FROM c"),
              [(1,), (2,), (3,)])
        equal(s.one("SELECT 1"), 1)


@suite.group
def change_user_and_reset(adapter):
    with Session(adapter) as s:
        s.con.autocommit(True)
        s.do("SET @kept = 1, time_zone = '+04:00'")
        s.do("CREATE TEMPORARY TABLE gone (x INT)")
        if adapter.change_user(s.con):
            equal(s.row("SELECT @kept, DATABASE()"), (None, settings.db), "after COM_CHANGE_USER")
            true(s.one("SELECT @@time_zone") != "+04:00", "time_zone is the default again")
            fails(s, ER_NO_SUCH_TABLE, "SELECT * FROM gone")
            s.do("BEGIN")
            s.do("INSERT INTO tx VALUES (200, 1)")
            adapter.change_user(s.con)
            equal(s.rows("SELECT * FROM tx WHERE id = 200"), [], "an open transaction is rolled back")
        equal(s.one("SELECT 1"), 1)
    with Session(adapter) as s:
        if adapter.reconnect(s.con):
            equal(s.one("SELECT DATABASE()"), settings.db, "after a reconnect")


@suite.group
def another_account(adapter):
    name, first, second = settings.db[:24] + "_u", "s3cret one", "s3cret two"
    with Session(adapter) as s:
        s.con.autocommit(True)
        s.do(f"DROP USER IF EXISTS '{name}'@'%%'", ())
        s.do(f"CREATE USER '{name}'@'%%' IDENTIFIED BY %s", (first,))
        try:
            s.do(f"GRANT SELECT, INSERT ON {settings.db}.tx TO '{name}'@'%%'", ())
            login = {"user": name, "password": first}
            with Session(adapter, **login) as u:
                equal(u.one("SELECT SUBSTRING_INDEX(CURRENT_USER(), '@', 1)"), name)
                true(u.one("SELECT COUNT(*) FROM tx") >= 0, "granted")
                fails(u, 1142, "SELECT * FROM customers")
                fails(u, 1142, "DELETE FROM tx")
            with Session(adapter, **login) as u:
                equal(u.one("SELECT 1"), 1)
            s.do(f"ALTER USER '{name}'@'%%' IDENTIFIED BY %s", (second,))
            try:
                with Session(adapter, **login):
                    raise AssertionError("the old password still works")
            except adapter.Error as error:
                equal(error.args[0], ER_ACCESS_DENIED)
            with Session(adapter, user=name, password=second) as u:
                equal(u.one("SELECT 1"), 1)
            s.do(f"ALTER USER '{name}'@'%%' ACCOUNT LOCK", ())
            try:
                with Session(adapter, user=name, password=second):
                    raise AssertionError("a locked account still works")
            except adapter.Error as error:
                equal(error.args[0], 3118 if MYSQL else 4151)
        finally:
            s.do(f"DROP USER IF EXISTS '{name}'@'%%'", ())


@suite.group
def streaming(adapter):
    with Session(adapter, streaming=True) as s:
        with s.con.cursor() as cur:
            cur.execute("SELECT a.n * 1000 + b.n AS x, REPEAT('y', 50) FROM nums a, nums b WHERE a.n < 100")
            count = total = 0
            while True:
                rows = cur.fetchmany(1000)
                if not rows:
                    break
                count += len(rows)
                total += sum(r[0] for r in rows)
            equal((count, total), (100_000, sum(range(100_000))))
        equal(s.one("SELECT 1"), 1)
        with s.con.cursor() as cur:
            cur.execute("SELECT n FROM nums")
            equal(len(cur.fetchmany(3)), 3)
        equal(s.one("SELECT 2"), 2, "after a result that was not read to its end")
        cur = s.con.cursor()
        cur.execute("SELECT a.n FROM nums a, nums b, nums c")
        cur.fetchmany(10)
        adapter.abort(s.con, cur)
    with Session(adapter) as s:
        equal(s.one("SELECT 1"), 1)


def sleeper(adapter, sql, outcome):
    with Session(adapter) as s:
        s.con.autocommit(True)
        outcome["id"] = s.con.thread_id()
        begun = time.monotonic()
        try:
            outcome["rows"] = s.rows(sql)
        except adapter.Error as error:
            outcome["code"] = error.args[0]
        outcome["took"] = time.monotonic() - begun
        time.sleep(0.2)  # a KILL may still be on its way
        try:
            outcome["after"] = s.one("SELECT 'alive'")
        except adapter.Error:
            outcome["after"] = None


@suite.group
def kill_query(adapter):
    crossing = "SELECT COUNT(*) FROM nums a, nums b, nums c WHERE a.n + b.n + c.n > 5"
    with Session(adapter) as killer:
        for sql in ("SELECT SLEEP(30)", crossing):
            outcome = {}
            thread = threading.Thread(target=sleeper, args=(adapter, sql, outcome))
            thread.start()
            while "id" not in outcome:
                time.sleep(0.01)
            # Again and again: a KILL QUERY that comes before the query has begun does nothing.
            while thread.is_alive() and not {"rows", "code"} & outcome.keys():
                thread.join(0.3)
                if not {"rows", "code"} & outcome.keys():
                    killer.do(f"KILL QUERY {outcome['id']}")
            thread.join(40)
            true(outcome["took"] < 10, f"{sql}: took {outcome['took']} s")
            true(outcome.get("code") == ER_QUERY_INTERRUPTED or outcome.get("rows") == [(1,)], f"{sql}: {outcome}")
            equal(outcome["after"], "alive", "the killed query's session goes on")
        outcome = {}
        thread = threading.Thread(target=sleeper, args=(adapter, "SELECT SLEEP(30)", outcome))
        thread.start()
        while "id" not in outcome:
            time.sleep(0.01)
        time.sleep(0.3)
        adapter.kill(killer.con, outcome["id"])
        thread.join(40)
        true(outcome["took"] < 10, f"KILL: took {outcome['took']} s")
        true("code" in outcome and outcome["after"] is None, f"the killed session is gone: {outcome}")
        fails(killer, ER_NO_SUCH_THREAD, "KILL 4294967290")
        fails(killer, ER_QUERY_INTERRUPTED, f"KILL QUERY {killer.con.thread_id()}")
        equal(killer.one("SELECT 1"), 1)


@suite.group
def statement_timeouts(adapter):
    crossing = "SELECT COUNT(*) FROM nums a, nums b, nums c WHERE a.n + b.n + c.n > 5"
    with Session(adapter) as s:
        if MYSQL:
            s.do("SET max_execution_time = 200")
            fails(s, 3024, crossing)
            s.do("SET max_execution_time = 0")
            fails(s, 3024, crossing.replace("SELECT", "SELECT /*+ MAX_EXECUTION_TIME(200) */"))
        else:
            s.do("SET max_statement_time = 0.2")
            fails(s, 1969, crossing)
            s.do("SET max_statement_time = 0")
            fails(s, 1969, "SET STATEMENT max_statement_time = 0.2 FOR " + crossing)
        equal(s.one("SELECT 1"), 1)
        s.do("SET wait_timeout = 1")
        time.sleep(2.5)
        try:
            equal(s.one("SELECT 1"), 1)
        except adapter.Error as error:
            true(error.args[0] in (2006, 2013, 4031), f"after wait_timeout: {error.args}")
        else:
            raise AssertionError("wait_timeout closed nothing")


@suite.group
def admin_statements(adapter):
    with Session(adapter) as s:
        s.con.autocommit(True)
        equal(s.rows("CHECK TABLE customers")[-1][3], "OK")
        equal(s.rows("ANALYZE TABLE customers")[-1][3], "OK")
        true(len(s.rows("SHOW VARIABLES LIKE 'max_allowed%%'", ())) == 1, "SHOW VARIABLES")
        true(len(s.rows("SHOW SESSION STATUS LIKE 'Com_select'")) == 1, "SHOW STATUS")
        true(any(r[1] == settings.user for r in s.rows("SHOW PROCESSLIST")), "own user in SHOW PROCESSLIST")
        equal(s.rows("DO 1"), [])
        true(len(s.rows("SHOW INDEX FROM customers")) >= 3, "SHOW INDEX")
        s.do("FLUSH TABLES")
        s.do("TRUNCATE TABLE batch")
        equal(s.one("SELECT COUNT(*) FROM batch"), 0)
        s.do("RENAME TABLE batch TO batch2")
        equal(s.one("SELECT COUNT(*) FROM batch2"), 0)
        s.do("HANDLER nums OPEN")
        equal(s.rows("HANDLER nums READ `PRIMARY` = (5)"), [(5,)])
        equal(s.rows("HANDLER nums READ `PRIMARY` NEXT"), [(6,)])
        s.do("HANDLER nums CLOSE")
        s.do("XA START 'x1'")
        s.do("INSERT INTO tx VALUES (300, 1)")
        s.do("XA END 'x1'")
        s.do("XA PREPARE 'x1'")
        s.do("XA COMMIT 'x1'")
        equal(s.one("SELECT v FROM tx WHERE id = 300"), 1, "XA")
        if not MYSQL:
            s.do("CREATE SEQUENCE seq START WITH 5")
            equal([s.one("SELECT NEXTVAL(seq)"), s.one("SELECT NEXT VALUE FOR seq"), s.one("SELECT LASTVAL(seq)")], [5, 6, 6])
            equal(s.rows("INSERT INTO tx VALUES (301, 2) RETURNING id, v"), [(301, 2)])
            equal(s.rows("DELETE FROM tx WHERE id = 301 RETURNING v"), [(2,)])
        else:
            equal(s.rows("TABLE tx ORDER BY id LIMIT 1")[0][0], 1)
            equal(s.rows("VALUES ROW(1, 2), ROW(3, 4)"), [(1, 2), (3, 4)])


@suite.group
def quick_connections(adapter):
    for i in range(100):
        with Session(adapter) as s:
            equal(s.one("SELECT %s", (i,)), i)
            equal(s.one("SELECT @me"), None, "a fresh session's user variable")


@suite.group
def clean_up(adapter):
    with Session(adapter) as s:
        s.do(f"DROP DATABASE {settings.db}")
        equal(s.one("SELECT DATABASE()"), None)

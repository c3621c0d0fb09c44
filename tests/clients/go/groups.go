// What an application does through database/sql, and what it must see.
package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
)

var bg = context.Background()

// open makes a pool; `text` interpolates arguments into COM_QUERY, otherwise they are prepared.
func open(change ...func(*mysql.Config)) *sql.DB {
	c := mysql.NewConfig()
	c.User, c.Passwd, c.DBName = settings.user, settings.password, settings.db
	c.Net, c.Addr = "tcp", settings.host+":"+settings.port
	if settings.socket != "" {
		c.Net, c.Addr = "unix", settings.socket
	}
	c.Collation = "utf8mb4_general_ci"
	c.MaxAllowedPacket = 0 // asks the server
	c.Timeout, c.ReadTimeout, c.WriteTimeout = 20*time.Second, 60*time.Second, 60*time.Second
	if settings.tls {
		c.TLSConfig = "skip-verify"
	}
	for _, f := range change {
		f(c)
	}
	connector, err := mysql.NewConnector(c)
	ok(err)
	return sql.OpenDB(connector)
}

func asText(c *mysql.Config)  { c.InterpolateParams = true }
func noDB(c *mysql.Config)    { c.DBName = "" }
func parsed(c *mysql.Config)  { c.ParseTime = true }
func several(c *mysql.Config) { c.MultiStatements = true }

// session is one connection of a pool, kept.
type session struct {
	db *sql.DB
	*sql.Conn
}

func connect(change ...func(*mysql.Config)) session {
	db := open(change...)
	c, err := db.Conn(bg)
	ok(err)
	return session{db, c}
}

// close also ends a session whose transaction a failed check left open: database/sql would wait for
// it for ever.
func (s session) close() {
	closed := make(chan struct{})
	go func() {
		s.Conn.Close()
		s.db.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}

type execer interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
}

func do(e execer, query string, args ...any) sql.Result {
	r, err := e.ExecContext(bg, query, args...)
	ok(err, query)
	return r
}

func insertID(r sql.Result) int64 {
	id, err := r.LastInsertId()
	ok(err)
	return id
}

func affected(r sql.Result) int64 {
	n, err := r.RowsAffected()
	ok(err)
	return n
}

// table reads a whole result as strings, with NULL for nil, columns joined by "|".
func table(e execer, query string, args ...any) []string {
	rows, err := e.QueryContext(bg, query, args...)
	ok(err, query)
	defer rows.Close()
	out := readRows(rows)
	ok(rows.Err(), query)
	return out
}

func readRows(rows *sql.Rows) []string {
	columns, err := rows.Columns()
	ok(err)
	values := make([]sql.NullString, len(columns))
	into := make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	out := []string{}
	for rows.Next() {
		ok(rows.Scan(into...))
		parts := make([]string, len(values))
		for i, v := range values {
			parts[i] = v.String
			if !v.Valid {
				parts[i] = "NULL"
			}
		}
		out = append(out, strings.Join(parts, "|"))
	}
	return out
}

func one(e execer, query string, args ...any) string {
	rows := table(e, query, args...)
	if len(rows) != 1 {
		fail("%s: %d rows", query, len(rows))
	}
	return rows[0]
}

func code(err error) uint16 {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return e.Number
	}
	return 0
}

func fails(e execer, number uint16, query string, args ...any) string {
	rows, err := e.QueryContext(bg, query, args...)
	if err == nil {
		for rows.Next() {
		}
		err = rows.Err()
		rows.Close()
	}
	if code(err) != number {
		fail("%s: got %v, wanted error %d", query, err, number)
	}
	return err.Error()
}

func connectAndIdentify() {
	s := connect(noDB)
	defer s.close()
	version := one(s, "SELECT VERSION()")
	equal(strings.Contains(version, "MariaDB"), !isMySQL(), version)
	equal(one(s, "SELECT DATABASE()"), "NULL")
	equal(one(s, "SELECT SUBSTRING_INDEX(USER(), '@', 1)"), settings.user)
	ok(s.PingContext(bg))
	equal(one(s, "SELECT ?", 42), "42")
}

func wrongLogins() {
	for _, c := range []struct {
		change func(*mysql.Config)
		number uint16
	}{
		{func(c *mysql.Config) { c.Passwd += "x" }, 1045},
		{func(c *mysql.Config) { c.DBName = "no_such_database_here" }, 1049},
		{func(c *mysql.Config) { c.Passwd = "" }, 1045},
	} {
		db := open(noDB, c.change)
		equal(code(db.PingContext(bg)), c.number)
		db.Close()
	}
	// For a user that does not exist MySQL feigns any of its plugins, also one the driver lacks.
	db := open(noDB, func(c *mysql.Config) { c.User = "nobody_of_this_name" })
	defer db.Close()
	isTrue(db.PingContext(bg) != nil, "a user that does not exist came in")
}

func schema() {
	s := connect(noDB)
	defer s.close()
	do(s, "DROP DATABASE IF EXISTS "+settings.db)
	do(s, "CREATE DATABASE "+settings.db+" CHARACTER SET utf8mb4")
	do(s, "USE "+settings.db)
	do(s, `CREATE TABLE users (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, email VARCHAR(80) NOT NULL UNIQUE,
	       name VARCHAR(50), balance DECIMAL(12,2) NOT NULL DEFAULT 0, born DATE, seen TIMESTAMP NULL, INDEX (name))`)
	do(s, "CREATE TABLE nums (n INT PRIMARY KEY)")
	do(s, "INSERT INTO nums VALUES (0)"+func() (v string) {
		for i := 1; i < 1000; i++ {
			v += fmt.Sprintf(",(%d)", i)
		}
		return
	}())
	do(s, "ALTER TABLE users ADD note TEXT")
	equal(table(s, "SHOW TABLES"), []string{"nums", "users"})
	equal(one(s, "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = ? AND table_name = 'users'", settings.db), "7")
	// Made before this session logs in, so its login finds it.
	t := connect()
	defer t.close()
	eventually("the tables in a new session", func() bool { return len(table(t, "SHOW TABLES")) == 2 })
}

func generatedIDs(change ...func(*mysql.Config)) func() {
	return func() {
		s := connect(change...)
		defer s.close()
		tag := fmt.Sprint(len(change))
		id := insertID(do(s, "INSERT INTO users (email, name) VALUES (?, ?)", "a"+tag, "Ann"))
		isTrue(id > 0, "no id")
		equal(one(s, "SELECT LAST_INSERT_ID()"), fmt.Sprint(id))
		equal(one(s, "SELECT name FROM users WHERE id = ?", id), "Ann")
		r := do(s, "INSERT INTO users (email) VALUES (?), (?), (?)", "b"+tag, "c"+tag, "d"+tag)
		equal(affected(r), int64(3))
		first := insertID(r)
		one(s, "SELECT COUNT(*) FROM users")
		do(s, "UPDATE users SET name = ? WHERE email = ?", "B", "b"+tag)
		equal(one(s, "SELECT LAST_INSERT_ID()"), fmt.Sprint(first))
		equal(one(s, "SELECT email FROM users WHERE id = LAST_INSERT_ID()"), "b"+tag)
		r = do(s, "UPDATE users SET name = 'B' WHERE email = ?", "b"+tag)
		equal(affected(r), int64(0), "changed rows, not found rows")
	}
}

func foundRows() {
	s := connect(func(c *mysql.Config) { c.ClientFoundRows = true })
	defer s.close()
	do(s, "UPDATE nums SET n = 5 WHERE n = 5")
	equal(affected(do(s, "UPDATE nums SET n = 5 WHERE n = 5")), int64(1), "CLIENT_FOUND_ROWS")
}

func ownWrites(change ...func(*mysql.Config)) func() {
	return func() {
		s := connect(change...)
		defer s.close()
		do(s, "CREATE TABLE IF NOT EXISTS own (id INT PRIMARY KEY, v INT)")
		do(s, "DELETE FROM own")
		for i := 0; i < 60; i++ {
			do(s, "INSERT INTO own VALUES (?, ?)", i, i*2)
			equal(one(s, "SELECT v FROM own WHERE id = ?", i), fmt.Sprint(i*2))
			do(s, "UPDATE own SET v = v + 1 WHERE id = ?", i)
			equal(one(s, "SELECT v FROM own WHERE id = ?", i), fmt.Sprint(i*2+1))
			if i%3 == 0 {
				do(s, "DELETE FROM own WHERE id = ?", i)
				equal(table(s, "SELECT v FROM own WHERE id = ?", i), []string{})
			}
		}
		equal(one(s, "SELECT COUNT(*) FROM own"), "40")
	}
}

func transactions() {
	s, other := connect(), connect()
	defer s.close()
	defer other.close()
	do(s, "CREATE TABLE tx (id INT PRIMARY KEY, v INT)")
	begin := func(o *sql.TxOptions) *sql.Tx {
		tx, err := s.BeginTx(bg, o)
		ok(err)
		return tx
	}
	tx := begin(nil)
	do(tx, "INSERT INTO tx VALUES (?, ?)", 1, 10)
	equal(one(tx, "SELECT v FROM tx WHERE id = ?", 1), "10")
	ok(tx.Rollback())
	equal(table(s, "SELECT * FROM tx"), []string{})
	tx = begin(nil)
	do(tx, "INSERT INTO tx VALUES (1, 10), (2, 20)")
	equal(one(other, "SELECT COUNT(*) FROM tx FOR UPDATE SKIP LOCKED"), "0")
	do(tx, "SAVEPOINT sp")
	do(tx, "UPDATE tx SET v = 99")
	do(tx, "ROLLBACK TO sp")
	ok(tx.Commit())
	equal(table(other, "SELECT * FROM tx ORDER BY id FOR UPDATE"), []string{"1|10", "2|20"})
	equal(table(s, "SELECT * FROM tx ORDER BY id"), []string{"1|10", "2|20"})

	tx = begin(&sql.TxOptions{ReadOnly: true})
	equal(one(tx, "SELECT COUNT(*) FROM tx"), "2")
	fails(tx, 1792, "INSERT INTO tx VALUES (5, 5)")
	ok(tx.Rollback())
	for _, level := range []sql.IsolationLevel{sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		tx = begin(&sql.TxOptions{Isolation: level})
		before := one(tx, "SELECT v FROM tx WHERE id = 1")
		if level != sql.LevelSerializable { // which would lock the row
			do(other, "UPDATE tx SET v = v + 1 WHERE id = 1")
			same := one(tx, "SELECT v FROM tx WHERE id = 1") == before
			equal(same, level == sql.LevelRepeatableRead, level)
		}
		ok(tx.Commit())
	}
	equal(one(s, "SELECT v FROM tx WHERE id = 2"), "20")

	// A cancelled context rolls its transaction back and drops the connection.
	t := connect()
	defer t.close()
	ctx, cancel := context.WithCancel(bg)
	gone, err := t.BeginTx(ctx, nil)
	ok(err)
	do(gone, "INSERT INTO tx VALUES (7, 7)")
	cancel()
	eventually("the cancelled transaction is gone", func() bool {
		return one(other, "SELECT COUNT(*) FROM tx WHERE id = 7 FOR UPDATE") == "0"
	})
}

func deadlock() {
	a, b := connect(), connect()
	defer a.close()
	defer b.close()
	ta, err := a.BeginTx(bg, nil)
	ok(err)
	tb, err := b.BeginTx(bg, nil)
	ok(err)
	do(ta, "UPDATE tx SET v = v + 1 WHERE id = 1")
	do(tb, "UPDATE tx SET v = v + 1 WHERE id = 2")
	outcome := make(chan uint16, 1)
	go func() {
		_, err := ta.ExecContext(bg, "UPDATE tx SET v = v + 1 WHERE id = 2")
		outcome <- code(err)
	}()
	time.Sleep(200 * time.Millisecond)
	_, err = tb.ExecContext(bg, "UPDATE tx SET v = v + 1 WHERE id = 1")
	mine := code(err)
	tb.Rollback()
	theirs := <-outcome
	ta.Rollback()
	equal(mine+theirs, uint16(1213), "one victim")
}

func crowd(change ...func(*mysql.Config)) func() {
	return func() {
		db := open(change...)
		defer db.Close()
		db.SetMaxOpenConns(30)
		db.SetMaxIdleConns(10)
		do(db, "DROP TABLE IF EXISTS crowd, tally")
		do(db, "CREATE TABLE crowd (id INT AUTO_INCREMENT PRIMARY KEY, who INT, n INT, KEY (who))")
		do(db, "CREATE TABLE tally (id INT PRIMARY KEY, total INT)")
		do(db, "INSERT INTO tally VALUES (1, 0)")
		const clients, rounds = 50, 12
		// The first client to find something wrong calls off the others, who may wait for its connection.
		ctx, cancel := context.WithTimeout(bg, time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		problems := make(chan string, clients)
		for who := 0; who < clients; who++ {
			wg.Add(1)
			go func(who int) {
				defer wg.Done()
				defer func() {
					if p := recover(); p != nil {
						problems <- fmt.Sprintf("client %d: %v", who, p)
						cancel()
					}
				}()
				// Its own connection for each round, out of a pool that others use in between.
				for n := 0; n < rounds; n++ {
					c, err := db.Conn(ctx)
					ok(err)
					mark := fmt.Sprintf("%d-%d", who, n)
					do(c, "SET @mark = ?", mark)
					id := insertID(do(c, "INSERT INTO crowd (who, n) VALUES (?, ?)", who, n))
					equal(one(c, "SELECT who, n FROM crowd WHERE id = ?", id), fmt.Sprintf("%d|%d", who, n))
					equal(one(c, "SELECT LAST_INSERT_ID(), @mark"), fmt.Sprintf("%d|%s", id, mark))
					if n%3 == 0 {
						tx, err := c.BeginTx(ctx, nil)
						ok(err)
						do(tx, "UPDATE tally SET total = total + 1 WHERE id = 1")
						ok(tx.Commit())
					}
					ok(c.Close())
				}
			}(who)
		}
		wg.Wait()
		close(problems)
		for p := range problems {
			fail("%s", p)
		}
		equal(one(db, "SELECT total FROM tally FOR UPDATE"), fmt.Sprint(clients*rounds/3))
		equal(one(db, "SELECT COUNT(*) FROM crowd FOR UPDATE"), fmt.Sprint(clients*rounds))
	}
}

func sessionSettings() {
	s := connect(asText, func(c *mysql.Config) {
		c.Params = map[string]string{"time_zone": "'+05:30'", "sql_mode": "'ANSI_QUOTES,STRICT_ALL_TABLES'"}
	})
	defer s.close()
	equal(one(s, "SELECT @@time_zone"), "+05:30")
	equal(one(s, `SELECT "name" FROM users WHERE "email" = 'a0'`), "Ann")
	do(s, "SET sql_mode = ''")
	equal(one(s, `SELECT "name"`), "name")
	do(s, "SET time_zone = '-03:00', @a = 1, @b = 'two'")
	equal(one(s, "SELECT @@time_zone, @a, @b"), "-03:00|1|two")
	do(s, "CREATE TABLE zones (ts TIMESTAMP)")
	do(s, "INSERT INTO zones VALUES ('2024-06-01 12:00:00')")
	do(s, "SET time_zone = '+00:00'")
	equal(one(s, "SELECT ts FROM zones"), "2024-06-01 15:00:00")
	do(s, "SET NAMES latin1")
	equal(one(s, "SELECT @@character_set_client, @@character_set_results"), "latin1|latin1")
	do(s, "SET NAMES utf8mb4")
	do(s, "SET SESSION group_concat_max_len = 5")
	equal(one(s, "SELECT GROUP_CONCAT(n ORDER BY n SEPARATOR '') FROM nums"), "01234")
	do(s, "CREATE TEMPORARY TABLE tmp (x INT)")
	do(s, "INSERT INTO tmp VALUES (1), (2)")
	equal(one(s, "SELECT SUM(x) FROM tmp"), "3")
	equal(one(s, "SELECT SUM(x) FROM tmp WHERE x > ?", 1), "2")
	do(s, "DROP TEMPORARY TABLE tmp")
	fails(s, 1146, "SELECT * FROM tmp")
	equal(one(s, "SELECT @@session.autocommit"), "1")
}

func preparedStatements() {
	s := connect()
	defer s.close()
	do(s, "DROP TABLE IF EXISTS prep")
	do(s, "CREATE TABLE prep (id INT PRIMARY KEY, v VARCHAR(20))")
	ins, err := s.PrepareContext(bg, "INSERT INTO prep (id, v) VALUES (?, ?)")
	ok(err)
	get, err := s.PrepareContext(bg, "SELECT v FROM prep WHERE id = ?")
	ok(err)
	all, err := s.PrepareContext(bg, "SELECT * FROM prep WHERE id = ?")
	ok(err)
	read := func(st *sql.Stmt, args ...any) string {
		rows, err := st.QueryContext(bg, args...)
		ok(err)
		defer rows.Close()
		return strings.Join(readRows(rows), ";")
	}
	for i := 0; i < 50; i++ {
		_, err := ins.ExecContext(bg, i, fmt.Sprintf("v%d", i))
		ok(err)
		equal(read(get, i), fmt.Sprintf("v%d", i))
	}
	equal(read(all, 3), "3|v3")
	do(s, "ALTER TABLE prep ADD COLUMN w INT DEFAULT 7")
	equal(read(get, 3), "v3", "after ALTER TABLE")
	equal(read(all, 3), "3|v3|7", "SELECT * after a column came")
	_, err = ins.ExecContext(bg, 100, "late")
	ok(err)
	do(s, "ALTER TABLE prep DROP COLUMN w, MODIFY v VARCHAR(100)")
	equal(read(all, 100), "100|late", "and after it went")
	do(s, "DROP TABLE prep")
	_, err = get.QueryContext(bg, 3)
	equal(code(err), uint16(1146), "the table is gone")
	do(s, "CREATE TABLE prep (id INT PRIMARY KEY, v VARCHAR(20))")
	do(s, "INSERT INTO prep VALUES (3, 'again')")
	equal(read(get, 3), "again", "and back")
	// The same text under another database, and sql_mode fixed at prepare.
	many := make([]*sql.Stmt, 0, 200)
	for i := 0; i < 200; i++ {
		st, err := s.PrepareContext(bg, fmt.Sprintf("SELECT ? + %d", i))
		ok(err)
		many = append(many, st)
	}
	for i, st := range many {
		equal(read(st, 1), fmt.Sprint(i+1))
	}
	for _, st := range append(many, ins, get, all) {
		ok(st.Close())
	}
	_, err = s.PrepareContext(bg, "SELECT * FROM nowhere WHERE x = ?")
	equal(code(err), uint16(1146))
	_, err = s.PrepareContext(bg, "SELEC ?")
	equal(code(err), uint16(1064))
	equal(one(s, "SELECT ?, ?, ?", nil, "s", 1.5), "NULL|s|1.5")

	// A statement of the pool is prepared on whatever connection runs it.
	db := open()
	defer db.Close()
	st, err := db.PrepareContext(bg, "SELECT ? * 2")
	ok(err)
	defer st.Close()
	var wg sync.WaitGroup
	var wrong sync.Map
	for i := 0; i < 40; i++ {
		wg.Add(1)
		go func(i int) {
			defer wg.Done()
			var v int
			if err := st.QueryRowContext(bg, i).Scan(&v); err != nil || v != 2*i {
				wrong.Store(i, fmt.Sprint(v, err))
			}
		}(i)
	}
	wg.Wait()
	wrong.Range(func(k, v any) bool { fail("%v: %v", k, v); return false })
}

func typesRoundTrip(change ...func(*mysql.Config)) func() {
	return func() {
		s := connect(append(change, parsed)...)
		defer s.close()
		do(s, "DROP TABLE IF EXISTS types")
		do(s, `CREATE TABLE types (id INT PRIMARY KEY, ti TINYINT, bi BIGINT, ub BIGINT UNSIGNED, f FLOAT, d DOUBLE, dc DECIMAL(40,10),
		       dt DATE, dtm DATETIME(6), tm TIME(3), y YEAR, e ENUM('a','b'), st SET('x','y'), b BIT(10), bin VARBINARY(300), j JSON,
		       t VARCHAR(100) CHARACTER SET utf8mb4)`)
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		when := time.Date(2024, 2, 29, 23, 59, 59, 123456000, time.UTC)
		text := "naïve 日本語 😀 \\ ' \" \x00 ; -- /* ?"
		do(s, "INSERT INTO types VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", 1, -128, int64(-1<<63), uint64(1<<64-1), float32(1.5), 1e300,
			"-123456789012345678901234567890.0123456789", "1000-01-01", when, "-838:59:58.500", 2155, "b", "x,y", []byte{3, 255}, every,
			`{"a": [1, null, "é"]}`, text)
		var ti int8
		var bi int64
		var ub uint64
		var f float32
		var d float64
		var dc, tm, e, set, j, t string
		var date, at time.Time
		var y int
		var bit, bin []byte
		ok(s.QueryRowContext(bg, "SELECT * FROM types WHERE id = ?", 1).Scan(new(int), &ti, &bi, &ub, &f, &d, &dc, &date, &at, &tm, &y, &e, &set, &bit, &bin, &j, &t))
		equal(ti, int8(-128))
		equal(bi, int64(-1<<63))
		equal(ub, uint64(1<<64-1))
		equal(f, float32(1.5))
		equal(d, 1e300)
		equal(dc, "-123456789012345678901234567890.0123456789")
		equal(date, time.Date(1000, 1, 1, 0, 0, 0, 0, time.UTC))
		equal(at, when)
		equal(tm, "-838:59:58.500")
		equal(y, 2155)
		equal(e+set, "bx,y")
		equal(bit, []byte{3, 255})
		equal(bin, every)
		equal(strings.Contains(j, "é"), true)
		equal(t, text)
		do(s, "INSERT INTO types (id) VALUES (?)", 2)
		equal(one(s, "SELECT * FROM types WHERE id = ?", 2), "2"+strings.Repeat("|NULL", 16))
		rows, err := s.QueryContext(bg, "SELECT id, dc, t FROM types WHERE id = ?", -1)
		ok(err)
		columns, err := rows.ColumnTypes()
		ok(err)
		rows.Close()
		equal([]string{columns[0].DatabaseTypeName(), columns[1].DatabaseTypeName(), columns[2].DatabaseTypeName()}, []string{"INT", "DECIMAL", "VARCHAR"})
	}
}

func multiStatements() {
	s := connect(several, asText)
	defer s.close()
	rows, err := s.QueryContext(bg, "SELECT 1; SELECT 2, 3 UNION SELECT 4, 5; DO 0; SELECT ';'; ", "unused")
	isTrue(err != nil, "an argument too many")
	rows, err = s.QueryContext(bg, "SELECT 1; SELECT 2, 3 UNION ALL SELECT 4, 5; SELECT ';' AS x")
	ok(err)
	sets := []string{strings.Join(readRows(rows), " ")}
	for rows.NextResultSet() {
		sets = append(sets, strings.Join(readRows(rows), " "))
	}
	ok(rows.Err())
	rows.Close()
	equal(sets, []string{"1", "2|3 4|5", ";"})
	do(s, "CREATE TABLE multi (id INT AUTO_INCREMENT PRIMARY KEY, v INT); INSERT INTO multi (v) VALUES (1), (2); INSERT INTO multi (v) VALUES (3); SET @z = 9, time_zone = '+07:00'")
	equal(one(s, "SELECT COUNT(*), @z, @@time_zone FROM multi"), "3|9|+07:00")
	_, err = s.ExecContext(bg, "INSERT INTO multi (v) VALUES (4); INSERT INTO nowhere VALUES (1); INSERT INTO multi (v) VALUES (5)")
	equal(code(err), uint16(1146))
	equal(one(s, "SELECT GROUP_CONCAT(v ORDER BY id) FROM multi"), "1,2,3,4", "the part before the error stays")
	do(s, "BEGIN; UPDATE multi SET v = 0; ROLLBACK")
	equal(one(s, "SELECT SUM(v) FROM multi"), "10")
	do(s, "BEGIN; DELETE FROM multi WHERE v = 1")
	equal(one(s, "SELECT COUNT(*) FROM multi"), "3", "still in the batch's transaction")
	do(s, "ROLLBACK")
	equal(one(s, "SELECT COUNT(*) FROM multi"), "4")
	plain := connect()
	defer plain.close()
	fails(plain, 1064, "SELECT 1; SELECT 2")
}

func storedProcedures() {
	s := connect(several)
	defer s.close()
	do(s, "DROP PROCEDURE IF EXISTS p")
	do(s, `CREATE PROCEDURE p(IN a INT, OUT o INT, INOUT io INT)
	       BEGIN SET o = a * 2; SET io = io + a; SELECT a, 'one'; SELECT n FROM nums WHERE n < 2 ORDER BY n; END`)
	do(s, "SET @o = 0, @io = 100")
	for _, arg := range [][]any{nil, {21}} {
		query := "CALL p(21, @o, @io)"
		if arg != nil {
			query = "CALL p(?, @o, @io)"
		}
		rows, err := s.QueryContext(bg, query, arg...)
		ok(err)
		equal(readRows(rows), []string{"21|one"})
		equal(rows.NextResultSet(), true)
		equal(readRows(rows), []string{"0", "1"})
		for rows.NextResultSet() {
		}
		ok(rows.Err())
		rows.Close()
	}
	equal(one(s, "SELECT @o, @io"), "42|142")
	do(s, "CREATE PROCEDURE writes(IN x INT) BEGIN INSERT INTO multi (v) VALUES (x); END")
	do(s, "CALL writes(?)", 77)
	equal(one(s, "SELECT COUNT(*) FROM multi WHERE v = 77"), "1")
}

func loadDataLocal() {
	s := connect()
	defer s.close()
	if one(s, "SELECT @@local_infile") == "0" {
		skip("the server has local_infile off")
	}
	do(s, "CREATE TABLE loaded (id INT PRIMARY KEY, name VARCHAR(60), pad VARCHAR(300))")
	var lines bytes.Buffer
	for i := 0; i < 20000; i++ {
		fmt.Fprintf(&lines, "%d\tnäme %d\t%s\n", i, i, strings.Repeat("p", 200))
	}
	mysql.RegisterReaderHandler("lines", func() io.Reader { return bytes.NewReader(lines.Bytes()) })
	r := do(s, "LOAD DATA LOCAL INFILE 'Reader::lines' INTO TABLE loaded CHARACTER SET utf8mb4")
	equal(affected(r), int64(20000))
	equal(one(s, "SELECT COUNT(*), SUM(id), MAX(name) FROM loaded"), "20000|199990000|näme 9999")
	f, err := os.CreateTemp("", "millrace-go-*.txt")
	ok(err)
	defer os.Remove(f.Name())
	fmt.Fprintf(f, "30000\tfile\tp\n")
	f.Close()
	mysql.RegisterLocalFile(f.Name())
	do(s, "LOAD DATA LOCAL INFILE '"+f.Name()+"' INTO TABLE loaded")
	equal(one(s, "SELECT name FROM loaded WHERE id = 30000"), "file")
	_, err = s.ExecContext(bg, "LOAD DATA LOCAL INFILE '/not/registered' INTO TABLE loaded")
	isTrue(err != nil, "a file that was not registered")
	equal(one(s, "SELECT 1"), "1")
}

func bigBlobs(change ...func(*mysql.Config)) func() {
	return func() {
		s := connect(change...)
		defer s.close()
		var limit int
		ok(s.QueryRowContext(bg, "SELECT @@max_allowed_packet").Scan(&limit))
		size := 20 << 20
		if limit < size+(1<<20) {
			size = limit - 1<<20
		}
		blob := make([]byte, size)
		rand.New(rand.NewSource(1)).Read(blob[:1<<16])
		for at := 1 << 16; at < size; at += 1 << 16 {
			copy(blob[at:], blob[:1<<16])
		}
		do(s, "DROP TABLE IF EXISTS blobs")
		do(s, "CREATE TABLE blobs (id INT PRIMARY KEY, b LONGBLOB)")
		for id, n := range []int{size, 1 << 16, 0} {
			do(s, "INSERT INTO blobs VALUES (?, ?)", id, blob[:n])
			var got []byte
			ok(s.QueryRowContext(bg, "SELECT b FROM blobs WHERE id = ?", id).Scan(&got))
			isTrue(bytes.Equal(got, blob[:n]), "%d bytes came back changed (%d)", n, len(got))
		}
		if size < 20<<20 {
			skip("blobs up to %d bytes only: max_allowed_packet is %d", size, limit)
		}
	}
}

func driverErrors() {
	s := connect()
	defer s.close()
	do(s, "INSERT INTO users (email) VALUES (?)", "dup@x")
	isTrue(strings.Contains(fails(s, 1062, "INSERT INTO users (email) VALUES (?)", "dup@x"), "dup@x"), "names the duplicate")
	var e *mysql.MySQLError
	_, err := s.ExecContext(bg, "SELEC 1")
	isTrue(errors.As(err, &e) && e.Number == 1064 && string(e.SQLState[:]) == "42000", "%v", err)
	fails(s, 1054, "SELECT nope FROM users WHERE id = ?", 1)
	fails(s, 1049, "USE no_such_database_here")
	fails(s, 1406, "INSERT INTO users (email, name) VALUES ('long', ?)", strings.Repeat("x", 51))
	fails(s, 1365, "INSERT INTO own (id, v) VALUES (9999, 1 / 0)")
	ok(s.PingContext(bg))
	equal(one(s, "SELECT DATABASE()"), settings.db)
}

func streaming(change ...func(*mysql.Config)) func() {
	return func() {
		s := connect(change...)
		defer s.close()
		rows, err := s.QueryContext(bg, "SELECT a.n * 1000 + b.n, REPEAT('y', 50) FROM nums a, nums b WHERE a.n < ?", 200)
		ok(err)
		count, sum := 0, 0
		for rows.Next() {
			var v int
			var pad sql.RawBytes
			ok(rows.Scan(&v, &pad))
			count, sum = count+1, sum+v
		}
		ok(rows.Err())
		equal([2]int{count, sum}, [2]int{200000, 200000 * 199999 / 2})
		rows, err = s.QueryContext(bg, "SELECT n FROM nums WHERE n >= ?", 0)
		ok(err)
		isTrue(rows.Next(), "a row")
		ok(rows.Close()) // drains what is left
		equal(one(s, "SELECT 5"), "5")
	}
}

func contexts() {
	db := open()
	defer db.Close()
	crossing := "SELECT COUNT(*) FROM nums a, nums b, nums c WHERE a.n + b.n + c.n > ?"
	// The driver only drops the connection: the statement must end by itself soon, or it would hold
	// its tables' metadata locks.
	for _, query := range []string{"SELECT SLEEP(3) + ?", "SELECT SUM(SLEEP(0.3)) FROM nums WHERE n < 10 * ?"} {
		ctx, cancel := context.WithTimeout(bg, 300*time.Millisecond)
		begun := time.Now()
		var v int
		err := db.QueryRowContext(ctx, query, 1).Scan(&v)
		cancel()
		isTrue(errors.Is(err, context.DeadlineExceeded), "%s: %v", query, err)
		isTrue(time.Since(begun) < 5*time.Second, "%s took %v", query, time.Since(begun))
		equal(one(db, "SELECT 1"), "1")
	}
	// The server is told by hand, as applications do.
	s := connect()
	defer s.close()
	id := one(s, "SELECT CONNECTION_ID()")
	outcome := make(chan error, 1)
	go func() {
		var v int
		outcome <- s.QueryRowContext(bg, crossing, 1).Scan(&v)
	}()
	// Again and again: a KILL QUERY that comes before the query has begun does nothing.
	for attempt, ended := 0, false; !ended; attempt++ {
		isTrue(attempt < 60, "KILL QUERY did not end the query")
		do(db, "KILL QUERY "+id)
		select {
		case err := <-outcome:
			equal(code(err), uint16(1317), err)
			ended = true
		case <-time.After(300 * time.Millisecond):
		}
	}
	equal(one(s, "SELECT 1"), "1")
	fails(db, 1094, "KILL 4294967290")
}

func poolLife() {
	db := open(func(c *mysql.Config) { c.CheckConnLiveness = true })
	defer db.Close()
	db.SetMaxOpenConns(4)
	db.SetConnMaxLifetime(300 * time.Millisecond)
	db.SetConnMaxIdleTime(100 * time.Millisecond)
	for i := 0; i < 12; i++ {
		equal(one(db, "SELECT ?", i), fmt.Sprint(i))
		time.Sleep(60 * time.Millisecond)
	}
	// Connections that the other side closed are found dead and replaced, with no error seen.
	var ids []string
	var conns []*sql.Conn
	db.SetConnMaxLifetime(0)
	db.SetConnMaxIdleTime(0)
	db.SetMaxIdleConns(4)
	for i := 0; i < 3; i++ {
		c, err := db.Conn(bg)
		ok(err)
		ids = append(ids, one(c, "SELECT CONNECTION_ID()"))
		conns = append(conns, c)
	}
	for _, c := range conns {
		c.Close()
	}
	killer := connect()
	defer killer.close()
	for _, id := range ids {
		do(killer, "KILL "+id)
	}
	time.Sleep(200 * time.Millisecond)
	for i := 0; i < 6; i++ {
		equal(one(db, "SELECT 'replaced'"), "replaced")
	}
}

func compressed() {
	withCompression := func(c *mysql.Config) { ok(c.Apply(mysql.EnableCompression(true))) }
	s := connect(withCompression)
	defer s.close()
	equal(one(s, "SELECT 1"), "1")
	text := strings.Repeat("compress me ", 50000)
	equal(one(s, "SELECT ?", text) == text, true, "600 kB both ways")
	equal(one(s, "SELECT LENGTH(REPEAT('x', 18000000))"), "18000000")
	equal(len(one(s, "SELECT REPEAT('x', 18000000)")), 18000000)
	streaming(withCompression)()
	ownWrites(withCompression)()
}

func cleanUp() {
	s := connect()
	defer s.close()
	do(s, "DROP DATABASE "+settings.db)
}

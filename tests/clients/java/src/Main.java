import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.ByteArrayInputStream;
import java.math.BigDecimal;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.BatchUpdateException;
import java.sql.CallableStatement;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.SQLIntegrityConstraintViolationException;
import java.sql.SQLTimeoutException;
import java.sql.SQLWarning;
import java.sql.Savepoint;
import java.sql.Statement;
import java.sql.Timestamp;
import java.sql.Types;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Both JDBC drivers run as an application would use them, with client-side and server-side statements. */
public final class Main {
    static final String HOST = Check.env("HOST", "127.0.0.1");
    static final String PORT = Check.env("PORT", "3306");
    static final String USER = Check.env("USER", "root");
    static final String PASSWORD = Check.env("PASSWORD", "");
    static final String DB = Check.env("DB", "test");
    static final boolean MYSQL = Check.env("FAMILY", "mysql").equals("mysql");
    static final boolean TLS = Check.env("TLS", "0").equals("1");

    /** One driver in one mode; `extra` are the URL's properties that make the mode. */
    record Driver(String name, String scheme, boolean prepares, String... extra) {
        boolean oracle() {
            return scheme.equals("mysql");
        }

        Connection open(String db, String... more) throws SQLException {
            return login(USER, PASSWORD, db, more);
        }

        Connection login(String user, String password, String db, String... more) throws SQLException {
            Properties p = new Properties();
            p.setProperty("user", user);
            p.setProperty("password", password);
            p.setProperty("allowPublicKeyRetrieval", "true");
            p.setProperty("allowMultiQueries", "true");
            p.setProperty("allowLoadLocalInfile", "true");
            p.setProperty("allowLocalInfile", "true");
            p.setProperty("connectTimeout", "20000");
            p.setProperty("sslMode", TLS ? (oracle() ? "REQUIRED" : "trust") : (oracle() ? "DISABLED" : "disable"));
            for (String[] list : new String[][] {extra, more}) {
                for (String kv : list) {
                    p.setProperty(kv.substring(0, kv.indexOf('=')), kv.substring(kv.indexOf('=') + 1));
                }
            }
            // Each driver would otherwise take the other's scheme or refuse unknown properties.
            (oracle() ? List.of("allowLocalInfile") : List.of("allowLoadLocalInfile")).forEach(p::remove);
            return DriverManager.getConnection("jdbc:" + scheme + "://" + HOST + ":" + PORT + "/" + db, p);
        }
    }

    static final List<Driver> DRIVERS = List.of(
            new Driver("Connector/J, client-side statements", "mysql", false, "useServerPrepStmts=false"),
            new Driver("Connector/J, server-side statements", "mysql", true, "useServerPrepStmts=true", "cachePrepStmts=true",
                    "prepStmtCacheSize=30", "useLocalSessionState=true", "rewriteBatchedStatements=true"),
            new Driver("MariaDB Connector/J, client-side statements", "mariadb", false, "useServerPrepStmts=false"),
            new Driver("MariaDB Connector/J, server-side statements", "mariadb", true, "useServerPrepStmts=true", "useBulkStmts=true",
                    "cachePrepStmts=true", "prepStmtCacheSize=30"));

    public static void main(String[] args) {
        for (Driver d : DRIVERS) {
            group(d, "connect", Main::connect);
            group(d, "schema", Main::schema);
            group(d, "own writes at once", Main::ownWrites);
            group(d, "transactions", Main::transactions);
            group(d, "forty threads", Main::crowd);
            group(d, "session settings", Main::settings);
            group(d, "statements and DDL", Main::statements);
            group(d, "batches", Main::batches);
            group(d, "multiple results", Main::multipleResults);
            group(d, "stored procedures", Main::procedures);
            group(d, "types", Main::types);
            group(d, "load data local", Main::loadData);
            group(d, "big blobs", Main::blobs);
            group(d, "cursors and streaming", Main::streaming);
            group(d, "errors", Main::errors);
            group(d, "timeouts and cancel", Main::timeouts);
            group(d, "metadata", Main::metadata);
            group(d, "clean up", Main::cleanUp);
        }
        // Idle threads of the drivers must not keep the process.
        System.exit(Check.finish());
    }

    interface WithDriver {
        void run(Driver d) throws Exception;
    }

    static void group(Driver d, String name, WithDriver run) {
        Check.group(d.name + ": " + name, () -> run.run(d));
    }

    static void run(Connection c, String sql, Object... args) throws SQLException {
        if (args.length == 0) {
            try (Statement s = c.createStatement()) {
                s.execute(sql);
            }
            return;
        }
        try (PreparedStatement s = bind(c.prepareStatement(sql), args)) {
            s.execute();
        }
    }

    static PreparedStatement bind(PreparedStatement s, Object... args) throws SQLException {
        for (int i = 0; i < args.length; i++) {
            s.setObject(i + 1, args[i]);
        }
        return s;
    }

    /** A result as text: columns joined by "|", one string for each row. */
    static List<String> rows(Connection c, String sql, Object... args) throws SQLException {
        try (PreparedStatement s = args.length == 0 ? null : bind(c.prepareStatement(sql), args);
                Statement plain = args.length == 0 ? c.createStatement() : null;
                ResultSet r = s != null ? s.executeQuery() : plain.executeQuery(sql)) {
            return rows(r);
        }
    }

    static List<String> rows(ResultSet r) throws SQLException {
        List<String> out = new ArrayList<>();
        while (r.next()) {
            StringBuilder row = new StringBuilder();
            for (int i = 1; i <= r.getMetaData().getColumnCount(); i++) {
                row.append(i > 1 ? "|" : "").append(r.getString(i));
            }
            out.add(row.toString());
        }
        return out;
    }

    static String one(Connection c, String sql, Object... args) throws SQLException {
        List<String> rows = rows(c, sql, args);
        Check.equal(rows.size(), 1, "rows of " + sql);
        return rows.get(0);
    }

    static SQLException fails(int code, Callable<?> attempt) throws Exception {
        try {
            attempt.call();
        } catch (SQLException e) {
            Check.equal(e.getErrorCode(), code, e.getMessage());
            return e;
        }
        throw new AssertionError("no error, wanted " + code);
    }

    static SQLException fails(int code, Connection c, String sql, Object... args) throws Exception {
        return fails(code, () -> {
            run(c, sql, args);
            return null;
        });
    }

    static void connect(Driver d) throws Exception {
        try (Connection c = d.open("")) {
            Check.equal(one(c, "SELECT VERSION()").contains("MariaDB"), !MYSQL);
            Check.isTrue(c.isValid(5), "isValid");
            Check.equal(one(c, "SELECT ?, DATABASE()", 42), "42|null");
            Check.isTrue(c.getMetaData().getDatabaseProductVersion().length() > 3, "version");
        }
        fails(1045, () -> d.login(USER, "wrong", ""));
        try {
            d.login("nobody_of_this_name", PASSWORD, "").close();
            throw new AssertionError("a user that does not exist came in");
        } catch (SQLException e) {
            // MySQL feigns any of its plugins for such a user, also one the driver lacks.
            Check.isTrue(e.getErrorCode() == 1045 || e.getErrorCode() == 1251, e.toString());
        }
        fails(1049, () -> d.open("no_such_database_here"));
    }

    static void schema(Driver d) throws Exception {
        try (Connection c = d.open("")) {
            run(c, "DROP DATABASE IF EXISTS " + DB);
            run(c, "CREATE DATABASE " + DB + " CHARACTER SET utf8mb4");
            c.setCatalog(DB);
            Check.equal(c.getCatalog(), DB);
            run(c, "CREATE TABLE users (id INT AUTO_INCREMENT PRIMARY KEY, email VARCHAR(80) UNIQUE, name VARCHAR(50))");
            run(c, "CREATE TABLE nums (n INT PRIMARY KEY)");
            StringBuilder values = new StringBuilder("INSERT INTO nums VALUES (0)");
            for (int n = 1; n < 1000; n++) {
                values.append(",(").append(n).append(')');
            }
            run(c, values.toString());
            Check.equal(rows(c, "SHOW TABLES"), List.of("nums", "users"));
        }
        try (Connection c = d.open(DB)) {
            Check.equal(one(c, "SELECT DATABASE()"), DB);
            Check.eventually("the tables in a new session", () -> rows(c, "SHOW TABLES").size() == 2);
        }
    }

    static long insert(Connection c, String sql, Object... args) throws SQLException {
        try (PreparedStatement s = bind(c.prepareStatement(sql, Statement.RETURN_GENERATED_KEYS), args)) {
            s.executeUpdate();
            try (ResultSet keys = s.getGeneratedKeys()) {
                Check.isTrue(keys.next(), "no generated key");
                return keys.getLong(1);
            }
        }
    }

    static void ownWrites(Driver d) throws Exception {
        try (Connection c = d.open(DB)) {
            for (int i = 0; i < 60; i++) {
                String email = "own" + i;
                long id = insert(c, "INSERT INTO users (email, name) VALUES (?, ?)", email, "n" + i);
                Check.equal(one(c, "SELECT name FROM users WHERE id = ?", id), "n" + i);
                Check.equal(one(c, "SELECT LAST_INSERT_ID()"), "" + id);
                run(c, "UPDATE users SET name = ? WHERE id = ?", "changed", id);
                Check.equal(one(c, "SELECT name FROM users WHERE email = '" + email + "'"), "changed");
                if (i % 3 == 0) {
                    run(c, "DELETE FROM users WHERE id = ?", id);
                    Check.equal(rows(c, "SELECT * FROM users WHERE id = ?", id), List.of());
                }
            }
            Check.equal(one(c, "SELECT COUNT(*) FROM users"), "40");
            try (Statement s = c.createStatement(ResultSet.TYPE_SCROLL_INSENSITIVE, ResultSet.CONCUR_UPDATABLE);
                    ResultSet r = s.executeQuery("SELECT id, name FROM users WHERE email = 'own1'")) {
                r.next();
                r.updateString("name", "updatable");
                r.updateRow();
            }
            Check.equal(one(c, "SELECT name FROM users WHERE email = ?", "own1"), "updatable");
        }
    }

    static void transactions(Driver d) throws Exception {
        try (Connection c = d.open(DB); Connection other = d.open(DB)) {
            run(c, "CREATE TABLE tx (id INT PRIMARY KEY, v INT)");
            c.setAutoCommit(false);
            run(c, "INSERT INTO tx VALUES (?, ?)", 1, 10);
            Check.equal(one(c, "SELECT v FROM tx WHERE id = ?", 1), "10");
            c.rollback();
            Check.equal(rows(c, "SELECT * FROM tx"), List.of());
            run(c, "INSERT INTO tx VALUES (?, ?), (?, ?)", 1, 10, 2, 20);
            Check.equal(one(other, "SELECT COUNT(*) FROM tx FOR UPDATE SKIP LOCKED"), "0");
            Savepoint sp = c.setSavepoint("sp");
            run(c, "UPDATE tx SET v = 0");
            c.rollback(sp);
            c.commit();
            Check.equal(rows(other, "SELECT * FROM tx ORDER BY id FOR UPDATE"), List.of("1|10", "2|20"));
            c.setAutoCommit(true);
            Check.equal(rows(c, "SELECT * FROM tx ORDER BY id"), List.of("1|10", "2|20"));
            c.setReadOnly(true);
            c.setAutoCommit(false);
            Check.equal(one(c, "SELECT COUNT(*) FROM tx"), "2");
            try {
                run(c, "INSERT INTO tx VALUES (3, 3)");
                throw new AssertionError("a write in a read-only session");
            } catch (SQLException e) {
                Check.isTrue(e.getErrorCode() == 1792 || e.getMessage().contains("read-only"), e.getMessage());
            }
            c.rollback();
            c.setAutoCommit(true);
            c.setReadOnly(false);
            for (int level : new int[] {Connection.TRANSACTION_READ_UNCOMMITTED, Connection.TRANSACTION_READ_COMMITTED,
                Connection.TRANSACTION_SERIALIZABLE, Connection.TRANSACTION_REPEATABLE_READ}) {
                c.setTransactionIsolation(level);
                Check.equal(c.getTransactionIsolation(), level);
                c.setAutoCommit(false);
                String before = one(c, "SELECT v FROM tx WHERE id = 1");
                if (level != Connection.TRANSACTION_SERIALIZABLE) {
                    run(other, "UPDATE tx SET v = v + 1 WHERE id = 1");
                    Check.equal(one(c, "SELECT v FROM tx WHERE id = 1").equals(before), level == Connection.TRANSACTION_REPEATABLE_READ);
                }
                c.commit();
                c.setAutoCommit(true);
            }
        }
    }

    static void crowd(Driver d) throws Exception {
        try (Connection c = d.open(DB)) {
            run(c, "CREATE TABLE crowd (id INT AUTO_INCREMENT PRIMARY KEY, who INT, n INT)");
            run(c, "CREATE TABLE tally (id INT PRIMARY KEY, total INT)");
            run(c, "INSERT INTO tally VALUES (1, 0)");
        }
        ExecutorService threads = Executors.newFixedThreadPool(40);
        try {
            List<Future<?>> all = new ArrayList<>();
            for (int i = 0; i < 40; i++) {
                int who = i;
                all.add(threads.submit(() -> {
                    try (Connection c = d.open(DB)) {
                        run(c, "SET @me = " + who + ", time_zone = '+0" + who % 10 + ":00'");
                        for (int n = 0; n < 10; n++) {
                            long id = insert(c, "INSERT INTO crowd (who, n) VALUES (?, ?)", who, n);
                            Check.equal(one(c, "SELECT who, n FROM crowd WHERE id = ?", id), who + "|" + n);
                            Check.equal(one(c, "SELECT LAST_INSERT_ID(), @me, @@time_zone"), id + "|" + who + "|+0" + who % 10 + ":00");
                        }
                        c.setAutoCommit(false);
                        run(c, "UPDATE tally SET total = total + ?", 1);
                        c.commit();
                    }
                    return null;
                }));
            }
            for (Future<?> f : all) {
                f.get();
            }
        } finally {
            threads.shutdownNow();
        }
        try (Connection c = d.open(DB)) {
            Check.equal(one(c, "SELECT total FROM tally FOR UPDATE"), "40");
            Check.equal(one(c, "SELECT COUNT(*) FROM crowd FOR UPDATE"), "400");
        }
    }

    static void settings(Driver d) throws Exception {
        try (Connection c = d.open(DB, "sessionVariables=group_concat_max_len=5,time_zone='+09:00'")) {
            Check.equal(one(c, "SELECT @@time_zone, GROUP_CONCAT(n ORDER BY n SEPARATOR '') FROM nums"), "+09:00|01234");
            run(c, "SET @a = 1, @b = 'zwei', sql_mode = 'ANSI_QUOTES'");
            Check.equal(one(c, "SELECT @a, @b FROM \"nums\" WHERE n = 1"), "1|zwei");
            run(c, "SET sql_mode = DEFAULT");
            run(c, "CREATE TEMPORARY TABLE tmp (x INT)");
            run(c, "INSERT INTO tmp VALUES (?), (?)", 1, 2);
            Check.equal(one(c, "SELECT SUM(x) FROM tmp WHERE x < ?", 9), "3");
            run(c, "DROP TEMPORARY TABLE tmp");
            try (Statement s = c.createStatement()) {
                s.setMaxRows(3);
                Check.equal(rows(s.executeQuery("SELECT n FROM nums ORDER BY n")), List.of("0", "1", "2"));
                s.setMaxRows(0);
                Check.equal(rows(s.executeQuery("SELECT n FROM nums")).size(), 1000);
                s.execute("DROP TABLE IF EXISTS not_there_at_all");
                SQLWarning warning = s.getWarnings();
                Check.equal(warning == null ? 0 : warning.getErrorCode(), 1051);
            }
        }
    }

    static void statements(Driver d) throws Exception {
        // Connector/J keeps the columns of a prepared SELECT * and trips over another one.
        boolean star = !(d.oracle() && d.prepares());
        try (Connection c = d.open(DB)) {
            run(c, "CREATE TABLE prep (id INT PRIMARY KEY, v VARCHAR(20))");
            try (PreparedStatement put = c.prepareStatement("INSERT INTO prep (id, v) VALUES (?, ?)");
                    PreparedStatement get = c.prepareStatement((star ? "SELECT *" : "SELECT id, v") + " FROM prep WHERE id = ?")) {
                for (int i = 0; i < 40; i++) {
                    bind(put, i, "v" + i).executeUpdate();
                    Check.equal(rows(bind(get, i).executeQuery()), List.of(i + "|v" + i));
                }
                run(c, "ALTER TABLE prep ADD COLUMN w INT DEFAULT 7");
                Check.equal(rows(bind(get, 3).executeQuery()), List.of(star ? "3|v3|7" : "3|v3"));
                bind(put, 100, "late").executeUpdate();
                run(c, "ALTER TABLE prep DROP COLUMN w, MODIFY v VARCHAR(100) CHARACTER SET latin1");
                Check.equal(rows(bind(get, 100).executeQuery()), List.of("100|late"));
                run(c, "RENAME TABLE prep TO prep_away");
                fails(1146, () -> bind(get, 3).executeQuery());
                run(c, "RENAME TABLE prep_away TO prep");
                Check.equal(rows(bind(get, 3).executeQuery()), List.of("3|v3"));
            }
            // More texts than the driver keeps, then the first ones again.
            for (int i = 0; i < 100; i++) {
                Check.equal(one(c, "SELECT CAST(? AS SIGNED) + " + i % 60, 1), "" + (1 + i % 60));
            }
            Check.equal(one(c, "SELECT ?, ?, ?", null, "text", new BigDecimal("1.50")), "null|text|1.50");
            fails(1146, c, "SELECT * FROM nowhere WHERE x = ?", 1);
            fails(1064, c, "SELEC ?", 1);
            Check.equal(one(c, "SELECT COUNT(*) FROM prep"), "41");
        }
    }

    static void batches(Driver d) throws Exception {
        try (Connection c = d.open(DB)) {
            run(c, "CREATE TABLE batch (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(20), w INT NULL)");
            try (PreparedStatement s = c.prepareStatement("INSERT INTO batch (v, w) VALUES (?, ?)", Statement.RETURN_GENERATED_KEYS)) {
                for (int i = 0; i < 2000; i++) {
                    bind(s, "v" + i, i % 5 == 0 ? null : i).addBatch();
                }
                Check.equal(s.executeBatch().length, 2000);
            }
            Check.equal(one(c, "SELECT COUNT(*), COUNT(w), COUNT(DISTINCT v) FROM batch"), "2000|1600|2000");
            try (PreparedStatement s = c.prepareStatement("UPDATE batch SET w = ? WHERE id = ?")) {
                for (int i = 1; i <= 100; i++) {
                    bind(s, -1, i).addBatch();
                }
                s.executeBatch();
            }
            Check.equal(one(c, "SELECT COUNT(*) FROM batch WHERE w = -1"), "100");
            try (Statement s = c.createStatement()) {
                s.addBatch("INSERT INTO batch (v) VALUES ('x')");
                s.addBatch("UPDATE batch SET v = 'y' WHERE v = 'x'");
                s.addBatch("DELETE FROM batch WHERE v = 'y'");
                Check.equal(s.executeBatch(), new int[] {1, 1, 1});
            }
            try (PreparedStatement s = c.prepareStatement("INSERT INTO batch (id, v) VALUES (?, 'dup')")) {
                for (int id : new int[] {9001, 1, 9002}) {
                    bind(s, id).addBatch();
                }
                s.executeBatch();
                throw new AssertionError("a duplicate in a batch went through");
            } catch (BatchUpdateException e) {
                Check.equal(e.getErrorCode(), 1062, e.getMessage());
            }
            Check.equal(one(c, "SELECT 'fine'"), "fine");
        }
    }

    static void multipleResults(Driver d) throws Exception {
        try (Connection c = d.open(DB); Statement s = c.createStatement()) {
            List<Object> seen = new ArrayList<>();
            boolean isRows = s.execute("SELECT 1; SET @z = 9, time_zone = '+07:00'; INSERT INTO batch (v) VALUES ('m'); SELECT 2, ';' UNION ALL SELECT 3, 'x'");
            while (isRows || s.getUpdateCount() != -1) {
                seen.add(isRows ? rows(s.getResultSet()) : s.getUpdateCount());
                isRows = s.getMoreResults();
            }
            Check.equal(seen, List.of(List.of("1"), 0, 1, List.of("2|;", "3|x")));
            Check.equal(one(c, "SELECT @z, @@time_zone"), "9|+07:00");
            SQLException e = fails(1146, () -> {
                s.execute("SELECT 1; SELECT * FROM nowhere; SELECT 2");
                while (s.getMoreResults() || s.getUpdateCount() != -1) { }
                return null;
            });
            Check.equal(e.getSQLState(), "42S02");
            Check.equal(one(c, "SELECT 5"), "5");
        }
        try (Connection c = d.open(DB, "allowMultiQueries=false")) {
            fails(1064, c, "SELECT 1; SELECT 2");
        }
    }

    static void procedures(Driver d) throws Exception {
        try (Connection c = d.open(DB)) {
            run(c, "CREATE PROCEDURE p(IN a INT, OUT o INT, INOUT io VARCHAR(20)) "
                    + "BEGIN SET o = a * 2; SET io = CONCAT(io, '!'); SELECT a, 'one'; SELECT n FROM nums WHERE n < 2 ORDER BY n; END");
            run(c, "CREATE FUNCTION twice(x INT) RETURNS INT DETERMINISTIC NO SQL RETURN x * 2");
            for (int round = 0; round < 3; round++) {
                try (CallableStatement s = c.prepareCall("{CALL p(?, ?, ?)}")) {
                    s.setInt(1, 20 + round);
                    s.registerOutParameter(2, Types.INTEGER);
                    s.setString(3, "hey");
                    s.registerOutParameter(3, Types.VARCHAR);
                    Check.isTrue(s.execute(), "a result set first");
                    Check.equal(rows(s.getResultSet()), List.of((20 + round) + "|one"));
                    Check.isTrue(s.getMoreResults(), "a second one");
                    Check.equal(rows(s.getResultSet()), List.of("0", "1"));
                    while (s.getMoreResults() || s.getUpdateCount() != -1) { }
                    Check.equal(s.getInt(2), 2 * (20 + round));
                    Check.equal(s.getString(3), "hey!");
                }
            }
            try (CallableStatement s = c.prepareCall("{? = CALL twice(?)}")) {
                s.registerOutParameter(1, Types.INTEGER);
                s.setInt(2, 21);
                s.execute();
                Check.equal(s.getInt(1), 42);
            }
        }
    }

    static void types(Driver d) throws Exception {
        try (Connection c = d.open(DB)) {
            run(c, "CREATE TABLE types (id INT PRIMARY KEY, b BOOLEAN, bi BIGINT, ub BIGINT UNSIGNED, d DOUBLE, dc DECIMAL(40,10), "
                    + "dt DATE, dtm DATETIME(6), ts TIMESTAMP(3) NULL, tm TIME, e ENUM('a','b'), bin VARBINARY(300), j JSON, t VARCHAR(100))");
            byte[] every = new byte[256];
            for (int i = 0; i < 256; i++) {
                every[i] = (byte) i;
            }
            // Connector/J takes MariaDB for a server too old to have fractions of seconds.
            boolean fractions = MYSQL || !d.oracle();
            LocalDateTime at = LocalDateTime.of(2024, 2, 29, 23, 59, 59, fractions ? 123_456_000 : 0);
            Timestamp ts = Timestamp.valueOf("2024-06-01 12:00:00" + (fractions ? ".5" : ""));
            String text = "naïve 日本語 😀 \\ ' \" \0";
            // MySQL finds MariaDB's binary DATE malformed.
            Object day = MYSQL && !d.oracle() && d.prepares() ? "1000-01-01" : LocalDate.of(1000, 1, 1);
            run(c, "INSERT INTO types VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)", 1, true, Long.MIN_VALUE, new BigDecimal("18446744073709551615"), 1e300,
                    new BigDecimal("-123456789012345678901234567890.0123456789"), day, at, ts, "23:59:58", "b", every,
                    "{\"a\": [1, null, \"é\"]}", text);
            try (PreparedStatement s = bind(c.prepareStatement("SELECT * FROM types WHERE id = ?"), 1); ResultSet r = s.executeQuery()) {
                Check.isTrue(r.next(), "a row");
                Check.equal(r.getBoolean("b"), true);
                Check.equal(r.getLong("bi"), Long.MIN_VALUE);
                Check.equal(r.getBigDecimal("ub"), new BigDecimal("18446744073709551615"));
                Check.equal(r.getDouble("d"), 1e300);
                Check.equal(r.getBigDecimal("dc"), new BigDecimal("-123456789012345678901234567890.0123456789"));
                Check.equal(r.getObject("dt", LocalDate.class), LocalDate.of(1000, 1, 1));
                Check.equal(r.getObject("dtm", LocalDateTime.class), at);
                Check.equal(r.getTimestamp("ts"), ts);
                Check.equal(r.getString("tm"), "23:59:58");
                Check.equal(r.getString("e"), "b");
                Check.equal(r.getBytes("bin"), every);
                Check.isTrue(r.getString("j").contains("é"), "JSON");
                Check.equal(r.getString("t"), text);
            }
            run(c, "INSERT INTO types (id, t) VALUES (?, ?)", 2, null);
            Check.equal(one(c, "SELECT * FROM types WHERE id = ?", 2), "2" + "|null".repeat(13));
        }
    }

    static void loadData(Driver d) throws Exception {
        Path file = Files.createTempFile("millrace-java", ".txt");
        try (Connection c = d.open(DB); Statement s = c.createStatement()) {
            if (one(c, "SELECT @@local_infile").equals("0")) {
                throw new Check.Skip("the server has local_infile off");
            }
            StringBuilder lines = new StringBuilder();
            for (int i = 0; i < 10_000; i++) {
                lines.append(i).append("\tnäme ").append(i).append('\t').append("p".repeat(100)).append('\n');
            }
            Files.writeString(file, lines);
            run(c, "CREATE TABLE loaded (id INT PRIMARY KEY, name VARCHAR(60), pad VARCHAR(200))");
            Check.equal(s.executeUpdate("LOAD DATA LOCAL INFILE '" + file + "' INTO TABLE loaded CHARACTER SET utf8mb4"), 10_000);
            Check.equal(one(c, "SELECT COUNT(*), MAX(name) FROM loaded"), "10000|näme 9999");
        } finally {
            Files.delete(file);
        }
    }

    static void blobs(Driver d) throws Exception {
        try (Connection c = d.open(DB)) {
            int limit = Integer.parseInt(one(c, "SELECT @@max_allowed_packet"));
            // Escaped in a text statement a random byte takes a little more than one.
            int size = Math.min(20 << 20, (int) (limit / 1.2));
            byte[] blob = new byte[size];
            for (int i = 0; i < size; i++) {
                blob[i] = (byte) (i % 251);
            }
            run(c, "CREATE TABLE blobs (id INT PRIMARY KEY, b LONGBLOB)");
            for (int n : new int[] {size, 65536, 0}) {
                byte[] part = Arrays.copyOf(blob, n);
                run(c, "INSERT INTO blobs VALUES (?, ?)", n, part);
                try (PreparedStatement s = bind(c.prepareStatement("SELECT b FROM blobs WHERE id = ?"), n); ResultSet r = s.executeQuery()) {
                    r.next();
                    Check.isTrue(Arrays.equals(r.getBytes(1), part), n + " bytes came back changed");
                }
            }
            // As a stream: sent ahead as long data where statements are the server's.
            try (PreparedStatement s = c.prepareStatement("INSERT INTO blobs VALUES (?, ?)")) {
                s.setInt(1, 7);
                s.setBinaryStream(2, new ByteArrayInputStream(blob, 0, 3 << 20), 3 << 20);
                s.executeUpdate();
            }
            Check.equal(one(c, "SELECT LENGTH(b), SHA2(b, 256) = SHA2((SELECT SUBSTRING(b, 1, 3145728) FROM blobs WHERE id = ?), 256) FROM blobs WHERE id = 7", size), "3145728|1");
            if (size < 20 << 20) {
                throw new Check.Skip("blobs up to " + size + " bytes only: max_allowed_packet is " + limit);
            }
        }
    }

    static void streaming(Driver d) throws Exception {
        String sql = "SELECT a.n * 1000 + b.n, REPEAT('y', 50) FROM nums a, nums b WHERE a.n < 100";
        // Row by row; and through a server-side cursor where the driver has one.
        record Mode(int fetchSize, String[] properties) {}
        List<Mode> modes = new ArrayList<>(List.of(new Mode(d.oracle() ? Integer.MIN_VALUE : 100, new String[0])));
        if (d.oracle()) {
            modes.add(new Mode(500, new String[] {"useCursorFetch=true"}));
        }
        for (Mode mode : modes) {
            try (Connection c = d.open(DB, mode.properties())) {
                long count = 0, sum = 0;
                try (PreparedStatement s = c.prepareStatement(sql, ResultSet.TYPE_FORWARD_ONLY, ResultSet.CONCUR_READ_ONLY)) {
                    s.setFetchSize(mode.fetchSize());
                    try (ResultSet r = s.executeQuery()) {
                        while (r.next()) {
                            count++;
                            sum += r.getLong(1);
                        }
                    }
                    Check.equal(count + " " + sum, "100000 4999950000");
                    try (ResultSet r = s.executeQuery()) {
                        r.next(); // given up after a row
                    }
                }
                Check.equal(one(c, "SELECT 5"), "5");
                try (PreparedStatement s = c.prepareStatement("SELECT n FROM nums ORDER BY n")) {
                    s.setFetchSize(mode.fetchSize());
                    try (ResultSet r = s.executeQuery()) {
                        int n = 0;
                        while (r.next()) {
                            Check.equal(r.getInt(1), n++);
                        }
                        Check.equal(n, 1000);
                    }
                }
            }
        }
    }

    static void errors(Driver d) throws Exception {
        try (Connection c = d.open(DB)) {
            SQLException e = fails(1062, c, "INSERT INTO nums VALUES (?)", 1);
            Check.isTrue(e instanceof SQLIntegrityConstraintViolationException, e.getClass().getName());
            Check.equal(e.getSQLState(), "23000");
            Check.isTrue(e.getMessage().contains("Duplicate entry '1'"), e.getMessage());
            Check.equal(fails(1064, c, "SELEC 1").getSQLState(), "42000");
            fails(1146, c, "SELECT * FROM missing");
            fails(1054, c, "SELECT nope FROM nums");
            fails(1406, c, "INSERT INTO users (email, name) VALUES (?, ?)", "long", "x".repeat(51));
            fails(1049, () -> {
                c.setCatalog("no_such_database_here");
                return null;
            });
            Check.equal(one(c, "SELECT DATABASE()"), DB);
        }
    }

    static void timeouts(Driver d) throws Exception {
        String crossing = "SELECT COUNT(*) FROM nums a, nums b, nums c WHERE a.n + b.n + c.n > 5";
        try (Connection c = d.open(DB)) {
            long begun = System.nanoTime();
            try (Statement s = c.createStatement()) {
                s.setQueryTimeout(1);
                rows(s.executeQuery(crossing));
                throw new AssertionError("no timeout");
            } catch (SQLException e) {
                Check.isTrue(e instanceof SQLTimeoutException || e.getErrorCode() == 1969 || e.getErrorCode() == 3024, e.toString());
            }
            Check.isTrue(System.nanoTime() - begun < 10e9, "the timeout took long");
            Check.equal(one(c, "SELECT 'alive'"), "alive");
            try (Statement s = c.createStatement()) {
                Thread canceller = new Thread(() -> {
                    try {
                        Thread.sleep(400);
                        s.cancel();
                    } catch (InterruptedException | SQLException e) {
                        throw new IllegalStateException(e);
                    }
                });
                canceller.start();
                SQLException e = fails(d.oracle() ? 0 : 1317, () -> rows(s.executeQuery(crossing)));
                Check.isTrue(e.getErrorCode() == 1317 || e.getMessage().toLowerCase().contains("cancel"), e.toString());
                canceller.join();
            } catch (AssertionError e) {
                // Connector/J says 1317 for a text statement and its own code otherwise.
                Check.isTrue(e.getMessage().contains("1317"), e.getMessage());
            }
            Check.equal(one(c, "SELECT 'alive'"), "alive");
        }
        // Connecting must fit, too, with TLS on a busy machine.
        try (Connection c = d.open(DB, "socketTimeout=2500")) {
            try (Statement s = c.createStatement()) {
                s.executeQuery("SELECT SLEEP(6)");
                throw new AssertionError("no socket timeout");
            } catch (SQLException e) {
                Check.isTrue(e.getSQLState() == null || e.getSQLState().startsWith("08"), e.toString());
            }
        }
    }

    static void metadata(Driver d) throws Exception {
        try (Connection c = d.open(DB)) {
            List<String> columns = new ArrayList<>();
            try (ResultSet r = c.getMetaData().getColumns(DB, null, "users", null)) {
                while (r.next()) {
                    columns.add(r.getString("COLUMN_NAME"));
                }
            }
            Check.equal(columns, List.of("id", "email", "name"));
            try (ResultSet r = c.getMetaData().getPrimaryKeys(DB, null, "users")) {
                Check.isTrue(r.next() && r.getString("COLUMN_NAME").equals("id"), "the primary key");
            }
            try (ResultSet r = c.getMetaData().getTables(DB, null, "%", new String[] {"TABLE"})) {
                Check.isTrue(rows(r).size() > 5, "tables");
            }
            try (PreparedStatement s = c.prepareStatement("SELECT id, name FROM users WHERE id = ?")) {
                Check.equal(s.getMetaData().getColumnCount(), 2);
                Check.equal(s.getMetaData().getColumnName(2), "name");
                Check.equal(s.getParameterMetaData().getParameterCount(), 1);
            }
        }
    }

    static void cleanUp(Driver d) throws Exception {
        try (Connection c = d.open(DB)) {
            run(c, "DROP DATABASE " + DB);
        }
    }
}

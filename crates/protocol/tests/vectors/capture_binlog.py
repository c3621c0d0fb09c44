#!/usr/bin/env python3
"""Makes the binary logs that the tests in ../binlog.rs read, and what the server's own tool says of them.

    millrace-lab sandbox up --family mysql --replicas 0 --dir /tmp/logs --detach
    capture_binlog.py NAME SERVER_FOLDER MYSQLBINLOG

NAME is mysql or mariadb: it names the server's family and the files, binlog/NAME-….log and .txt. SERVER_FOLDER is
the server's in the cluster's folder, such as /tmp/logs/s1. Needs pymysql.
"""

import pathlib
import re
import subprocess
import sys

import pymysql

FAMILY, FOLDER, TOOL = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
OUT = pathlib.Path(__file__).parent / "binlog"
MYSQL = FAMILY == "mysql"


def connect(**more):
    return pymysql.connect(
        unix_socket=str(FOLDER / "sock"), user="admin", password="admin-secret", autocommit=True, local_infile=True,
        client_flag=pymysql.constants.CLIENT.MULTI_STATEMENTS, **more
    )


db = connect()


def run(text):
    with db.cursor() as cursor:
        cursor.execute(text)
        rows = cursor.fetchall()
        while cursor.nextset():
            pass
        return rows


def current_log():
    rows = run("SHOW BINARY LOGS")
    return rows[-1][0]


def record(name, *statements):
    """The log of these statements alone, and the tool's words."""
    run("FLUSH BINARY LOGS")
    log = current_log()
    for statement in statements:
        if callable(statement):
            statement()
        else:
            try:
                run(statement)
            except pymysql.err.Error as error:
                raise SystemExit(f"{statement}: {error}")
    run("FLUSH BINARY LOGS")
    path = FOLDER / "disk" / "data" / log
    data = path.read_bytes()
    (OUT / f"{FAMILY}-{name}.log").write_bytes(data)
    said = subprocess.run([TOOL, "-vv", "--base64-output=decode-rows", path],
                          capture_output=True, check=True).stdout.decode("latin1")
    kept = [re.sub(r" /\* [A-Z].* \*/$", "", line) for line in said.splitlines() if
            re.match(r"### |SET @@SESSION.GTID_NEXT|#\d{6}.*(GTID \d|Xid = |Table_map)|XA PREPARE", line)]
    (OUT / f"{FAMILY}-{name}.txt").write_text("\n".join(kept) + "\n", "latin1")
    print(name, len(data))


run("DROP DATABASE IF EXISTS d")
run("CREATE DATABASE d CHARACTER SET utf8mb4")
db.select_db("d")
run("SET NAMES utf8mb4")
run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20), u BIGINT UNSIGNED, b LONGBLOB)")

INTEGERS = """CREATE TABLE ints (a TINYINT, au TINYINT UNSIGNED, b SMALLINT, bu SMALLINT UNSIGNED, y YEAR,
    c MEDIUMINT, cu MEDIUMINT UNSIGNED, d INT, du INT UNSIGNED, e BIGINT, eu BIGINT UNSIGNED,
    bo BOOL, PRIMARY KEY (d, cu))"""
LIMITS = """INSERT INTO ints VALUES
    (-128, 255, -32768, 65535, 2155, -8388608, 16777215, -2147483648, 4294967295,
     -9223372036854775808, 18446744073709551615, 1),
    (127, 0, 32767, 0, 1901, 8388607, 0, 2147483647, 0, 9223372036854775807, 0, 0),
    (NULL, NULL, NULL, NULL, NULL, NULL, 1, 0, NULL, NULL, NULL, NULL),
    (-1, 1, -1, 1, 2000, -1, 1, -1, 1, -1, 1, -1)"""
OTHERS = """CREATE TABLE others (id INT UNSIGNED PRIMARY KEY, f FLOAT, d DOUBLE, n1 DECIMAL(5,2), n2 DECIMAL(65,30),
    n3 DECIMAL(1,0), b1 BIT(1), b8 BIT(8), b13 BIT(13), b64 BIT(64), da DATE, t0 TIME, t6 TIME(6), dt0 DATETIME,
    dt3 DATETIME(3), ts0 TIMESTAMP NULL, ts5 TIMESTAMP(5) NULL, c1 CHAR(1), c63 CHAR(63), c255 CHAR(255),
    v1 VARCHAR(1), v63 VARCHAR(63), v64 VARCHAR(64), v1000 VARCHAR(1000), bi BINARY(16), bi255 BINARY(255), vb VARBINARY(300),
    tb TINYBLOB, b BLOB, mb MEDIUMBLOB, lb LONGBLOB, tx TEXT, e ENUM('x','y'), s SET('a','b','c'),
    last INT)"""
VALUES = """INSERT INTO others VALUES (7, 1.5, 2.5, -123.45, 1.000000000000000000000000000001, 9, b'1', b'10101010',
    b'1010101010101', b'1', '2020-02-29', '-838:59:59', '12:34:56.789012', '2020-01-01 00:00:00', '2020-01-01 00:00:00.123',
    '2020-01-01 00:00:00', '2020-01-01 00:00:00.12345', 'c', REPEAT('d', 63), REPEAT('e', 255), 'f', REPEAT('g', 63),
    REPEAT('h', 64), REPEAT('i', 1000), 'key', REPEAT('k', 200), REPEAT('l', 300), 'm', REPEAT('n', 300), 'o', 'p', 'q', 'y',
    'a,c', 77)"""
NULLS = "INSERT INTO others (id, last) VALUES (8, 88)"
ENUM = ", ".join(f"'{i}'" for i in range(300))


def load_data():
    import tempfile
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write("100\tabc\t5\tx\n101\tdef\t6\ty\n")
        file.flush()
        run(f"LOAD DATA LOCAL INFILE '{file.name}' INTO TABLE t")


def changes(image):
    return [f"SET SESSION binlog_row_image='{image}'",
            "INSERT INTO t VALUES (1, 'one', 18446744073709551615, 'b'), (2, 'two', 2, NULL)",
            "INSERT INTO t (id) VALUES (3)",
            "UPDATE t SET v='new' WHERE id < 3", "UPDATE t SET id = id + 10 WHERE id = 1",
            "DELETE FROM t WHERE id = 2", "REPLACE INTO t VALUES (3, 'three', 3, 'c')", "DELETE FROM t",
            "SET SESSION binlog_row_image='FULL'"]


def xa(end):
    return ["XA START 'trx', 'branch', 7", "INSERT INTO t (id) VALUES (50)", "XA END 'trx', 'branch', 7",
            "XA PREPARE 'trx', 'branch', 7", f"XA {end} 'trx', 'branch', 7",
            "DELETE FROM t WHERE id = 50"]


ROWS = ["SET SESSION binlog_format='ROW'", INTEGERS, LIMITS, "UPDATE ints SET e = -e WHERE e = -1", "DELETE FROM ints",
        OTHERS, VALUES, NULLS, "UPDATE others SET last = last + 1", "DELETE FROM others",
        f"CREATE TABLE wide (e ENUM({ENUM}), id SMALLINT, PRIMARY KEY (id))", "INSERT INTO wide VALUES ('299', -5)",
        *changes("FULL"), *changes("MINIMAL"), *changes("NOBLOB"), load_data, *xa("COMMIT"), *xa("ROLLBACK"),
        "CREATE TABLE nothing (a INT DEFAULT 5)", "SET SESSION binlog_row_image='MINIMAL'",
        "INSERT INTO nothing () VALUES ()", "SET SESSION binlog_row_image='FULL'",
        "BEGIN", "INSERT INTO t (id) VALUES (60), (61)", "UPDATE t SET v = 'x'", "COMMIT",
        "TRUNCATE t", "ALTER TABLE t ADD COLUMN w INT", "INSERT INTO t (id, w) VALUES (1, 2)", "RENAME TABLE t TO t2, wide TO t",
        "RENAME TABLE t TO wide, t2 TO t", "ALTER TABLE t DROP COLUMN w",
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        "CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
        "INSERT INTO parent VALUES (1)", "INSERT INTO child VALUES (1, 1)", "DELETE FROM parent",
        "DROP TABLE child, parent", "CREATE TABLE copied SELECT * FROM t", "DROP TABLE copied",
        "CREATE USER u", "GRANT SELECT ON d.* TO u", "DROP USER u", "DROP TABLE ints, others, wide, nothing", "DELETE FROM t"]

STATEMENTS = ["SET SESSION binlog_format='STATEMENT'", "INSERT INTO t (id, v) VALUES (1, 'é')",
              "SET @x = 5", "SET NAMES latin1", "SET SESSION sql_mode='ANSI_QUOTES'", "UPDATE t SET v = @x WHERE \"id\" = 1",
              "SET NAMES utf8mb4", "SET SESSION sql_mode=''", "CREATE TABLE auto (id INT PRIMARY KEY AUTO_INCREMENT, r DOUBLE)",
              "INSERT INTO auto (r) VALUES (LAST_INSERT_ID())", "DROP TABLE auto", load_data,
              "SET SESSION binlog_format='MIXED'", "DELETE FROM t LIMIT 1", "INSERT INTO t (id, v) VALUES (2, UUID())",
              "UPDATE t SET u = 1", *xa("COMMIT"), "DELETE FROM t", "SET SESSION binlog_format='ROW'"]

# The tool cannot show these.
record("geometry", "CREATE TABLE g (id INT PRIMARY KEY, g GEOMETRY, last INT)", "INSERT INTO g VALUES (1, POINT(1, 2), 77)",
       "UPDATE g SET last = 78", "DROP TABLE g")

if MYSQL:
    run("SET GLOBAL binlog_checksum='CRC32'; SET GLOBAL binlog_row_metadata='MINIMAL'; SET GLOBAL local_infile=1")
    record("rows", *ROWS)
    record("statements", *STATEMENTS)
    PAYLOAD = [s for s in ROWS]
    record("compressed", "SET SESSION binlog_transaction_compression=1", *PAYLOAD,
           "SET SESSION binlog_transaction_compression=0")
    run("SET GLOBAL binlog_row_metadata='FULL'")
    record("json", "CREATE TABLE j (a INT, j1 JSON, k BIGINT, j2 JSON, id INT PRIMARY KEY, x VARCHAR(9))",
           """INSERT INTO j VALUES (1, '{"a": "xxxxxxxxxxxxxxxxxxxx", "b": [1, 2, 3]}', -2, '{"c": "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"}', 4, 'z'), (2, NULL, 5, '[1]', 5, NULL)""",
           "SET SESSION binlog_row_value_options='PARTIAL_JSON'",
           "UPDATE j SET j1 = JSON_SET(j1, '$.b[1]', 22), j2 = JSON_REPLACE(j2, '$.c', 'w'), k = 6 WHERE id = 4",
           "UPDATE j SET j1 = JSON_SET(j1, '$.a', 'b'), id = 44 WHERE id = 4", "UPDATE j SET k = k + 1",
           "SET SESSION binlog_row_image='MINIMAL'",
           "UPDATE j SET j1 = JSON_SET(j1, '$.b[0]', 11)", "UPDATE j SET k = k + 1", "DELETE FROM j",
           "SET SESSION binlog_row_image='FULL'", "SET SESSION binlog_row_value_options=''",
           "CREATE TABLE multi (id INT PRIMARY KEY, j JSON, KEY zips ((CAST(j->'$.z' AS UNSIGNED ARRAY))), v VECTOR(3), l INT)",
           "INSERT INTO multi VALUES (1, '{\"z\": [1, 2]}', TO_VECTOR('[1,2,3]'), 3)", "UPDATE multi SET l = 4",
           "CREATE TABLE prefix (v VARCHAR(30), i INT, PRIMARY KEY (i, v(5)))", "INSERT INTO prefix VALUES ('abcdefgh', 1)",
           "SET SESSION sql_generate_invisible_primary_key=1", "CREATE TABLE gipk (v INT)", "INSERT INTO gipk VALUES (3)",
           "SET SESSION sql_generate_invisible_primary_key=0",
           "CREATE TABLE parts (id BIGINT PRIMARY KEY, p INT) PARTITION BY HASH (id) PARTITIONS 3",
           "INSERT INTO parts VALUES (1, 1), (2, 2)", "UPDATE parts SET id = id + 1 WHERE id = 2", "DELETE FROM parts",
           "DROP TABLE j, multi, prefix, gipk, parts")
    record("tagged", "SET GTID_NEXT='AUTOMATIC:some_tag'", "INSERT INTO t (id) VALUES (1)", "UPDATE t SET v = 'x'",
           f"SET GTID_NEXT='{run('SELECT UUID()')[0][0]}:other:9223372036854775000'", "DELETE FROM t", "SET GTID_NEXT='AUTOMATIC'",
           "INSERT INTO t (id) VALUES (1)", "DELETE FROM t")
    run("SET GLOBAL binlog_checksum='NONE'; SET GLOBAL binlog_row_metadata='MINIMAL'")
    record("unchecked", "INSERT INTO t (id, u) VALUES (1, 2)", "UPDATE t SET u = 3", "DELETE FROM t")
    run("SET GLOBAL binlog_checksum='CRC32'")
else:
    # TRUNCATE and such between prepared transactions need no care; XA with branch names is the same.
    run("SET GLOBAL binlog_checksum='CRC32'; SET GLOBAL log_bin_compress=0; SET GLOBAL binlog_row_metadata='NO_LOG'")
    record("rows", *ROWS)
    record("statements", *STATEMENTS, "SET STATEMENT binlog_format='STATEMENT' FOR INSERT INTO t (id) VALUES (9)",
           "DELETE FROM t")
    run("SET GLOBAL log_bin_compress=1; SET GLOBAL log_bin_compress_min_len=10")
    record("compressed", *ROWS, *STATEMENTS)
    run("SET GLOBAL log_bin_compress=0; SET GLOBAL binlog_row_metadata='FULL'")
    record("more", INTEGERS, LIMITS, "DROP TABLE ints",
           "CREATE TABLE own (id INT PRIMARY KEY, u UUID, i6 INET6, cb BLOB COMPRESSED, cv VARCHAR(300) COMPRESSED, j JSON, last BIGINT)",
           "INSERT INTO own VALUES (1, '123e4567-e89b-12d3-a456-426655440000', '::1', REPEAT('a', 500), REPEAT('b', 200), '[1]', -7)",
           "UPDATE own SET last = 8", "DELETE FROM own",
           "CREATE TABLE keyed (a UUID, b BIGINT UNSIGNED, c VARCHAR(20), PRIMARY KEY (b, c(3)))", "INSERT INTO keyed VALUES (NULL, 5, 'xyz12')",
           "CREATE SEQUENCE seq", "SELECT NEXTVAL(seq)", "DROP SEQUENCE seq",
           "SET SESSION gtid_domain_id=3", "INSERT INTO t (id) VALUES (1)", "SET SESSION gtid_domain_id=0",
           "CREATE TABLE history (id INT PRIMARY KEY) WITH SYSTEM VERSIONING", "INSERT INTO history VALUES (1)", "DELETE FROM history",
           "DELETE FROM t", "DROP TABLE own, keyed, history")
    run("SET GLOBAL binlog_checksum='NONE'; SET GLOBAL binlog_row_metadata='NO_LOG'")
    record("unchecked", "INSERT INTO t (id, u) VALUES (1, 2)", "UPDATE t SET u = 3", "DELETE FROM t")
    run("SET GLOBAL binlog_checksum='CRC32'")

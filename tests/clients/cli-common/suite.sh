# What people and scripts do with the command lines. Sourced by cli-mariadb and cli-mysql, which set:
#   tool NAME ARGUMENT…   runs a program of the client package with the connection's options
#   OWN                   1 where client and server are of one family (dumps need that)
#   ORACLE                1 for Oracle's programs
# Every call of a program is a session of its own, so what must see each other goes in one call.

db=$MILLRACE_TEST_DB
family=$MILLRACE_TEST_FAMILY

# q [OPTION…] SQL: tab-separated rows without headings; statements from the argument
q() { tool client --batch --skip-column-names "${@:1:$#-1}" -e "${!#}"; }
# piped [OPTION…]: statements from standard input
piped() { tool client --batch --skip-column-names "$@"; }
# refused CODE COMMAND…: the command must fail with that error number
refused() {
    local code=$1 said
    shift
    if said=$("$@" 2>&1); then die "no error, wanted $code: $*"; fi
    matches "$said" "ERROR $code " "$*"
}

connect_and_identify() {
    local said
    said=$(q 'SELECT VERSION() LIKE "%MariaDB%", DATABASE(), SUBSTRING_INDEX(USER(), "@", 1)')
    equal "$said" "$([ "$family" = mariadb ] && echo 1 || echo 0)	NULL	$MILLRACE_TEST_USER"
    said=$(piped <<<'status')
    if [ "${MILLRACE_TEST_TLS:-0}" = 1 ]; then matches "$said" 'Cipher in use is'; else matches "$said" 'Not in use'; fi
    matches "$said" 'Threads: [0-9]+' 'COM_STATISTICS'
    matches "$(tool admin ping)" 'is alive'
    matches "$(tool admin status)" 'Uptime: [0-9]+'
    matches "$(tool admin processlist)" "$MILLRACE_TEST_USER"
    matches "$(tool admin variables)" 'max_allowed_packet'
    matches "$(tool admin version)" 'Server version'
}

wrong_logins() {
    # MYSQL_PWD would be overridden by nothing here: the wrong one goes the same way.
    refused 1045 env MYSQL_PWD=wrong "$0" --tool client -e 'SELECT 1'
    refused 1049 q --database=no_such_database_here 'SELECT 1'
    # For a user that does not exist MySQL feigns any of its plugins, also one the client lacks.
    if q --user=nobody_of_this_name 'SELECT 1' 2>/dev/null; then die 'a user that does not exist came in'; fi
}

schema() {
    local said
    said=$(piped <<SQL
DROP DATABASE IF EXISTS $db;
CREATE DATABASE $db CHARACTER SET utf8mb4;
USE $db
CREATE TABLE users (id INT AUTO_INCREMENT PRIMARY KEY, email VARCHAR(80) UNIQUE, name VARCHAR(50), balance DECIMAL(14,4) DEFAULT 0);
CREATE TABLE nums (n INT PRIMARY KEY);
INSERT INTO nums WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < 999) SELECT n FROM c;
CREATE VIEW few AS SELECT n FROM nums WHERE n < 3;
SHOW TABLES;
SELECT COUNT(*), SUM(n) FROM nums;
SELECT * FROM few;
SELECT DATABASE();
SQL
    )
    equal "$said" "few
nums
users
1000	499500
0
1
2
$db"
    # A login with the new database, right after.
    equal "$(q --database="$db" 'SELECT DATABASE()')" "$db"
}

one_session() {
    local said
    said=$(piped --database="$db" <<'SQL'
INSERT INTO users (email, name) VALUES ('ann@x', 'Ann');
SELECT name, LAST_INSERT_ID() = id FROM users WHERE id = LAST_INSERT_ID();
SET @a = 5, time_zone = '+05:30', SESSION group_concat_max_len = 7;
SELECT @a, @@time_zone, GROUP_CONCAT(n ORDER BY n SEPARATOR '') FROM nums;
SET sql_mode = 'ANSI_QUOTES';
SELECT "name" FROM "users" WHERE "email" = 'ann@x';
SET sql_mode = DEFAULT;
CREATE TEMPORARY TABLE tmp (x INT);
INSERT INTO tmp VALUES (1), (2), (3);
SELECT SUM(x) FROM tmp;
BEGIN;
UPDATE users SET balance = 100;
SELECT balance FROM users WHERE email = 'ann@x';
ROLLBACK;
SELECT balance FROM users WHERE email = 'ann@x';
START TRANSACTION READ ONLY;
SELECT COUNT(*) FROM users;
COMMIT;
PREPARE p FROM 'SELECT n + ? FROM nums WHERE n = ?';
SET @x = 1, @y = 41;
EXECUTE p USING @x, @y;
ALTER TABLE nums ADD COLUMN extra INT DEFAULT 0;
EXECUTE p USING @y, @x;
ALTER TABLE nums DROP COLUMN extra;
DEALLOCATE PREPARE p;
SELECT 'a;b', "c'd", 'it''s', '\\', 'é日本😀';
SELECT 1; SELECT 2; -- two on a line
/* a comment */ SELECT 3 /* inside */ + 1;
SELECT /*! 5 + */ 1;
DROP TABLE IF EXISTS not_there;
SHOW WARNINGS;
SELECT GET_LOCK('cli', 1), IS_FREE_LOCK('cli'), RELEASE_LOCK('cli');
SQL
    )
    equal "$said" "Ann	1
5	+05:30	0123456
Ann
6
100.0000
0.0000
1
42
42
a;b	c'd	it's	\\\\	é日本😀
1
2
4
6
Note	1051	Unknown table '$db.not_there'
1	0	1"
}

own_writes() {
    local i said wanted=
    {
        echo 'CREATE TABLE own (id INT PRIMARY KEY, v INT);'
        for i in $(seq 300); do
            echo "INSERT INTO own VALUES ($i, $i * 2); SELECT v FROM own WHERE id = $i; UPDATE own SET v = -v WHERE id = $i; SELECT v FROM own WHERE id = $i;"
        done
    } >"$work/own.sql"
    for i in $(seq 300); do wanted+="$((i * 2))"$'\n'"$((-i * 2))"$'\n'; done
    said=$(piped --database="$db" <"$work/own.sql")
    equal "$said" "${wanted%$'\n'}"
    # The same as one file read by `source`, and with --force over an error in the middle.
    said=$(printf 'DROP TABLE own;\nSELECT nope;\nsource %s\nSELECT COUNT(*) FROM own;\n' "$work/own.sql" | piped --force --database="$db" 2>"$work/err" || true)
    equal "$(tail -n 1 <<<"$said")" 300
    matches "$(cat "$work/err")" 'ERROR 1054'
}

many_at_once() {
    local i pids=()
    q --database="$db" 'CREATE TABLE crowd (id INT AUTO_INCREMENT PRIMARY KEY, who INT)'
    for i in $(seq 20); do
        {
            for _ in $(seq 20); do
                echo "SET @w = $i; INSERT INTO crowd (who) VALUES (@w); SELECT who = $i AND @w = $i FROM crowd WHERE id = LAST_INSERT_ID();"
            done
            echo "SELECT COUNT(*) FROM crowd WHERE who = $i;"
        } | piped --database="$db" >"$work/crowd.$i" 2>&1 &
        pids+=($!)
    done
    for i in "${pids[@]}"; do wait "$i" || die "one of twenty clients failed"; done
    for i in $(seq 20); do
        equal "$(sort "$work/crowd.$i" | uniq -c | awk '{print $1 "x" $2}' | tr '\n' ' ')" '20x1 1x20 ' "client $i"
    done
    equal "$(q --database="$db" 'SELECT COUNT(*) FROM crowd FOR UPDATE')" 400
}

procedures() {
    local said
    said=$(piped --database="$db" <<'SQL'
DELIMITER //
CREATE PROCEDURE p(IN a INT, OUT o INT, INOUT io INT)
BEGIN
  SET o = a * 2;
  SET io = io + 1;
  SELECT 'first', a;
  SELECT n FROM few;
END//
CREATE FUNCTION twice(x INT) RETURNS INT DETERMINISTIC NO SQL
BEGIN
  RETURN x * 2;
END//
DELIMITER ;
SET @io = 41;
CALL p(7, @o, @io);
SELECT @o, @io, twice(21);
SQL
    )
    equal "$said" "first	7
0
1
2
14	42	42"
}

load_data() {
    local said i
    [ "$(q 'SELECT @@local_infile')" = 1 ] || skip 'the server has local_infile off'
    for i in $(seq 5000); do printf '%d\tnäme %d\t%s\n' "$i" "$i" xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done >"$work/loaded.txt"
    # By name: MariaDB does not know the collation that Oracle's client asks for at login.
    said=$(piped --local-infile=1 --database="$db" <<SQL
SET NAMES utf8mb4;
CREATE TABLE loaded (id INT PRIMARY KEY, name VARCHAR(50), pad VARCHAR(100));
LOAD DATA LOCAL INFILE '$work/loaded.txt' INTO TABLE loaded CHARACTER SET utf8mb4;
SELECT COUNT(*), SUM(id), MAX(name) FROM loaded;
SQL
    )
    equal "$said" '5000	12502500	näme 999'
    refused 2 q --local-infile=1 --database="$db" "LOAD DATA LOCAL INFILE '$work/missing' INTO TABLE loaded"
    [ "$ORACLE" = 1 ] || matches "$(tool import --local --delete "$db" "$work/loaded.txt")" 'Records: 5000'
}

big_values() {
    local limit
    limit=$(q 'SELECT @@max_allowed_packet')
    [ "$limit" -ge 25000000 ] || skip "max_allowed_packet is only $limit"
    { printf "CREATE TABLE big (id INT PRIMARY KEY, b LONGTEXT); INSERT INTO big VALUES (1, '"; head -c 20971520 /dev/zero | tr '\0' q; printf "'); SELECT LENGTH(b), b = REPEAT('q', 20971520) FROM big; SELECT b FROM big;\n"; } >"$work/big.sql"
    piped --max-allowed-packet=64M --database="$db" <"$work/big.sql" >"$work/big.out"
    equal "$(head -n 1 "$work/big.out")" '20971520	1'
    equal "$(wc -c <"$work/big.out")" $((20971520 + 1 + 11))
}

exact_packets() {
    # A row of exactly 2^24 - 1 bytes is followed by an empty packet: 4 bytes of it are a length.
    local n
    for n in 16777210 16777211 16777212 16777216; do
        equal "$(q --quick --max-allowed-packet=64M "SELECT REPEAT('z', $n)" | wc -c)" $((n + 1))
    done
}

streaming() {
    equal "$(q --quick --database="$db" 'SELECT a.n, REPEAT("y", 80) FROM nums a, nums b WHERE a.n < 200' | wc -l)" 200000
    # A reader that goes away early must not hurt anyone else.
    q --quick --database="$db" 'SELECT a.n, REPEAT("y", 80) FROM nums a, nums b' 2>/dev/null | head -n 5 >/dev/null || true
    equal "$(q 'SELECT 1')" 1
}

errors() {
    refused 1064 q 'SELEC 1'
    refused 1146 q --database="$db" 'SELECT * FROM missing'
    refused 1062 q --database="$db" 'INSERT INTO nums VALUES (1)'
    refused 1046 q 'SELECT * FROM nums'
    refused 1049 q 'USE no_such_database_here'
    matches "$(q --database="$db" 'SELECT * FROM missing' 2>&1 || true)" "Table '$db.missing' doesn't exist"
}

interrupt() {
    # Ctrl-C makes the client kill its query over a second connection.
    local begun=$EPOCHREALTIME pid
    q --database="$db" 'SELECT COUNT(*) FROM nums a, nums b, nums c WHERE a.n + b.n + c.n > 5' >"$work/int" 2>&1 &
    pid=$!
    sleep 1
    pkill -INT -P $pid 2>/dev/null || kill -INT $pid
    wait $pid && die 'the interrupted query succeeded'
    [ $(((${EPOCHREALTIME/./} - ${begun/./}) / 1000000)) -lt 15 ] || die 'the interrupted query went on'
    # Nothing of it is left on the server, a little later at most.
    local left
    for _ in $(seq 30); do
        # MySQL refuses this (3854) as long as anybody's statement, another suite's here, has bytes
        # in it that are no text.
        left=$(q "SELECT COUNT(*) FROM information_schema.processlist WHERE db = '$db' AND command = 'Query'" 2>&1) || true
        [ "$left" = 0 ] && break
        sleep 0.1
    done
    equal "$left" 0 'statements still running'
    matches "$(cat "$work/int")" 'interrupted|aborted|1317'
}

kill_statement() {
    local id pid
    mkfifo "$work/in"
    piped --unbuffered --database="$db" <"$work/in" >"$work/killed" 2>&1 &
    pid=$!
    exec 5>"$work/in"
    echo 'SELECT CONNECTION_ID();' >&5
    for _ in $(seq 50); do id=$(head -n 1 "$work/killed"); [ -n "$id" ] && break; sleep 0.1; done
    matches "$id" '^[0-9]+$'
    echo 'SELECT COUNT(*) FROM nums a, nums b, nums c WHERE a.n + b.n + c.n > 5;' >&5
    exec 5>&-
    # Again and again: a KILL QUERY that comes before the query has begun does nothing.
    for _ in $(seq 40); do
        sleep 0.3
        q "KILL QUERY $id" 2>/dev/null || break
    done
    wait $pid && die 'the killed query succeeded'
    matches "$(cat "$work/killed")" 'ERROR 1317'
    refused 1094 q 'KILL 4294967290'
}

dump_and_restore() {
    [ "$OWN" = 1 ] || skip 'the dump program is of the other family'
    local options=(--single-transaction --routines --skip-comments --hex-blob)
    [ "$ORACLE" = 1 ] && options+=(--set-gtid-purged=OFF --no-tablespaces --ignore-table="$db.big")
    [ "$ORACLE" = 1 ] || options+=(--ignore-table="$db.big")
    tool dump "${options[@]}" "$db" >"$work/one.sql"
    matches "$(cat "$work/one.sql")" 'CREATE TABLE `users`'
    {
        # The program writes comments and settings first; one session runs it all.
        echo "DROP DATABASE IF EXISTS ${db}_copy; CREATE DATABASE ${db}_copy CHARACTER SET utf8mb4; USE ${db}_copy;"
        cat "$work/one.sql"
        echo "SELECT COUNT(*) FROM nums; SELECT twice(4);"
    } | piped >"$work/restored"
    equal "$(tr '\n' ' ' <"$work/restored")" '1000 8 '
    # Another session than the one that restored: its reads may come from a replica behind it.
    for _ in $(seq 40); do
        tool dump "${options[@]}" "${db}_copy" 2>/dev/null | sed "s/${db}_copy/$db/g" >"$work/two.sql"
        cmp -s "$work/one.sql" "$work/two.sql" && break
        sleep 0.25
    done
    cmp "$work/one.sql" "$work/two.sql" || { diff "$work/one.sql" "$work/two.sql" | cut -c1-200 | head -n 6; die 'the copy dumps differently'; }
    q "DROP DATABASE ${db}_copy"
    [ "$ORACLE" = 1 ] || matches "$(tool check "$db" nums)" "$db.nums +OK"
}

binary_log() {
    [ "$OWN" = 1 ] || skip 'the log program is of the other family'
    local file position
    read -r file position _ < <(q "$([ "$family" = mysql ] && echo 'SHOW BINARY LOG STATUS' || echo 'SHOW MASTER STATUS')") || true
    [ -n "$file" ] || skip 'the server writes no binary log'
    q --database="$db" 'CREATE TABLE in_the_log (x INT)'
    tool binlog --read-from-remote-server --start-position="$position" "$file" >"$work/binlog"
    matches "$(grep -a -m 1 -o "CREATE TABLE in_the_log" "$work/binlog" || true)" 'CREATE TABLE' 'the log read through replication commands'
}

compression() {
    local options=(--compress) o
    [ "$ORACLE" = 1 ] && options=(--compression-algorithms=zlib)
    # MariaDB has no zstd.
    [ "$ORACLE" = 1 ] && [ "$family" = mysql ] && options+=(--compression-algorithms=zstd)
    for o in "${options[@]}"; do
        equal "$(q "$o" --database="$db" 'SELECT SUM(n) FROM nums')" 499500 "$o"
        equal "$(q "$o" --max-allowed-packet=64M "SELECT REPEAT('compress', 2200000)" | wc -c)" 17600001 "$o"
        equal "$(q "$o" --database="$db" 'SELECT n FROM nums ORDER BY n' | md5sum)" "$(seq 0 999 | md5sum)" "$o"
    done
}

completion() {
    # A client at a terminal reads all tables' columns for its completion.
    command -v script >/dev/null || skip 'no script(1) to make a terminal'
    printf 'SELECT 40 + 2;\nuse %s\nrehash\nSELECT DATABASE();\nexit\n' "$db" >"$work/typed"
    matches "$(script -qec "'$0' --tool client --auto-rehash --database=$db" /dev/null <"$work/typed" | tr -d '\r')" '42.*'"$db"
}

query_attributes() {
    [ "$ORACLE" = 1 ] && [ "$family" = mysql ] || skip 'only between Oracle'\''s client and server'
    local said
    said=$(piped --database="$db" <<'SQL'
query_attributes trace abc123 number 42
SELECT n FROM nums WHERE n = 3;
SELECT 'without';
query_attributes a b
INSERT INTO users (email) VALUES ('attributes@x');
SELECT email FROM users WHERE id = LAST_INSERT_ID();
SQL
    )
    equal "$said" '3
without
attributes@x'
    # Where the server has the component, the values arrive.
    if q 'SELECT mysql_query_attribute_string("x")' >/dev/null 2>&1; then
        equal "$(piped <<<'query_attributes trace abc123
SELECT mysql_query_attribute_string("trace");')" abc123
    fi
}

reset_connection() {
    local said
    [ "$ORACLE" = 1 ] || skip 'this client has no reset command'
    said=$(piped --database="$db" <<'SQL'
SET @kept = 1, time_zone = '+04:00';
CREATE TEMPORARY TABLE gone (x INT);
BEGIN;
INSERT INTO users (email) VALUES ('reset@x');
resetconnection
SELECT @kept, @@time_zone = '+04:00', DATABASE();
SELECT COUNT(*) FROM users WHERE email = 'reset@x';
SQL
    )
    equal "$said" "NULL	0	$db
0"
}

clean_up() {
    q "DROP DATABASE $db"
}

if [ "${1:-}" = --tool ]; then
    tool "${@:2}"
    exit
fi

group 'connect and identify' connect_and_identify
group 'wrong logins' wrong_logins
group 'schema' schema
group 'one session' one_session
group 'own writes at once' own_writes
group 'twenty clients at once' many_at_once
group 'procedures' procedures
group 'load data local' load_data
group 'big values' big_values
group 'rows of exactly a packet' exact_packets
group 'streaming' streaming
group 'errors' errors
group 'interrupt' interrupt
group 'kill' kill_statement
group 'dump and restore' dump_and_restore
group 'binary log' binary_log
group 'compression' compression
group 'completion' completion
group 'query attributes' query_attributes
group 'reset connection' reset_connection
group 'clean up' clean_up
summary

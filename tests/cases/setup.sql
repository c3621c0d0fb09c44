-- Shared by all cases, on both primaries, one statement a line. "--family: " lines are for one family.
--mysql: CREATE USER IF NOT EXISTS 't_app'@'%' IDENTIFIED BY 'app-secret'
--mysql: CREATE USER IF NOT EXISTS 't_other'@'%' IDENTIFIED BY 'other-secret'
--mysql: CREATE USER IF NOT EXISTS 't_limited'@'%' IDENTIFIED BY 'limited-secret'
--mysql: CREATE USER IF NOT EXISTS 't_empty'@'%' IDENTIFIED BY ''
--mysql: CREATE USER IF NOT EXISTS 't_locked'@'%' IDENTIFIED BY 'locked-secret' ACCOUNT LOCK
--mysql: CREATE USER IF NOT EXISTS 't_sha256'@'%' IDENTIFIED WITH sha256_password BY 'sha256-secret'
--mysql: CREATE USER IF NOT EXISTS 't_expired'@'%' IDENTIFIED BY 'expired-secret' PASSWORD EXPIRE
--mysql: GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, RELOAD, PROCESS, REFERENCES, INDEX, ALTER, SHOW DATABASES, CREATE TEMPORARY TABLES, LOCK TABLES, EXECUTE, CREATE VIEW, SHOW VIEW, CREATE ROUTINE, ALTER ROUTINE, EVENT, TRIGGER, REPLICATION CLIENT, FILE ON *.* TO 't_app'@'%'
--mysql: GRANT XA_RECOVER_ADMIN, BACKUP_ADMIN ON *.* TO 't_app'@'%'
--mysql: SET GLOBAL log_bin_trust_function_creators=1
--mysql: SET GLOBAL local_infile=1
--mysql: SET GLOBAL max_allowed_packet=1073741824
--mariadb: CREATE USER IF NOT EXISTS 't_app'@'%' IDENTIFIED VIA mysql_native_password USING PASSWORD('app-secret')
--mariadb: CREATE USER IF NOT EXISTS 't_other'@'%' IDENTIFIED VIA mysql_native_password USING PASSWORD('other-secret')
--mariadb: CREATE USER IF NOT EXISTS 't_limited'@'%' IDENTIFIED VIA mysql_native_password USING PASSWORD('limited-secret')
--mariadb: CREATE USER IF NOT EXISTS 't_empty'@'%' IDENTIFIED VIA mysql_native_password USING PASSWORD('')
--mariadb: CREATE USER IF NOT EXISTS 't_locked'@'%' IDENTIFIED VIA mysql_native_password USING PASSWORD('locked-secret') ACCOUNT LOCK
--mariadb: CREATE USER IF NOT EXISTS 't_ed25519'@'%' IDENTIFIED VIA ed25519 USING PASSWORD('ed25519-secret')
--mariadb: GRANT SELECT ON base.* TO 't_ed25519'@'%'
--mariadb: CREATE USER IF NOT EXISTS 't_expired'@'%' IDENTIFIED VIA mysql_native_password USING PASSWORD('expired-secret') PASSWORD EXPIRE
--mariadb: GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, RELOAD, PROCESS, REFERENCES, INDEX, ALTER, SHOW DATABASES, CREATE TEMPORARY TABLES, LOCK TABLES, EXECUTE, CREATE VIEW, SHOW VIEW, CREATE ROUTINE, ALTER ROUTINE, EVENT, TRIGGER, BINLOG MONITOR, DELETE HISTORY, FILE ON *.* TO 't_app'@'%'
--mariadb: SET GLOBAL log_bin_trust_function_creators=1
--mariadb: SET GLOBAL local_infile=1
--mariadb: SET GLOBAL max_allowed_packet=1073741824
CREATE ROLE IF NOT EXISTS case_role
GRANT case_role TO 't_app'@'%'
GRANT ALL ON d_noise.* TO 't_other'@'%'
GRANT ALL ON test.* TO 't_other'@'%'
GRANT ALL ON base.* TO 't_other'@'%'
GRANT SELECT ON base.* TO 't_empty'@'%'
DROP DATABASE IF EXISTS d_noise
CREATE DATABASE d_noise CHARACTER SET utf8mb4
CREATE TABLE d_noise.n (id INT AUTO_INCREMENT PRIMARY KEY, v INT)
INSERT INTO d_noise.n (v) VALUES (1), (2), (3)
DROP DATABASE IF EXISTS base
CREATE DATABASE base CHARACTER SET utf8mb4
CREATE TABLE base.small (id INT PRIMARY KEY, name VARCHAR(20), v INT, KEY (v))
INSERT INTO base.small VALUES (1,'one',10),(2,'two',20),(3,'three',30),(4,'four',40),(5,NULL,NULL)
CREATE TABLE base.digits (d INT PRIMARY KEY)
INSERT INTO base.digits VALUES (0),(1),(2),(3),(4),(5),(6),(7),(8),(9)
CREATE TABLE base.types (id INT PRIMARY KEY, t TINYINT, tu TINYINT UNSIGNED, s SMALLINT, m MEDIUMINT, i INT, iu INT UNSIGNED ZEROFILL, b BIGINT, bu BIGINT UNSIGNED, f FLOAT, d DOUBLE, dc DECIMAL(20,6), bt BIT(10), y YEAR, da DATE, dt DATETIME, dt6 DATETIME(6), ts TIMESTAMP NULL, ti TIME, ti3 TIME(3), c CHAR(5), vc VARCHAR(30), bn BINARY(4), vb VARBINARY(10), tx TEXT, bl BLOB, e ENUM('x','y','z'), st SET('a','b','c'), j JSON, g GEOMETRY)
INSERT INTO base.types VALUES (1,-128,255,-32768,-8388608,-2147483648,42,-9223372036854775808,18446744073709551615,1.5,-2.25e100,12345678901234.567891,b'1010101010',2024,'2024-02-29','2024-02-29 23:59:59','2024-02-29 23:59:59.123456','2024-02-29 12:00:00','-838:59:59','12:34:56.789','ab','varchar é','\0\1\2\3','\xff\xfe','text',x'00ff0a0d','y','a,c','{"k": [1, 2, {"n": null}]}',ST_GeomFromText('POINT(1 2)'))
INSERT INTO base.types (id) VALUES (2)
INSERT INTO base.types VALUES (3,0,0,0,0,0,0,0,0,0,0,0,b'0',1901,'1000-01-01','1000-01-01 00:00:00','1000-01-01 00:00:00.000001','1970-01-02 00:00:01','00:00:00','00:00:00.001','','','','','','','x','','[]',ST_GeomFromText('LINESTRING(0 0,1 1)'))
GRANT SELECT ON base.small TO 't_limited'@'%'

#!/usr/bin/env python3
"""Captures the byte-exact responses that the tests in ../vectors.rs replay.

    capture.py NAME PORT > NAME.txt

NAME is only a label. The server at 127.0.0.1:PORT lets root in without a password and
allows local_infile. Every line of the output is one command:

    scenario <tab> expect <tab> capabilities <tab> request <tab> response

with capabilities, request and response in hexadecimal. Needs nothing but Python.
"""

import socket
import struct
import sys

LONG_PASSWORD, CONNECT_DB, LOCAL, P41, TRANS, SECURE = 1, 8, 1 << 7, 1 << 9, 1 << 13, 1 << 15
MULTI, MULTI_RES, PS_MULTI, PLUGIN = 1 << 16, 1 << 17, 1 << 18, 1 << 19
TRACK, NO_EOF, OPT_META, ATTRS = 1 << 23, 1 << 24, 1 << 25, 1 << 27
PROGRESS, BULK, EXT_META, CACHE_META, UNIT = 1 << 32, 1 << 34, 1 << 35, 1 << 36, 1 << 37
BASE = LOCAL | P41 | TRANS | SECURE | MULTI | MULTI_RES | PS_MULTI | PLUGIN

SILENCE_SECONDS = 0.12


class Connection:
    def __init__(self, port, caps):
        self.sock = socket.create_connection(("127.0.0.1", port))
        greeting = self.packet()
        nul = greeting.index(0, 1)
        self.mariadb = b"MariaDB" in greeting[1:nul]
        at = nul + 1 + 4 + 8 + 1
        low, _, _, high = struct.unpack("<HBHH", greeting[at : at + 7])
        server = low | high << 16
        if not server & LONG_PASSWORD:
            server |= struct.unpack("<I", greeting[at + 14 : at + 18])[0] << 32
        else:
            caps &= 0xFFFFFFFF
            caps |= LONG_PASSWORD
        self.greeting = greeting
        self.caps = caps & (server | ATTRS * 0)
        body = struct.pack("<IIB19xI", self.caps & 0xFFFFFFFF, 1 << 24, 45, self.caps >> 32)
        body += b"root\0\0" + (b"mysql_native_password" if self.mariadb else b"caching_sha2_password") + b"\0"
        self.sock.sendall(struct.pack("<I", len(body) | 1 << 24) + body)
        self.login = self.packet()
        if self.login[0] != 0:
            raise SystemExit(f"login failed: {self.login!r}")

    def exact(self, n):
        data = b""
        while len(data) < n:
            more = self.sock.recv(n - len(data))
            if not more:
                raise SystemExit("the server hung up")
            data += more
        return data

    def packet(self):
        (word,) = struct.unpack("<I", self.exact(4))
        return self.exact(word & 0xFFFFFF)

    def drain(self):
        """Everything until the server is silent."""
        data = b""
        self.sock.settimeout(2)
        try:
            while True:
                more = self.sock.recv(1 << 20)
                if not more:
                    break
                data += more
                self.sock.settimeout(SILENCE_SECONDS)
        except socket.timeout:
            pass
        self.sock.settimeout(None)
        return data

    def send(self, payload):
        out, seq = b"", 0
        while True:
            now, payload = payload[:0xFFFFFF], payload[0xFFFFFF:]
            out += struct.pack("<I", len(now) | seq << 24) + now
            seq += 1
            if len(now) < 0xFFFFFF:
                break
        self.sock.sendall(out)

    def run(self, scenario, expect, payload, quiet=False):
        self.send(payload)
        data = self.drain()
        if not quiet:
            print(scenario, expect, f"{self.caps:x}", payload.hex(), data.hex(), sep="\t")
        return data

    def query(self, scenario, sql, quiet=False):
        prefix = b"\0\1" if self.caps & ATTRS else b""
        return self.run(scenario, "query", b"\x03" + prefix + sql.encode(), quiet)

    def setup(self, *statements):
        for sql in statements:
            data = self.query("setup", sql, quiet=True)
            if data[4] == 0xFF:
                raise SystemExit(f"{sql}: {data[7:]!r}")

    def prepare(self, scenario, sql, quiet=False):
        data = self.run(scenario, "prepare", b"\x16" + sql.encode(), quiet)
        return struct.unpack("<I", data[5:9])[0]

    def execute(self, scenario, statement, flags=0, tail=b"", quiet=False):
        payload = b"\x17" + struct.pack("<IBI", statement, flags, 1) + tail
        return self.run(scenario, "execute", payload, quiet)


def prepare_database(port):
    c = Connection(port, BASE | NO_EOF)
    c.setup(
        "drop database if exists vectors",
        "create database vectors character set utf8mb4",
        "create table vectors.t (id int primary key auto_increment, name varchar(40), price decimal(9,2), at datetime)",
        "insert into vectors.t values (1,'one',1.5,'2024-01-02 03:04:05'),(2,null,null,null),(3,'',0,'2024-12-31')",
        "create procedure vectors.p(in a int, out b int) begin select a as a; select name from vectors.t; set b = a + 1; end",
        "create procedure vectors.bad() begin select 1; select no_such_column from vectors.t; end",
        "create table vectors.empty (a int, b text)",
    )


def text(c):
    c.query("select one", "select 1")
    c.query("select rows", "select * from vectors.t order by id")
    c.query("select none", "select * from vectors.empty")
    c.query("select wide value", "select repeat('x', 300), repeat('y', 1000)")
    c.query("unknown column", "select nothing")
    c.query("error after rows", "select (select id from vectors.t where id > a.n - 1) from (select 3 as n union all select 1) a")
    c.query("do", "do 1")
    c.query("insert", "insert into vectors.t (name) values ('four'),('five')")
    c.query("update", "update vectors.t set price = 9 where id > 3")
    c.query("delete", "delete from vectors.t where id > 3")
    c.query("begin", "begin")
    c.query("write in transaction", "insert into vectors.t (name) values ('six')")
    c.query("rollback", "rollback")
    c.query("multi", "select 1; do 2; select 3, 4; set @a = 1")
    c.query("multi with error", "select 1; select nothing; select 2")
    c.query("call", "call vectors.p(7, @b)")
    c.query("call fails", "call vectors.bad()")
    c.query("set names", "set names latin1")
    c.query("use", "use vectors")
    c.query("set several", "set @@session.sql_mode = 'ANSI', @@session.time_zone = '+01:00'")
    c.query("set back", "set @@session.sql_mode = default, @@session.time_zone = default, names utf8mb4")
    c.query("explain", "explain select * from vectors.t")
    c.query("show warnings", "show warnings")
    c.query("warning", "select cast('x' as signed)")
    c.query("empty query", "")
    c.run("ping", "simple", b"\x0e")
    c.run("init db", "simple", b"\x02vectors")
    c.run("init db fails", "simple", b"\x02nowhere")
    c.run("statistics", "statistics", b"\x09")
    c.run("field list", "field_list", b"\x04t\0")
    c.run("field list fails", "field_list", b"\x04nothing\0")
    c.run("set option", "set_option", b"\x1b\0\0")
    c.run("set option back", "set_option", b"\x1b\1\0")
    c.run("set option fails", "set_option", b"\x1b\x09\0")
    c.run("process info", "query", b"\x0a")
    c.run("process kill fails", "simple", b"\x0c\xff\xff\xff\x7f")
    c.run("debug", "simple", b"\x0d")
    c.run("refresh", "simple", b"\x07\x01")
    c.run("unknown command", "simple", b"\x77")
    c.run("reset connection", "simple", b"\x1f")


def infile(c):
    c.setup("create table if not exists vectors.loaded (a int, b text)")
    c.send(b"\x03" + (b"\0\1" if c.caps & ATTRS else b"") + b"load data local infile 'x' into table vectors.loaded fields terminated by ','; select 5")
    asked = c.drain()
    c.sock.sendall(struct.pack("<I", 4 | 2 << 24) + b"1,a\n" + struct.pack("<I", 3 << 24))
    rest = c.drain()
    print("load data local", "query", f"{c.caps:x}", "", (asked + rest).hex(), sep="\t")


def prepared(c):
    s = c.prepare("prepare", "select * from vectors.t where id <= ? order by id")
    bound = b"\0\1\x08\0"
    named = lambda n: b"\0\1\x08\0" + (b"\0" if c.caps & ATTRS else b"")
    count = b"\1" if c.caps & ATTRS else b""
    value = struct.pack("<q", 2)
    c.execute("execute", s, 0, count + named(1) + value)
    c.execute("execute without types", s, 0, count + b"\0\0" + value)
    c.execute("open cursor", s, 1, count + b"\0\0" + struct.pack("<q", 3))
    c.run("fetch two", "fetch", b"\x1c" + struct.pack("<II", s, 2))
    c.run("fetch rest", "fetch", b"\x1c" + struct.pack("<II", s, 9))
    c.run("fetch without cursor", "fetch", b"\x1c" + struct.pack("<II", s, 9))
    c.execute("open cursor on nothing", s, 1, count + b"\0\0" + struct.pack("<q", 0))
    c.run("fetch nothing", "fetch", b"\x1c" + struct.pack("<II", s, 1))
    c.run("statement reset", "simple", b"\x1a" + struct.pack("<I", s))
    c.run("statement reset fails", "simple", b"\x1a\x99\x99\0\0")
    c.execute("execute fails", 0x9999)
    i = c.prepare("prepare insert", "insert into vectors.empty values (?, ?)")
    d = c.prepare("prepare do", "do 1")
    c.execute("execute do", d)
    c.execute("cursor on do", d, 1)
    c.prepare_failed = c.run("prepare fails", "prepare", b"\x16select nothing")
    p = c.prepare("prepare call", "call vectors.p(?, ?)")
    types = b"\x08\0\x08\0" if not c.caps & ATTRS else b"\x08\0\0\x08\0\0"
    two = b"\2" if c.caps & ATTRS else b""
    c.execute("execute call", p, 0, two + b"\0\1" + types + struct.pack("<qq", 7, 0))
    c.execute("execute call with cursor", p, 1, two + b"\0\1" + types + struct.pack("<qq", 7, 0))
    z = c.prepare("prepare constant", "select 1 as `int`, 'x' as text, null as nothing")
    c.execute("execute constant", z)
    c.execute("execute constant again", z)
    if c.mariadb and c.caps & BULK:
        b = c.prepare("prepare bulk", "insert into vectors.empty values (?, ?)")
        rows = b"".join(b"\0" + struct.pack("<q", n) + b"\0\1x" for n in range(3))
        c.run("bulk execute", "execute", b"\xfa" + struct.pack("<IH", b, 128) + b"\x08\0\xfd\0" + rows)
        r = c.prepare("prepare bulk returning", "insert into vectors.empty values (?, ?) returning a")
        c.run("bulk returning", "execute", b"\xfa" + struct.pack("<IH", r, 128) + b"\x08\0\xfd\0" + rows)
    c.query("clean", "truncate table vectors.empty", quiet=True)


def tracking(c):
    if c.mariadb:
        c.setup("set session_track_system_variables='*', session_track_schema=1, session_track_state_change=1, session_track_transaction_info='CHARACTERISTICS'")
    else:
        c.setup("set session_track_system_variables='*', session_track_state_change=1, session_track_transaction_info='CHARACTERISTICS', session_track_gtids='OWN_GTID'")
    c.query("track use", "use vectors")
    c.query("track set", "set time_zone = '+02:00', sql_mode = ''")
    c.query("track names", "set names latin1")
    c.query("track user variable", "set @x = 1")
    c.query("track begin", "start transaction read only")
    c.query("track commit", "commit")
    c.query("track begin write", "begin")
    c.query("track write", "insert into vectors.t (name) values ('seven')")
    c.query("track read", "select id from vectors.t limit 1")
    c.query("track commit write", "commit")
    c.query("track autocommit write", "delete from vectors.t where id > 3")
    c.query("track temporary table", "create temporary table vectors.tmp (a int)")
    c.query("track isolation", "set transaction isolation level serializable")
    c.query("track begin isolated", "start transaction")
    c.query("track rollback", "rollback")


def main(label, port):
    prepare_database(port)
    modes = [("", 0), ("no eof ", NO_EOF)]
    for name, flags in modes:
        c = Connection(port, BASE | flags)
        text(c)
        infile(Connection(port, BASE | flags))
        prepared(Connection(port, BASE | flags))
        tracking(Connection(port, BASE | flags | TRACK))
        text(Connection(port, BASE | flags | TRACK | ATTRS))
        prepared(Connection(port, BASE | flags | TRACK | ATTRS))
        if c.mariadb:
            prepared(Connection(port, BASE | flags | PROGRESS | BULK | EXT_META | CACHE_META))
        else:
            for full in (0, 1):
                o = Connection(port, BASE | flags | OPT_META)
                o.setup(f"set resultset_metadata = '{['NONE', 'FULL'][full]}'")
                o.query("optional metadata", "select * from vectors.t order by id")
                o.query("optional metadata call", "call vectors.p(7, @b)")
                o.query("optional metadata ok", "do 1")
                prepared(o)
    print("greeting", "greeting", f"{c.caps:x}", "", c.greeting.hex(), sep="\t")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

"""The servers to measure with: a private cluster from `millrace-lab sandbox`, with tables.

Role names and accounts are the sandbox's; nothing else here knows them.
"""

import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass

from harness import cgroups

START_WITHIN_SECONDS = 120
CATCH_UP_WITHIN_SECONDS = 120
PRIMARY_FIRST = {"primary": 0, "replica": 1}

#: sysbench's tables, and rows in each. So many can be dealt evenly to one to four servers.
TABLES = 12
ROWS = 10_000
#: Rows of clients that check what they read.
REGISTERS = 32


@dataclass(frozen=True)
class Spec:
    """What servers an experiment needs."""

    replicas: int = 2
    max_connections: int = 6000
    #: Whether the servers have certificates of the cluster's own authority.
    tls: bool = False
    #: As the sandbox names it: async or galera.
    topology: str = "async"
    #: Whether replicas follow by GTIDs; else by file and offset.
    gtids: bool = True
    #: The one family that it can be had of; None for either.
    family: str | None = None


@dataclass(frozen=True)
class Server:
    """One of a cluster's servers; its group counts and caps its CPU."""

    address: str
    port: int
    group: cgroups.Group


class Cluster:
    """A running cluster, as `sandbox up --json` describes it."""

    def __init__(self, info, groups, client):
        found = sorted(info["servers"], key=lambda server: PRIMARY_FIRST[server["role"].lower()])
        accounts = {account["user"]: account["password"] for account in info["accounts"]}
        self.family = info["family"]
        self.version = info["version"]
        #: The primary first.
        self.servers = []
        for number, server in enumerate(found):
            group = groups.group(f"server-{number}")
            group.add(server["pid"])
            self.servers.append(Server(f"{server['host']}:{server['port']}", server["port"], group))
        self.user = "app"
        self.password = accounts[self.user]
        self.database = "app"
        self.monitor_user = "millrace_monitor"
        self.monitor_password = accounts[self.monitor_user]
        #: The authority's certificate, where the cluster has one of its own.
        self.ca = info["tls_ca"]
        certificates = os.path.dirname(self.ca) if self.ca else found[0]["datadir"]
        self.certificate = f"{certificates}/server-cert.pem"
        self.key = f"{certificates}/server-key.pem"
        self._client = client
        self._marks = itertools.count(1)

    # --- bench-client -------------------------------------------------------------

    def client(self, *words, rows=ROWS):
        """A command of bench-client, logged in as the load's account. It reads so many of the rows."""
        # Its password is on no command line.
        os.environ["MILLRACE_BENCH_PASSWORD"] = self.password
        account = ["--user", self.user, "--database", self.database, "--rows", str(rows)]
        return [self._client, *account, *map(str, words)]

    def sql(self, server, *statements):
        """Runs statements on one server; the last one's first value, as text."""
        command = self.client("sql", "--server", server.address, *statements)
        return json.loads(run(command, timeout=60))

    # --- sysbench -----------------------------------------------------------------

    def sysbench(self, script, addresses, *options):
        # Its client library loads a plugin when a login first wants it, and fails where two threads
        # want it at once: "it is already loaded". Asked for here, it is loaded once, with the library.
        os.environ["LIBMYSQL_PLUGINS"] = "caching_sha2_password"
        # sysbench walks through all ports of a host; every server here has the same one.
        hosts, _, ports = zip(*(address.rpartition(":") for address in addresses), strict=True)
        return [
            "sysbench",
            script,
            f"--mysql-host={hosts[0]}",
            "--mysql-port=" + ",".join(ports),
            f"--mysql-user={self.user}",
            f"--mysql-password={self.password}",
            f"--mysql-db={self.database}",
            f"--tables={TABLES}",
            f"--table-size={ROWS}",
            # Every row as likely as any other: no lock is hotter than the experiment makes it.
            "--rand-type=uniform",
            *options,
        ]

    def prepare(self):
        """Makes sysbench's tables and waits until every server has them."""
        primary = self.servers[0]
        run(self.sysbench("oltp_read_write", [primary.address], "--threads=2", "prepare"), timeout=300)
        self.sql(primary, "CREATE TABLE bench_mark (mark INT)", "INSERT INTO bench_mark VALUES (0)")
        registers = ", ".join(f"({number}, 0)" for number in range(1, REGISTERS + 1))
        self.sql(
            primary,
            "CREATE TABLE bench_register (id INT PRIMARY KEY, n BIGINT NOT NULL)",
            f"INSERT INTO bench_register VALUES {registers}",
        )
        self.settle()

    def settle(self):
        """Waits until the replicas have all that was written: it is no part of the next load."""
        mark = next(self._marks)
        self.sql(self.servers[0], f"UPDATE bench_mark SET mark = {mark}")
        deadline = time.monotonic() + CATCH_UP_WITHIN_SECONDS
        for server in self.servers[1:]:
            while self._mark_of(server) != str(mark):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{server.address} does not catch up")
                time.sleep(0.1)

    def _mark_of(self, server):
        try:
            return self.sql(server, "SELECT mark FROM bench_mark")
        except RuntimeError:
            return None  # the table is not there yet

    def bytes_of_rows(self, rows):
        """What a result of so many whole rows comes to on the wire, in the text protocol."""
        each = "4 + 4 + LENGTH(id) + LENGTH(k) + LENGTH(c) + LENGTH(pad)"
        table = f"(SELECT id, k, c, pad FROM sbtest1 ORDER BY id LIMIT {rows}) AS t"
        return int(self.sql(self.servers[0], f"SELECT CAST(SUM({each}) AS CHAR) FROM {table}"))


@contextlib.contextmanager
def sandbox(spec, groups, tools, family, base_port):
    """A cluster of its own with tables, gone when the block ends, however it ends."""
    folder = tempfile.mkdtemp(prefix="bench-")
    command = [
        tools["lab"], "sandbox", "up", "--json",
        "--dir", f"{folder}/c",
        "--family", spec.family or family,
        "--topology", spec.topology,
        "--replicas", str(spec.replicas),
        "--base-port", str(base_port),
        "--max-connections", str(spec.max_connections),
        "--buffer-pool-mib", "128",
        # Else hundreds of clients close each other's tables.
        "--server-arg=--table-open-cache=5000",
        *(["--tls"] if spec.tls else []),
        *([] if spec.gtids else ["--no-gtid"]),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        started, _, _ = select.select([process.stdout], [], [], START_WITHIN_SECONDS)
        line = process.stdout.readline() if started else None
        if not line:
            raise RuntimeError("the sandbox did not start; its own words are above")
        cluster = Cluster(json.loads(line), groups, tools["client"])
        cluster.prepare()
        yield cluster
        for server in cluster.servers:
            groups.drop(server.group)
    finally:
        process.terminate()
        process.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def sysbench_version():
    return run(["sysbench", "--version"], timeout=10).strip()


def run(command, timeout):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"{command[0]} was not done after {timeout} s") from late
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout

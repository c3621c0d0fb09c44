"""Load: sysbench, and the clients of bench-client. Returns what they counted."""

import contextlib
import json
import os
import re
import subprocess
import time

from harness import procs


class Load:
    """Load generators, for one account and set of tables."""

    def __init__(self, cluster, client, tables, rows):
        self.cluster = cluster
        self.client = client
        self.tables = tables
        self.rows = rows

    # --- sysbench ---------------------------------------------------------------

    def prepare(self):
        """Makes sysbench's tables on the primary, and waits for them on every server."""
        primary = self.cluster.servers[0]
        for table in range(1, self.tables + 1):
            self.sql(primary, f"DROP TABLE IF EXISTS sbtest{table}")
        self._run(self._sysbench([primary], 1, 0, "oltp_point_select") + ["prepare"], timeout=300)
        for server in self.cluster.servers:
            self._wait_for_tables(server)

    def _wait_for_tables(self, server):
        deadline = time.monotonic() + 60
        while True:
            counted = self._rows_of_last_table(server)
            if counted == str(self.rows):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{server} has {counted} of {self.rows} rows after a minute")
            time.sleep(0.2)

    def _rows_of_last_table(self, server):
        try:
            return self.sql(server, f"SELECT COUNT(*) FROM sbtest{self.tables}")
        except RuntimeError:
            return None  # not replicated yet

    def point_selects(self, addresses, threads, seconds):
        """Starts sysbench's point selects in the text protocol, from `threads` clients."""
        command = self._sysbench(addresses, threads, seconds, "oltp_point_select") + ["run"]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def _sysbench(self, addresses, threads, seconds, script):
        # sysbench walks through all hosts for each port in turn.
        hosts, _, ports = zip(*(address.rpartition(":") for address in addresses))
        return [
            "sysbench",
            script,
            "--db-ps-mode=disable",
            "--mysql-host=" + ",".join(sorted(set(hosts))),
            "--mysql-port=" + ",".join(ports),
            f"--mysql-user={self.cluster.user}",
            f"--mysql-password={self.cluster.password}",
            f"--mysql-db={self.cluster.database}",
            f"--tables={self.tables}",
            f"--table-size={self.rows}",
            f"--threads={threads}",
            f"--time={seconds}",
            "--percentile=95",
        ]

    def _run(self, command, timeout):
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    # --- bench-client -----------------------------------------------------------

    def sql(self, address, *statements):
        """Runs statements on one server; the last one's first value, as text."""
        return json.loads(
            self._run(self._client("sql", "--server", address, *statements), timeout=60)
        )

    def latencies(self, targets, seconds):
        """One client, single queries to each system in turn: {name: report}."""
        words = ["latency", "--seconds", str(seconds)]
        for name, address in targets.items():
            words += ["--target", f"{name}={address}"]
        reports = json.loads(self._run(self._client(*words), timeout=seconds + 60))
        return {report["name"]: report for report in reports}

    @contextlib.contextmanager
    def idle_clients(self, address, clients):
        """Clients that logged in, ran one query and wait; yields bench-client's report."""
        process = subprocess.Popen(
            self._client("idle", "--server", address, "--clients", str(clients)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("bench-client ended early")
            yield json.loads(line)
        finally:
            process.stdin.close()
            process.wait(timeout=60)

    def _client(self, *words):
        os.environ["MILLRACE_BENCH_PASSWORD"] = self.cluster.password
        return [self.client, "--user", self.cluster.user, "--database", self.cluster.database, "--rows", str(self.rows), *words]


def finish(process, timeout):
    """Waits for a started sysbench: its counts. Every error and reconnect is in them."""
    try:
        out, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
    if process.returncode != 0:
        return {"failed": _first_error(out), "queries": 0, "qps": 0.0, "errors": 1}
    return {
        "queries": int(_number(r"total:\s+(\d+)", out)),
        "qps": _number(r"queries:\s+\d+\s+\(([\d.]+) per sec", out),
        "mean_ms": _number(r"avg:\s+([\d.]+)", out),
        "p95_ms": _number(r"95th percentile:\s+([\d.]+)", out),
        "errors": int(_number(r"ignored errors:\s+(\d+)", out)),
        "reconnects": int(_number(r"reconnects:\s+(\d+)", out)),
    }


def _first_error(out):
    lines = [line for line in out.splitlines() if "FATAL" in line or "error" in line.lower()]
    return lines[0] if lines else out[-300:]


def _number(pattern, text):
    found = re.search(pattern, text)
    if not found:
        raise RuntimeError(f"sysbench printed no /{pattern}/:\n{text[-2000:]}")
    return float(found.group(1))


def accounted(process, timeout, proxy_pids, server_pids):
    """Waits for a started sysbench; adds the CPU that proxy and servers spent per query."""
    proxy, servers = procs.cpu_of(proxy_pids), procs.cpu_of(server_pids)
    result = finish(process, timeout)
    proxy, servers = procs.cpu_of(proxy_pids) - proxy, procs.cpu_of(server_pids) - servers
    queries = max(result["queries"], 1)
    result["proxy_cpu_us"] = proxy.total * 1e6 / queries
    result["proxy_user_us"] = proxy.user * 1e6 / queries
    result["servers_cpu_us"] = servers.total * 1e6 / queries
    return result

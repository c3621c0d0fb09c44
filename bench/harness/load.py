"""The kinds of load. Each puts itself on a target and returns what it and the target showed.

Figures are plain numbers under the names of metrics.py; `errors` counts every one, and `failed`
is the first in its own words.
"""

import contextlib
import json
import pathlib
import re
import select
import subprocess
import tempfile
import time
from dataclasses import dataclass, replace

from harness import cluster, counters, procs
from harness.meter import Meter

LUA = pathlib.Path(__file__).resolve().parent.parent / "lua"
STARTED = "Threads started!"
#: What a load may take beyond its time: to log in, and for the last events to end.
PATIENCE_SECONDS = 60
POLL_SECONDS = 0.02
#: Enough to open connections and to learn accounts.
WARM_UP_CLIENTS = 64


@dataclass(frozen=True)
class Target:
    """A system that runs, and the servers whose CPU counts while it does."""

    running: object
    servers: list
    cluster: object
    seconds: float

    @property
    def name(self):
        return self.running.system.name


@dataclass(frozen=True)
class Sysbench:
    """One of sysbench's scripts, stock or ours."""

    script: str = "oltp_point_select"
    clients: int = 64
    prepared: bool = False
    options: tuple[str, ...] = ()
    #: A load that writes runs on the primary, unless the system splits.
    writes: bool = False
    #: Whole rows of each result, where the CPU for each megabyte is asked for.
    rows: int = 0
    patience: int = PATIENCE_SECONDS

    together = False

    def cost(self, seconds):
        return seconds + 1 + self.clients / 1000

    def measure(self, target):
        with self._started(target, target.seconds) as sysbench:
            if not sysbench.wait_for_start(self.patience):
                return sysbench.results()
            meter = Meter(target)
            connections = []
            for share in (0.5, 0.9):
                sysbench.wait_until(target.seconds * share)
                connections.append(self._connections(target, sysbench))
            sysbench.wait_until(target.seconds)
            peak = procs.peak_kib_of(target.running.pids)
            under_load = meter.stop()
            # Events that last longer than the time for all are counted, and cost CPU.
            sysbench.wait_until(target.seconds + self.patience)
            spent = meter.stop()
            found = sysbench.results()
        if found.get("failed"):
            return found
        found |= under_load.cores() | spent.per(found["queries"])
        found["server_connections"] = max(connections)
        if peak:
            found["peak_mib"] = peak / 1024
        if self.rows and "proxy_us" in found:
            megabytes = target.cluster.bytes_of_rows(self.rows) / 1e6
            found["proxy_us_per_mb"] = found["proxy_us"] / megabytes
        return found

    def warm_up(self, target):
        few = replace(self, clients=min(self.clients, WARM_UP_CLIENTS))
        with few._started(target, 1) as sysbench:
            sysbench.wait_until(1 + PATIENCE_SECONDS)

    def path(self):
        ours = LUA / f"{self.script}.lua"
        return str(ours) if ours.exists() else self.script

    def _started(self, target, seconds):
        return Running(
            target.cluster.sysbench(
                self.path(),
                target.running.addresses,
                f"--db-ps-mode={'auto' if self.prepared else 'disable'}",
                f"--threads={self.clients}",
                f"--time={seconds}",
                "--histogram",
                *self.options,
                *([f"--rows={self.rows}"] if self.rows else []),
                "run",
            )
        )

    def _connections(self, target, sysbench):
        """To the servers; direct clients' own where there is no proxy."""
        ports = {server.port for server in target.servers}
        with contextlib.suppress(FileNotFoundError):
            return procs.connections_to(target.running.pids or [sysbench.pid], ports)
        return 0


class Running:
    """A sysbench that runs. Killed, if need be, when the block ends."""

    def __init__(self, command):
        self._output = tempfile.TemporaryFile("a+")  # noqa: SIM115 (closed by __exit__)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._began = time.monotonic()
        self.pid = self._process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def wait_for_start(self, timeout):
        """Until all clients are logged in; false where that came to nothing."""
        while time.monotonic() - self._began < timeout and self._process.poll() is None:
            if STARTED in self._text():
                self._began = time.monotonic()
                return True
            time.sleep(POLL_SECONDS)
        return False

    def wait_until(self, seconds):
        """Since the start, or until it ended."""
        while (left := self._began + seconds - time.monotonic()) > 0 and self._process.poll() is None:
            time.sleep(min(left, POLL_SECONDS))

    def _text(self):
        self._output.seek(0)
        return self._output.read()

    def results(self):
        text = self._text()
        fatal = re.findall(r"^FATAL: (.*)", text, re.MULTILINE)
        if self._process.poll() is None:
            return {"errors": len(fatal) + 1, "failed": (fatal or ["not completed in time"])[0]}
        if self._process.returncode != 0:
            return {"errors": len(fatal) or 1, "failed": (fatal or [text[-300:]])[0]}
        return _parsed(text)


def _parsed(text):
    seconds = _number(r"total time:\s+([\d.]+)", text)
    planned = re.findall(r"^planned reconnects: (\d+)", text, re.MULTILINE)
    return {
        "queries": int(_number(r"total:\s+(\d+)", text)),
        "qps": _number(r"queries:\s+\d+\s+\(([\d.]+) per sec", text),
        "events_per_s": _number(r"transactions:\s+\d+\s+\(([\d.]+) per sec", text),
        "reads": int(_number(r"read:\s+(\d+)", text)),
        "writes": int(_number(r"write:\s+(\d+)", text)),
        "reads_per_s": _number(r"read:\s+(\d+)", text) / seconds,
        "writes_per_s": _number(r"write:\s+(\d+)", text) / seconds,
        "mean_ms": _number(r"avg:\s+([\d.]+)", text),
        **_percentiles(text),
        "errors": int(_number(r"ignored errors:\s+(\d+)", text)),
        "reconnects": int(_number(r"reconnects:\s+(\d+)\s+\(", text)) + sum(map(int, planned)),
    }


def _percentiles(text):
    """From sysbench's histogram, whose steps are 2 % wide."""
    steps = [
        (float(value), int(count))
        for value, count in re.findall(r"^\s+([\d.]+) \|\**\s+(\d+)$", text, re.MULTILINE)
    ]
    total = sum(count for _, count in steps)
    found = {}
    for percent in (50, 95, 99):
        seen = 0
        for value, count in steps:
            seen += count
            if seen * 100 >= total * percent:
                found[f"p{percent}_ms"] = value
                break
    return found


def _number(pattern, text):
    found = re.search(pattern, text)
    if not found:
        raise RuntimeError(f"sysbench printed no /{pattern}/:\n{text[-2000:]}")
    return float(found.group(1))


@dataclass(frozen=True)
class Connects:
    """Clients that connect, log in, run one query and close, over and over."""

    at_once: int = 32

    writes = False
    together = False

    def cost(self, seconds):
        return seconds + 1

    def measure(self, target):
        meter = Meter(target)
        found = self._run(target, target.seconds)
        spent = meter.stop()
        peak = procs.peak_kib_of(target.running.pids)
        return {
            "connects_per_s": found["connections"] / found["seconds"],
            **{f"{key}_ms": found[f"{key}_us"] / 1000 for key in ("mean", "p50", "p95", "p99")},
            **spent.cores(),
            **spent.per(found["connections"]),
            **({"peak_mib": peak / 1024} if peak else {}),
            "errors": found["failed"],
            **({"failed": found["first_error"]} if found["failed"] else {}),
        }

    def warm_up(self, target):
        self._run(target, 1)

    def _run(self, target, seconds):
        words = ["connect", "--at-once", self.at_once, "--seconds", int(seconds)]
        for address in target.running.addresses:
            words += ["--server", address]
        return json.loads(cluster.run(target.cluster.client(*words), timeout=seconds + PATIENCE_SECONDS))


@dataclass(frozen=True)
class Idle:
    """Clients that logged in, ran one query and wait."""

    clients: int = 10_000

    writes = False
    together = False

    def cost(self, seconds):
        return seconds + 3 + self.clients / 1000

    def measure(self, target):
        clients = min(self.clients, target.running.system.idle_clients)
        address, pids = target.running.addresses[0], target.running.pids
        if not pids:
            return {}  # nothing stands between clients and servers
        procs.forget_peaks(pids)
        before = procs.memory_of(pids)
        with _idle(target.cluster, address, clients) as found:
            time.sleep(2)
            meter = Meter(target)
            time.sleep(target.seconds)
            spent = meter.stop()
            after = procs.memory_of(pids)
            connections = procs.connections_to(pids, {server.port for server in target.servers})
        connected = max(found["connected"], 1)
        return {
            "clients": found["connected"],
            "kib_per_client": (after["rss"] - before["rss"]) / connected,
            "kib_per_client_pss": (after["pss"] - before["pss"]) / connected,
            "idle_cpu_percent": spent.proxy.total / spent.seconds * 100,
            "server_connections": connections,
            "peak_mib": procs.peak_kib_of(pids) / 1024,
            "login_seconds": found["seconds"],
            "errors": found["failed"],
            **({"failed": found["first_error"]} if found["failed"] else {}),
        }

    def warm_up(self, target):
        with _idle(target.cluster, target.running.addresses[0], 10):
            time.sleep(1)


@contextlib.contextmanager
def _idle(servers, address, clients):
    process = subprocess.Popen(
        servers.client("idle", "--server", address, "--clients", clients),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        patience = PATIENCE_SECONDS + clients / 100
        readable, _, _ = select.select([process.stdout], [], [], patience)
        line = process.stdout.readline() if readable else ""
        if not line:
            raise RuntimeError(f"bench-client ended early, or logged in too few clients in {patience:.0f} s")
        yield json.loads(line)
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Bursts:
    """Single queries from one client, in bursts to each system in turn."""

    #: How many rows they read in turn.
    rows: int = cluster.ROWS

    writes = False
    #: All systems are measured at the same time.
    together = True

    def cost(self, seconds):
        return seconds + 1

    def measure_all(self, targets):
        words = ["latency", "--seconds", int(targets[0].seconds)]
        for target in targets:
            if target.running.metrics_address:
                counters.wait_until_following(target.running)
            words += ["--target", f"{target.name}={target.running.addresses[0]}"]
        command = targets[0].cluster.client(*words, rows=self.rows)
        reports = json.loads(cluster.run(command, timeout=targets[0].seconds + PATIENCE_SECONDS))
        direct = next((report for report in reports if report["name"] == "direct"), None)
        found = {}
        for report in reports:
            one = {f"{key}_us": report[f"{key}_us"] for key in ("mean", "p50", "p95", "p99")}
            if direct:
                one |= {
                    f"added_{key}_us": report[f"{key}_us"] - direct[f"{key}_us"] for key in ("p50", "p95")
                }
            found[report["name"]] = {**one, "errors": 0}
        return found

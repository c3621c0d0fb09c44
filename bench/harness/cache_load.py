"""Loads that ask what results in memory are worth, what they cost, and whether they are true.

What Millrace counts of its cache is read before and after; a system that counts nothing has no such figures.
"""

import contextlib
import json
import subprocess
import time
from dataclasses import dataclass, replace

from harness import cluster, counters, procs
from harness.load import PATIENCE_SECONDS, Running, Sysbench
from harness.meter import Meter

#: A cache is warm when so many of the reads come out of it.
WARM_PERCENT = 99
#: A result is kept at its second sight, if the log has told of all that it may show.
WARM_UP_PASSES = 2
WARM_UP_ROUNDS = 10
NAMED_SECONDS = 2
#: What the follower may yet have to do when its load has ended.
FOLLOWER_SECONDS = 0.5
#: Of the distinct statements of a load, about.
STATEMENTS_PER_SECOND = 8_000


@dataclass(frozen=True)
class Cached(Sysbench):
    """Reads by primary key of so many rows, and a share of writes (lua/cached.lua)."""

    script: str = "cached"
    #: Percent of the statements.
    writes_percent: float = 0
    rand: str = "uniform"
    hot_rows: int = cluster.ROWS
    #: Clients that check what they read run beside it.
    is_checked: bool = False

    def measure(self, target):
        before = counters.of(target.running)
        with Checker(target) if self.is_checked else contextlib.nullcontext() as checker:
            found = super().measure(target)
            checked = checker.results() if checker else {}
        if found.get("failed"):
            return found
        after = counters.of(target.running)
        if checked:
            found = _with_checks(found, checked)
        if after:
            reads = found["reads"] + checked.get("checked", 0)
            found["hits_percent"] = after.since(before, "hits") / reads * 100
            found["misses"] = after.causes(before, "misses")
            found["invalidations"] = after.causes(before, "invalidations")
        return found

    def warm_up(self, target):
        if self.writes_percent:
            # As one that has run for a while: until a table has been written, and definitions were read once more, its
            # rows are not told apart by key.
            replace(self, writes_percent=100, options=("--time=0", "--events=100")).warm_up_once(target)
            time.sleep(NAMED_SECONDS)
        if not target.running.metrics_address:
            replace(self, writes_percent=0).warm_up_once(target)
            return
        counters.wait_until_following(target.running)
        passes = f"--events={WARM_UP_PASSES * self.hot_rows}"
        walk = replace(self, writes_percent=0, options=("--walk=on", "--time=0", passes))
        after = counters.of(target.running)
        for _ in range(WARM_UP_ROUNDS):
            before = after
            walk.warm_up_once(target)
            after = counters.of(target.running)
            hits, misses = after.since(before, "hits"), after.since(before, "misses")
            if hits >= WARM_PERCENT / 100 * max(hits + misses, 1):
                break
        else:
            raise RuntimeError(f"the cache does not get warm: {after.causes(before, 'misses')}")
        if self.writes_percent:
            # As it will be: some rows are out of memory, and known.
            self.warm_up_once(target)

    def warm_up_once(self, target):
        with self._started(target, 1) as sysbench:
            sysbench.wait_until(1 + PATIENCE_SECONDS)
            found = sysbench.results()
        if found.get("failed"):
            raise RuntimeError(found["failed"])

    def _started(self, target, seconds):
        more = (
            f"--hot-rows={self.hot_rows}",
            f"--writes={self.writes_percent:g}",
            f"--rand-type={self.rand}",
            *self.options,
        )
        return super(Cached, replace(self, options=more))._started(target, seconds)


class Checker:
    """Clients that check what they read, beside a load."""

    def __init__(self, target):
        words = ["registers", "--server", target.running.addresses[0]]
        words += ["--primary", target.cluster.servers[0].address, "--seconds", int(target.seconds)]
        self._process = subprocess.Popen(
            target.cluster.client(*words), stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def results(self):
        try:
            text, _ = self._process.communicate(timeout=PATIENCE_SECONDS)
            return json.loads(text)
        except (subprocess.TimeoutExpired, json.JSONDecodeError) as error:
            raise RuntimeError(f"the clients that check said nothing: {error}") from error


def _with_checks(found, checked):
    """CPU is for each statement that passed, the checkers' among them."""
    own = found["queries"]
    share = own / (own + checked["checked"] + checked["written"])
    for key in ("proxy_us", "proxy_user_us", "proxy_system_us", "servers_us"):
        if key in found:
            found[key] *= share
    found |= {key: checked[key] for key in ("checked", "checked_beside", "stale", "late", "examples")}
    found["errors"] += checked["failed"]
    if checked["failed"]:
        found["failed"] = checked["first_error"]
    return found


@dataclass(frozen=True)
class Distinct(Sysbench):
    """Reads by primary key whose text never comes again: each is a miss."""

    script: str = "cached"
    options: tuple[str, ...] = ("--distinct=on",)

    def measure(self, target):
        before = counters.of(target.running)
        found = super().measure(target)
        after = counters.of(target.running)
        if after and not found.get("failed"):
            found["hits_percent"] = after.since(before, "hits") / found["reads"] * 100
            found["fills_percent"] = after.since(before, "fills") / found["reads"] * 100
        return found

    def warm_up(self, target):
        if target.running.metrics_address:
            counters.wait_until_following(target.running)
        super().warm_up(target)


@dataclass(frozen=True)
class Statements(Distinct):
    """So many of them, and what memory they leave behind."""

    count: int = 300_000

    def cost(self, seconds):
        return self.count / STATEMENTS_PER_SECOND

    def warm_up(self, target):
        """Connections are there, and next to nothing is in memory."""
        if target.running.metrics_address:
            counters.wait_until_following(target.running)
        Cached(hot_rows=10).warm_up_once(target)

    def measure(self, target):
        pids = target.running.pids
        before = procs.memory_of(pids)["rss"]
        options = (*self.options, f"--events={self.count}")
        with replace(self, options=options)._started(target, 0) as sysbench:
            sysbench.wait_until(PATIENCE_SECONDS + self.count / 1000)
            found = sysbench.results()
        if found.get("failed"):
            return found
        found["added_mib"] = (procs.memory_of(pids)["rss"] - before) / 1024
        if after := counters.of(target.running):
            found["cache_mib"] = after.sums["bytes"] / 2**20
            found["results"] = after.sums["results"]
            found["evictions"] = after.sums["invalidations"]
        return found


@dataclass(frozen=True)
class Beside:
    """A writer that bypasses the system while nobody is its client: what following the log costs."""

    #: Rows of each statement, which is a transaction.
    rows_each: int = 1
    clients: int = 8

    writes = True
    together = False

    def cost(self, seconds):
        return seconds + 1

    def measure(self, target):
        meter = Meter(target)
        with self._started(target, target.seconds) as sysbench:
            sysbench.wait_until(target.seconds + PATIENCE_SECONDS)
            found = sysbench.results()
        if found.get("failed"):
            return found
        time.sleep(FOLLOWER_SECONDS)
        spent = meter.stop()
        rows = found["writes"] * self.rows_each
        return {
            "rows_per_s": found["writes_per_s"] * self.rows_each,
            "row_us": spent.proxy.total / rows * 1e6,
            "errors": found["errors"],
        }

    def warm_up(self, target):
        if target.running.metrics_address:
            counters.wait_until_following(target.running)
        with self._started(target, 1) as sysbench:
            sysbench.wait_until(1 + PATIENCE_SECONDS)

    def _started(self, target, seconds):
        return Running(
            target.cluster.sysbench(
                Cached().path(),
                [target.cluster.servers[0].address],
                "--db-ps-mode=disable",
                f"--threads={self.clients}",
                f"--time={seconds}",
                "--histogram",
                "--writes=100",
                f"--rows-each={self.rows_each}",
                "run",
            )
        )


@dataclass(frozen=True)
class Seen:
    """One client reads a row without a rest, another writes it at the primary, past the system."""

    writes = True
    together = False

    def cost(self, seconds):
        return seconds + 1

    def measure(self, target):
        before = counters.of(target.running)
        found = self._run(target, target.seconds)
        after = counters.of(target.running)
        return {
            **{f"seen_{key}_ms": found[f"{key}_us"] / 1000 for key in ("p50", "p95", "p99", "max")},
            "written": found["writes"],
            "unseen": found["unseen"],
            "hits_percent": after.since(before, "hits") / found["reads"] * 100,
            "errors": 0,
        }

    def warm_up(self, target):
        counters.wait_until_following(target.running)
        self._run(target, 1)

    def _run(self, target, seconds):
        words = ["seen", "--server", target.running.addresses[0], "--seconds", int(seconds)]
        words += ["--primary", target.cluster.servers[0].address]
        return json.loads(cluster.run(target.cluster.client(*words), timeout=seconds + PATIENCE_SECONDS))

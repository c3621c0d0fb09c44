#!/usr/bin/env python3
"""A few figures of Millrace beside direct connections, a bare relay and HAProxy.

    bench/figures.sh [--rounds N] [--seconds S] [--only cpu,latency,memory,connections] …

Measured on a private cluster on this machine, all systems in one run, taking turns.
Writes figures.json (everything that was seen) and figures.md (tables) to --out.
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import shlex
import signal
import sys
import time

from harness import cluster as clusters
from harness import load as loads
from harness import procs, report
from harness import systems as catalogue

BENCH = pathlib.Path(__file__).resolve().parent
SECTIONS = ("cpu", "latency", "memory", "connections")
SETTLE_SECONDS = 3


def main():
    args = parse()
    # SIGTERM ends a run as Ctrl-C does: what was started is stopped, what was seen is kept.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    places = {
        "target": args.target,
        "cache": os.environ.get("MILLRACE_CACHE", str(pathlib.Path.home() / ".cache/millrace")),
    }
    result = begin(args)
    with open_cluster(args) as cluster:
        load = loads.Load(cluster, f"{args.target}/release/bench-client", tables=4, rows=10_000)
        say(f"{cluster.version}: {', '.join(cluster.servers)}; making tables")
        load.prepare()
        systems, left_out = catalogue.load(args.systems, cluster, places)
        systems = [system for system in systems if not args.systems_only or system.name in args.systems_only]
        for name, why in left_out.items():
            say(f"!!! {name} is left out: {why}")
        result.update(
            servers={"family": cluster.family, "version": cluster.version},
            systems=[system.name for system in systems],
            versions={system.name: system.version for system in systems},
            left_out=left_out,
        )
        try:
            Figures(args, cluster, load, systems, result).run()
        except KeyboardInterrupt:
            result["failures"].append("interrupted: what follows is what was measured by then")
    return finish(args, result)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=10, help="of load for each system and round")
    parser.add_argument("--clients", type=int, default=64, help="for CPU per point select")
    parser.add_argument("--idle-clients", type=int, default=5000)
    parser.add_argument("--busy-clients", type=int, default=1000)
    parser.add_argument("--only", default=",".join(SECTIONS), help="comma-separated: " + ", ".join(SECTIONS))
    parser.add_argument("--systems", default=str(BENCH / "systems.toml"))
    parser.add_argument("--systems-only", type=lambda text: text.split(","), help="comma-separated names")
    parser.add_argument("--family", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--base-port", type=int, default=25500)
    parser.add_argument("--cluster", help="file with what `sandbox up --json` printed, of a cluster that runs")
    parser.add_argument("--target", default=os.environ.get("CARGO_TARGET_DIR", str(BENCH.parent / "target")))
    parser.add_argument("--out", help="folder for the results (default: target/figures)")
    args = parser.parse_args()
    args.only = args.only.split(",")
    if unknown := set(args.only) - set(SECTIONS):
        parser.error(f"--only: no such section: {', '.join(sorted(unknown))}")
    return args


def open_cluster(args):
    if args.cluster:
        return contextlib.nullcontext(clusters.from_file(args.cluster))
    return clusters.sandbox(
        f"{args.target}/release/millrace",
        args.family,
        args.replicas,
        args.base_port,
        max_connections=max(args.idle_clients, args.busy_clients) + 100,
        buffer_pool_mib=128,
    )


class Figures:
    """One run: starts systems, puts load on them in turns, keeps what was counted."""

    def __init__(self, args, cluster, load, systems, result):
        self.args = args
        self.cluster = cluster
        self.load = load
        self.systems = systems
        self.result = result
        self.next_port = args.base_port + 50

    def run(self):
        if "cpu" in self.args.only or "latency" in self.args.only:
            self.interleaved()
        if "memory" in self.args.only:
            self.each_alone("memory", self.memory_of)
        if "connections" in self.args.only:
            self.each_alone("connections", self.connections_of)

    def interleaved(self):
        """All systems up, one of them under load at a time; the order turns each round."""
        with contextlib.ExitStack() as stack:
            running = [r for r in (self.start(system, stack) for system in self.systems) if r]
            for each in running:
                # Logins that the server has seen once are cheaper ever after.
                loads.finish(self.load.point_selects(each.addresses, self.args.clients, 2), 60)
            for number in range(self.args.rounds):
                turn = number % len(running)
                order = running[turn:] + running[:turn]
                if "cpu" in self.args.only:
                    self.result["cpu"].append(self.cpu_round(number, order))
                if "latency" in self.args.only:
                    self.result["latency"].append(self.latency_round(number, order))

    def start(self, system, stack):
        self.next_port += 1
        try:
            return stack.enter_context(system.start(self.next_port))
        except (RuntimeError, OSError) as error:
            self.fail(f"{system.name}: {error}")
            return None

    def cpu_round(self, number, order):
        seen = {}
        for running in order:
            process = self.load.point_selects(running.addresses, self.args.clients, self.args.seconds)
            seen[running.name] = found = loads.accounted(
                process, self.args.seconds + 60, running.pids, self.cluster.pids
            )
            self.note_errors(running.name, found)
            say(
                f"round {number + 1}/{self.args.rounds}: {running.name:<10} {found['qps']:8.0f} QPS, "
                f"proxy {found['proxy_cpu_us']:5.1f} µs/query, servers {found['servers_cpu_us']:5.0f}"
            )
        return seen

    def latency_round(self, number, order):
        targets = {running.name: running.addresses[0] for running in order}
        found = self.load.latencies(targets, self.args.seconds)
        shown = ", ".join(f"{name} {one['p50_us']:.0f}/{one['p95_us']:.0f}" for name, one in found.items())
        say(f"round {number + 1}/{self.args.rounds}: latency p50/p95 µs: {shown}")
        return found

    def each_alone(self, section, measure):
        """A fresh start for each proxy, so that none carries what an earlier load left."""
        for system in self.systems:
            if system.is_direct:
                continue
            with contextlib.ExitStack() as stack:
                running = self.start(system, stack)
                if running:
                    self.result[section][system.name] = found = measure(running)
                    say(f"{section}: {system.name}: {json.dumps(found)}")

    def memory_of(self, running):
        clients = self.args.idle_clients
        with self.load.idle_clients(running.addresses[0], 10):
            time.sleep(1)
        time.sleep(1)
        before = procs.memory_of(running.pids)
        with self.load.idle_clients(running.addresses[0], clients) as found:
            time.sleep(SETTLE_SECONDS)
            after = procs.memory_of(running.pids)
            connections = procs.connections_to(running.pids, self.cluster.ports)
            spent = procs.cpu_of(running.pids)
            time.sleep(SETTLE_SECONDS)
            spent = procs.cpu_of(running.pids) - spent
        self.note_errors(running.name, {"errors": found["failed"], "failed": found["first_error"]})
        return {
            **found,
            "before_kib": before,
            "after_kib": after,
            "kib_per_client_rss": (after["rss"] - before["rss"]) / max(found["connected"], 1),
            "kib_per_client_pss": (after["pss"] - before["pss"]) / max(found["connected"], 1),
            "server_connections": connections,
            "idle_cpu_percent": spent.total * 100 / SETTLE_SECONDS,
        }

    def connections_of(self, running):
        process = self.load.point_selects(running.addresses, self.args.busy_clients, self.args.seconds)
        most = 0
        while process.poll() is None:
            most = max(most, procs.connections_to(running.pids, self.cluster.ports))
            time.sleep(0.25)
        found = loads.finish(process, 60)
        self.note_errors(running.name, found)
        return {"server_connections_max": most, **found}

    def note_errors(self, name, found):
        if found.get("errors") or found.get("reconnects"):
            self.fail(f"{name}: {found.get('errors')} errors, {found.get('reconnects', 0)} reconnects: "
                      f"{found.get('failed') or 'see figures.json'}")  # fmt: skip

    def fail(self, text):
        say(f"!!! {text}")
        self.result["failures"].append(text)


def begin(args):
    return {
        "command": "bench/figures.sh " + shlex.join(sys.argv[1:]),
        "began": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "machine": {
            "cpu": cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "load_before": procs.load_average(),
        },
        "settings": {
            key: getattr(args, key)
            for key in ("rounds", "seconds", "clients", "idle_clients", "busy_clients", "replicas")
        },
        "cpu": [],
        "latency": [],
        "memory": {},
        "connections": {},
        "failures": [],
    }


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def finish(args, result):
    result["machine"]["load_after"] = procs.load_average()
    out = pathlib.Path(args.out or f"{args.target}/figures")
    out.mkdir(parents=True, exist_ok=True)
    (out / "figures.json").write_text(json.dumps(result, indent=1) + "\n")
    page = report.page(result)
    (out / "figures.md").write_text(page)
    print("\n" + page)
    say(f"written: {out}/figures.json, {out}/figures.md")
    return 1 if result["failures"] else 0


def say(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

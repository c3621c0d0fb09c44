#!/usr/bin/env python3
"""Runs the experiments of experiments/ and writes what they showed.

    bench/bench.py [--experiment W2,U1] [--rounds N] [--seconds S] [--quick] …

Rounds are the outer loop, then points, and systems take turns innermost, in an order that
rotates: the machine's moods meet all systems alike. Ctrl-C keeps what was seen until
then, and --resume goes on from there.
"""

import argparse
import contextlib
import itertools
import os
import pathlib
import shlex
import signal
import sys
import time

from experiments import ALL
from harness import build, cgroups, cluster, procs, report, systems
from harness.load import Target
from harness.results import Results

BENCH = pathlib.Path(__file__).resolve().parent
#: What starting, warming up and stopping a system takes, about.
START_SECONDS = 2
#: How failures begin that a resumed run makes good.
ENDED_EARLY = "ended early"


def main():
    args = parse()
    places = {
        "target": args.target,
        "cache": os.environ.get("MILLRACE_CACHE", str(pathlib.Path.home() / ".cache/millrace")),
    }
    if args.redraw:
        report.write(Results.read(args.redraw / "run.json"), ALL, args.redraw)
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    found, left_out, tools = systems.load(args.systems, places)
    if not tools.get("millrace"):
        say(f"!!! Millrace is not built in {args.target}: run make release, or make bench")
        return 1
    tools = {
        "millrace": tools["millrace"],
        "lab": f"{args.target}/release/millrace-lab",
        "client": f"{args.target}/release/bench-client",
    }
    families = {system.name: system.family for system in found}
    found = [
        system
        for system in found
        if (system.name in args.only if args.only else system.quick or not args.quick)
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    with cgroups.Cgroups() as groups:
        results = begin(args, about(args, found, tools, families, left_out, groups))
        say(build.in_words(results.about["build"]))
        for name, why in left_out.items():
            say(f"!!! {name} is left out: {why}")
        if groups.missing:
            say(f"!!! no CPU caps: {groups.missing}")
        try:
            Bench(args, found, tools, groups, results).run()
        except KeyboardInterrupt:
            results.about["failures"].append(f"{ENDED_EARLY} by interrupt: this is what was seen until then")
        except (RuntimeError, OSError) as error:
            results.about["failures"].append(f"{ENDED_EARLY}: {error}")
    results.about["machine"]["load_after"] = os.getloadavg()[0]
    results.save(args.out / "run.json")
    report.write(results, ALL, args.out)
    say(f"written: {args.out}/page.html, results.md, run.json and curves")
    for failure in results.about["failures"]:
        say(f"!!! {failure}")
    return 1 if results.about["failures"] else 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = [one.id for one in ALL]
    parser.add_argument(
        "--experiment", default="", help="comma-separated; all without it: " + ", ".join(known)
    )
    parser.add_argument("--rounds", type=int, help="default 5; 1 in a quick run")
    parser.add_argument("--seconds", type=int, help="of each load; default 5; 2 in a quick run")
    parser.add_argument("--quick", action="store_true", help="few points, once: some minutes for everything")
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of systems, comma-separated")
    parser.add_argument("--points", default="", help="only points with this in their names; or with any of several: A|B")
    parser.add_argument("--systems", default=str(BENCH / "systems.toml"))
    parser.add_argument("--family", choices=("mysql", "mariadb"), default="mysql")
    parser.add_argument("--base-port", type=int, default=25500, help="the first of 450 ports")
    parser.add_argument("--target", default=os.environ.get("CARGO_TARGET_DIR", str(BENCH.parent / "target")))
    parser.add_argument(
        "--out", type=pathlib.Path, help="folder for the results (default: target/bench/TIME)"
    )
    parser.add_argument(
        "--resume",
        type=pathlib.Path,
        help="go on with that folder's run, with its rounds and seconds: what it lacks is measured",
    )
    parser.add_argument("--redraw", type=pathlib.Path, help="only write that folder's page and curves again")
    args = parser.parse_args()
    if args.resume:
        settings = Results.read(args.resume / "run.json").about["settings"]
        args.out, args.quick = args.resume, settings["quick"]
        args.rounds = args.rounds or settings["rounds"]
        args.seconds = args.seconds or settings["seconds"]
    args.rounds = args.rounds or (1 if args.quick else 5)
    args.seconds = args.seconds or (2 if args.quick else 5)
    args.out = args.out or pathlib.Path(args.target) / "bench" / time.strftime("%Y-%m-%d-%H%M%S")
    wanted = [name.upper() for name in args.experiment.split(",") if name]
    if unknown := set(wanted) - set(known):
        parser.error(f"no such experiment: {', '.join(sorted(unknown))}")
    args.experiments = [one for one in ALL if (not wanted or one.id in wanted) and points_of(one, args)]
    return args


def begin(args, now):
    """A new run, or the one to go on with."""
    if not args.resume:
        return Results(now)
    results = Results.read(args.resume / "run.json")
    before = results.about
    if before["cgroups"] != now["cgroups"]:
        sys.exit(f"bench: {args.resume} was measured with other control groups: start a new run")
    for name, version in before["versions"].items():
        if now["versions"].get(name, version) != version:
            sys.exit(f"bench: {args.resume} was measured with another {name}: start a new run")
    for what in ("seconds", "quick", "tables", "rows"):
        if before["settings"][what] != now["settings"][what]:
            sys.exit(f"bench: {args.resume} was measured with other settings ({what}): start a new run")
    before["entries"] = before.get("entries", {}) | now["entries"]
    before["settings"], before["versions"] = now["settings"], before["versions"] | now["versions"]
    # Building the same again gives another file, as a training never runs quite the same.
    for what in ("kind", "commit", "compiler"):
        if before["build"].get(what) != now["build"].get(what):
            sys.exit(f"bench: {args.resume} was measured with another build ({what}): start a new run")
    for what in ("cpu", "cores", "kernel"):
        if before["machine"][what] != now["machine"][what]:
            sys.exit(f"bench: {args.resume} was measured on another machine ({what}): start a new run")
    before["resumed"] = [*before.get("resumed", []), {"command": now["command"], "began": now["began"]}]
    known = {one["id"]: one for one in before["experiments"]}
    known.update((one["id"], one) for one in now["experiments"])
    before["experiments"] = [known[one.id] for one in ALL if one.id in known]
    # Also those that are not asked for this time.
    for what in ("labels", "families"):
        before[what] = before[what] | now[what]
    before["systems"] = [name for name in before["families"] if name in {*before["systems"], *now["systems"]}]
    before["failures"] = [text for text in before["failures"] if not text.startswith(ENDED_EARLY)]
    return results


def interrupt(*_):
    # Once is enough: what follows must be able to stop what was started.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def about(args, found, tools, families, left_out, groups):
    return {
        "command": "bench/bench.py " + shlex.join(sys.argv[1:]),
        "began": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
        "machine": procs.machine(),
        "settings": {
            "rounds": args.rounds,
            "seconds": args.seconds,
            "quick": args.quick,
            "tables": cluster.TABLES,
            "rows": cluster.ROWS,
        },
        "cgroups": {"version": groups.version, "period_us": cgroups.PERIOD_US, "missing": groups.missing},
        "systems": [system.name for system in found],
        "labels": {system.name: system.label for system in found},
        # Also of those that are not asked for, so that colours are the same in every run.
        "families": families,
        "versions": {
            "sysbench": cluster.sysbench_version(),
            **{system.name: system.version for system in found if system.version},
        },
        "entries": {system.name: system.entry for system in found},
        "build": build.of(tools["millrace"]),
        "left_out": left_out,
        "experiments": [describe(one, args) for one in args.experiments],
        "failures": [],
    }


def describe(experiment, args):
    """Its settings and caps, for who reads the raw data."""
    return {
        "id": experiment.id,
        "replicas": experiment.cluster.replicas,
        "max_connections": experiment.cluster.max_connections,
        "points": [
            {**vars(point), "load": {"kind": type(point.load).__name__, **vars(point.load)}}
            for point in points_of(experiment, args)
        ],
    }


def points_of(experiment, args):
    return [
        point
        for point in experiment.points
        if (point.quick or not args.quick) and any(part in point.name for part in args.points.split("|"))
    ]


class Bench:
    """One run: starts systems, puts loads on them in turns, keeps what was seen."""

    def __init__(self, args, found, tools, groups, results):
        self.args = args
        self.systems = found
        self.tools = tools
        self.groups = groups
        self.results = results
        self.progress = Progress(sum(map(self.cost, args.experiments)))

    def run(self):
        wanted = [one for one in self.args.experiments if self.cost(one)]
        for spec, of_spec in itertools.groupby(sorted(wanted, key=self._order), key=lambda one: one.cluster):
            of_spec = list(of_spec)
            say(f"starting {1 + spec.replicas} servers for {', '.join(one.id for one in of_spec)}")
            with cluster.sandbox(
                spec, self.groups, self.tools, self.args.family, self.args.base_port
            ) as servers:
                version = f"{servers.family} {servers.version}"
                before = self.results.about.setdefault("servers", version)
                if before != version:
                    raise RuntimeError(f"the run was measured with {before}, not {version}")
                for experiment in of_spec:
                    self.run_experiment(experiment, servers)

    def _order(self, experiment):
        """As declared, but experiments with the same servers follow each other."""
        specs = [one.cluster for one in self.args.experiments]
        return specs.index(experiment.cluster)

    def cost(self, experiment):
        """Seconds that it yet takes, about."""
        seconds = 0
        for number in range(self.args.rounds):
            for point in points_of(experiment, self.args):
                left = len(self.left(experiment, number, point))
                seconds += self.cost_of(point) * (min(left, 1) if point.load.together else left)
        return seconds

    def left(self, experiment, number, point):
        """The systems not yet measured; all of them where they are measured at once."""
        if point.rounds_max and number >= point.rounds_max:
            return []
        takers = [system for system in self.systems if experiment.takes(system, point)]
        left = [
            system for system in takers if not self.results.has(experiment.id, number, point.name, system.name)
        ]
        return takers if left and point.load.together else left

    def seconds_of(self, point):
        return self.args.seconds if self.args.quick else max(self.args.seconds, point.seconds_min)

    def cost_of(self, point):
        return point.load.cost(self.seconds_of(point)) + START_SECONDS

    def run_experiment(self, experiment, servers):
        points = points_of(experiment, self.args)
        launcher = systems.Launcher(servers, self.groups, self.args.base_port + 50)
        for number in range(self.args.rounds):
            for shift, point in enumerate(points):
                takers = self.left(experiment, number, point)
                where = f"{experiment.id} round {number + 1}/{self.args.rounds} · {point.name}"
                turn = (number + shift) % max(len(takers), 1)
                order = takers[turn:] + takers[:turn]
                measure = self.measure_together if point.load.together else self.measure_each
                for system, seen in measure(launcher, point, order, where) if takers else ():
                    say(f"    {system.name}: {summary(seen)}")
                    self.keep(experiment, number, point, system, seen, where)
            self.results.save(self.args.out / "run.json")

    def measure_each(self, launcher, point, order, where):
        """Yields (system, what was seen). Each is started for it: nothing else runs or lingers."""
        servers = launcher.cluster
        for system in order:
            self.progress.note(self.cost_of(point), f"{where} · {system.name}")
            try:
                with launcher.start(system, self.servers_for(system, servers, point)) as running:
                    target = self.target(running, servers, point)
                    if not system.is_direct:
                        point.load.warm_up(target)
                        self.settle(servers, point)
                    with capped(servers, running, point):
                        seen = point.load.measure(target)
            except (RuntimeError, OSError) as error:
                seen = {"errors": 1, "failed": str(error)}
            self.settle(servers, point)
            if seen:
                yield system, seen

    def settle(self, servers, point):
        """What replicas have to catch up with is not for the next load."""
        if point.load.writes:
            servers.settle()

    def measure_together(self, launcher, point, order, where):
        """The same for a load that meets all systems at once."""
        servers = launcher.cluster
        self.progress.note(self.cost_of(point), where)
        with contextlib.ExitStack() as stack:
            targets = []
            for system in order:
                try:
                    start = launcher.start(system, self.servers_for(system, servers, point))
                    targets.append(self.target(stack.enter_context(start), servers, point))
                except (RuntimeError, OSError) as error:
                    yield system, {"errors": 1, "failed": str(error)}
            try:
                found = point.load.measure_all(targets)
            except (RuntimeError, OSError) as error:
                found = {target.name: {"errors": 1, "failed": str(error)} for target in targets}
            missing = {"errors": 1, "failed": "the load says nothing of it"}
            yield from ((target.running.system, found.get(target.name, missing)) for target in targets)

    def keep(self, experiment, number, point, system, seen, where):
        """Rivals may fail, which the results show. Millrace may not."""
        if system.family == "millrace" and seen.get("failed"):
            self.results.about["failures"].append(f"{where}: {system.name}: {seen['failed']}")
        if system.family == "millrace" and seen.get("stale"):
            self.results.about["failures"].append(f"{where}: {system.name}: {seen['stale']} stale reads: {seen['examples']}")
        self.results.add(
            {
                "experiment": experiment.id,
                "round": number,
                "point": point.name,
                "system": system.name,
                "seen": seen,
            }
        )

    def servers_for(self, system, servers, point):
        """Those that it is given. What does not split must write where writes go."""
        taking_part = servers.servers[: point.servers or None]
        return taking_part[:1] if point.load.writes and not system.splits else taking_part

    def target(self, running, servers, point):
        return Target(running, servers.servers[: point.servers or None], servers, self.seconds_of(point))


@contextlib.contextmanager
def capped(servers, running, point):
    """Caps hold for the load alone: what replicas have to catch up with is not measured."""
    groups = [server.group for server in servers.servers]
    try:
        for group in groups:
            group.cap(point.server_cores)
        if running.group and point.proxy_cores:
            running.group.cap(point.proxy_cores * running.system.workers)
        yield
    finally:
        for group in groups:
            group.cap(None)
        if running.group:
            running.group.cap(None)


class Progress:
    """What runs now, and when all will be done, at the pace seen so far."""

    def __init__(self, cost):
        self._left = self._all = cost
        self._began = time.monotonic()

    def note(self, cost, what):
        done = self._all - self._left
        pace = (time.monotonic() - self._began) / done if done > 30 else 1.0
        minutes = self._left * pace / 60
        say(f"{f'about {minutes:.0f}' if minutes >= 1 else 'less than 1'} min left · {what}")
        self._left -= cost


def summary(seen):
    """A line for who watches."""
    if seen.get("failed"):
        return f"FAILED ({seen['errors']} errors): {seen['failed'].splitlines()[0][:150]}"
    shown = [
        ("qps", "{:,.0f}/s"),
        ("connects_per_s", "{:,.0f} connections/s"),
        ("p50_us", "p50 {:.0f} µs"),
        ("p95_ms", "p95 {:.1f} ms"),
        ("proxy_us", "proxy {:.1f} µs"),
        ("servers_us", "servers {:.0f} µs"),
        ("hits_percent", "{:.1f} % hits"),
        ("fills_percent", "{:.1f} % fills"),
        ("checked", "{:,.0f} reads checked"),
        ("stale", "{:.0f} STALE"),
        ("seen_p50_ms", "seen after {:.1f} ms (p50)"),
        ("row_us", "proxy {:.1f} µs a row"),
        ("added_mib", "{:.1f} MiB more"),
        ("kib_per_client", "{:.1f} KiB each"),
        ("idle_cpu_percent", "idle {:.2f} %"),
        ("server_connections", "{:.0f} server connections"),
        ("errors", "{:.0f} errors"),
    ]
    texts = [text.format(seen[key]) for key, text in shown if seen.get(key)]
    return ", ".join(texts) or "nothing to measure"


def say(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

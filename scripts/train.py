#!/usr/bin/env python3
"""Puts a load on an instrumented Millrace, which then writes down how often each part of it ran.

    scripts/train.py --millrace PROGRAM --lab PROGRAM --client PROGRAM --out FOLDER FAMILY...

For each family of servers (mysql, mariadb) it starts a private cluster and the program before it,
runs the loads below, and ends and removes both, also on Ctrl-C and SIGTERM. The profiles are in
FOLDER/proxy-*.profraw then. Prints one line: what was trained on.

scripts/build-release.sh runs it.
"""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import signal
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))

from harness import cgroups, cluster, systems  # noqa: E402 (bench is no package to be installed)
from harness.load import Connects, Sysbench, Target  # noqa: E402

NO_TRANSACTIONS = "--skip-trx=on"
TLS = "--mysql-ssl=on"
COMPRESSION = "--mysql-compression=on"
ROWS = "--rows=1000"


def load(script, events, *options, **fields):
    return Sysbench(script, options=(f"--events={events}", *options), **fields)


#: What is not run here is taken for rare, and is made small, not fast. So there is something of all
#: that applications do all day. How many events is fixed, so that a busy machine makes much the same
#: profile. What works byte by byte (TLS, compression) needs few of them: it counts so often that more
#: of it would push the statements' own code out of the 99 % of all counts that are taken for hot.
LOADS = {
    "point selects": load("oltp_point_select", 20_000),
    "point selects, prepared": load("oltp_point_select", 20_000, prepared=True),
    "more clients than connections": load("oltp_point_select", 20_000, clients=384),
    "more clients than connections, prepared": load("oltp_point_select", 10_000, clients=384, prepared=True),
    "ranges, prepared": load("oltp_read_only", 2_000, NO_TRANSACTIONS, "--point-selects=0", prepared=True),
    "results of many rows": load("rows", 1_000, ROWS, clients=16),
    "read-write": load("read_write", 600, NO_TRANSACTIONS, writes=True),
    "read-write, more clients than connections": load("read_write", 600, NO_TRANSACTIONS, clients=384, writes=True),
    "read-write, prepared": load("read_write", 600, NO_TRANSACTIONS, prepared=True, writes=True),
    "transactions": load("oltp_read_write", 600, writes=True),
    "transactions, prepared": load("oltp_read_write", 600, prepared=True, writes=True),
    "TLS": load("oltp_read_only", 500, TLS),
    "TLS, results of many rows": load("rows", 50, TLS, ROWS, clients=16),
    "compression": load("oltp_read_only", 64, COMPRESSION),
    "compression, results of many rows": load("rows", 8, COMPRESSION, ROWS, clients=4),
    "logins": Connects(),
}
#: Longer than a load takes anywhere; who logs in does so for a time.
SECONDS_MAX = 60
LOGIN_SECONDS = 2

#: Two workers, so that what one hands to another is trained too.
PROXY = {
    "name": "millrace",
    "family": "millrace",
    "command": ["${millrace}", "serve", "--config", "${dir}/millrace.toml"],
    "env": {"MILLRACE_MONITOR_PASSWORD": "${monitor_password}"},
    "lists": {"servers": '[[server]]\naddress = "${server}"'},
    "files": {
        "millrace.toml": """
workers = 2
[[listen]]
address = "${address}"
${servers}
[monitor]
user = "${monitor_user}"
password_env = "MILLRACE_MONITOR_PASSWORD"
[tls]
cert = "${certificate}"
key = "${key}"
"""
    },
}
#: The first of the ports that the proxy may take; servers take any free ones.
BASE_PORT = 26_500


def main():
    args = parse()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    trained_on = []
    try:
        for family in args.families:
            trained_on.append(train(args, family))
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except (RuntimeError, OSError) as error:
        say(f"error: {error}")
        return 1
    print(" and ".join(trained_on))
    return 0


def parse():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--millrace", required=True, type=os.path.abspath, help="the instrumented program")
    parser.add_argument("--lab", required=True, type=os.path.abspath, help="millrace-lab")
    parser.add_argument("--client", required=True, type=os.path.abspath, help="bench-client")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the profiles")
    parser.add_argument("families", nargs="+", choices=("mysql", "mariadb"), metavar="FAMILY")
    args = parser.parse_args()
    args.out = args.out.resolve()
    return args


def interrupt(*_):
    # Once is enough: what follows must be able to stop what was started.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def train(args, family):
    """Runs every load on servers of the family; says which they were, and how many statements ran."""
    say(f"starting 3 servers of {family}")
    tools = {"millrace": args.millrace, "lab": args.lab, "client": args.client}
    with cluster.sandbox(cluster.Spec(tls=True), cgroups.Uncounted(), tools, family, 0) as servers:
        profile = args.out / f"proxy-{family}.profraw"
        write_profile_to(profile)
        launcher = systems.Launcher(servers, cgroups.Uncounted(), BASE_PORT)
        with trusting(servers), launcher.start(systems.System(PROXY, tools), servers.servers) as proxy:
            target = Target(proxy, servers.servers, servers, SECONDS_MAX)
            statements = sum(run(family, name, load, target) for name, load in LOADS.items())
        if not profile.exists() or profile.stat().st_size == 0:
            raise RuntimeError("the proxy did not write its profile when it ended")
    return f"{family} {servers.version.split('-')[0]} ({statements:,} statements)"


def write_profile_to(path):
    """Of the programs that are started from now on; they write it when they end."""
    os.environ["LLVM_PROFILE_FILE"] = str(path)


def run(family, name, load, target):
    """Runs one load; says how many statements that came to."""
    if isinstance(load, Connects):
        target = dataclasses.replace(target, seconds=LOGIN_SECONDS)
    seen = load.measure(target)
    if seen.get("failed"):
        raise RuntimeError(f"{family}, {name}: {seen['failed']}")
    if load.writes:
        target.cluster.settle()
    statements = seen.get("queries") or int(seen["connects_per_s"] * LOGIN_SECONDS)
    say(f"{family}, {name}: {statements:,} statements")
    return statements


@contextlib.contextmanager
def trusting(servers):
    """sysbench looks for certificates in its current folder, under names of its own."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="train-") as folder:
        for name, target in (
            ("cacert.pem", servers.ca),
            ("client-cert.pem", servers.certificate),
            ("client-key.pem", servers.key),
        ):
            os.symlink(target, f"{folder}/{name}")
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def say(text):
    print(f"train: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

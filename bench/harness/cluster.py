"""The servers to measure with: a private cluster from `millrace sandbox`.

Role names and accounts are the sandbox's; nothing else here knows them.
"""

import contextlib
import json
import select
import shutil
import subprocess
import tempfile

START_WITHIN_SECONDS = 120
PRIMARY_FIRST = {"primary": 0, "replica": 1}


class Cluster:
    """A running cluster, as `sandbox up --json` describes it."""

    def __init__(self, info):
        servers = sorted(info["servers"], key=lambda server: PRIMARY_FIRST[server["role"].lower()])
        accounts = {account["user"]: account["password"] for account in info["accounts"]}
        self.family = info["family"]
        self.version = info["version"]
        #: Addresses, the primary's first.
        self.servers = [f"{server['host']}:{server['port']}" for server in servers]
        self.pids = [server["pid"] for server in servers]
        self.ports = {server["port"] for server in servers}
        self.user = "app"
        self.password = accounts[self.user]
        self.database = "app"
        self.monitor_user = "millrace_monitor"
        self.monitor_password = accounts[self.monitor_user]


@contextlib.contextmanager
def sandbox(millrace, family, replicas, base_port, max_connections, buffer_pool_mib):
    """A cluster of its own, gone when the block ends, however it ends."""
    folder = tempfile.mkdtemp(prefix="bench-")
    command = [
        millrace, "sandbox", "up", "--json",
        "--dir", f"{folder}/c",
        "--family", family,
        "--replicas", str(replicas),
        "--base-port", str(base_port),
        "--max-connections", str(max_connections),
        "--buffer-pool-mib", str(buffer_pool_mib),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        started, _, _ = select.select([process.stdout], [], [], START_WITHIN_SECONDS)
        line = process.stdout.readline() if started else None
        if not line:
            raise RuntimeError("the sandbox did not start; its own words are above")
        yield Cluster(json.loads(line))
    finally:
        process.terminate()
        process.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def from_file(path):
    """A cluster that runs already: the file holds what `sandbox up --json` printed."""
    with open(path, encoding="utf-8") as file:
        return Cluster(json.load(file))

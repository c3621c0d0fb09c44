"""The systems under test, read from systems.toml, started and stopped.

Knows nothing of what is measured on them.
"""

import itertools
import os
import pathlib
import shutil
import signal
import socket
import string
import subprocess
import tempfile
import time
import tomllib

from harness import cluster, procs

READY_WITHIN_SECONDS = 15
STOPPED_WITHIN_SECONDS = 5
PORTS = 400


class Missing(Exception):
    """A tool that the system needs is not on this machine."""


def load(path, places):
    """All systems of the file whose tools exist, why others are left out, and where tools are."""
    table = tomllib.loads(pathlib.Path(path).read_text())
    tools = _tools(table["tools"], places)
    entries = {}
    systems, left_out = [], {}
    for entry in table["system"]:
        base = entries.get(entry.get("like"), {})
        entries[entry["name"]] = entry = {"family": entry["name"], **_varied(base, entry)}
        try:
            systems.append(System(entry, tools))
        except Missing as error:
            left_out[entry["name"]] = str(error)
    return systems, left_out, tools


def _varied(base, entry):
    """The base's keys, tables merged, with the entry's own in front."""
    merged = {**base, **entry}
    for key, value in base.items():
        if isinstance(value, dict) and isinstance(entry.get(key), dict):
            merged[key] = _varied(value, entry[key])
    return merged


def _tools(table, places):
    found = {}
    for name, candidates in table.items():
        paths = [string.Template(path).substitute(places) for path in candidates]
        found[name] = next((path for path in paths if os.access(path, os.X_OK)), None)
    return found


class System:
    """One entry of systems.toml."""

    def __init__(self, entry, tools):
        self.entry = entry
        self.tools = tools
        self.name = entry["name"]
        #: The entry that this one varies, if any: variants share a colour.
        self.family = entry["family"]
        self.label = entry.get("label", self.name)
        self.experiments = entry.get("experiments")
        self.points = entry.get("points")
        self.quick = entry.get("quick", True)
        self.splits = entry.get("splits", False)
        self.workers = entry.get("workers", 1)
        self.idle_clients = entry.get("idle_clients", 10_000)
        self.has_metrics = entry.get("metrics", False)
        self.is_direct = "command" not in entry
        for name, path in tools.items():
            if path is None and f"${{{name}}}" in str(entry):
                raise Missing(f"{name} is not on this machine")
        self.version = self._version()

    def _version(self):
        if "version" not in self.entry:
            return None
        command = [string.Template(word).substitute(self.tools) for word in self.entry["version"]]
        out = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        return (out.stdout + out.stderr).strip().partition("\n")[0]


class Launcher:
    """Starts systems before servers of a cluster, each with a port and a group of its own."""

    def __init__(self, cluster, groups, base_port):
        self.cluster = cluster
        self._groups = groups
        self._ports = itertools.cycle(range(base_port, base_port + PORTS))
        self._numbers = itertools.count()

    def start(self, system, servers):
        """A context manager of the started system, which is ready for clients."""
        if system.is_direct:
            return Direct(system, servers)
        group = self._groups.group(f"{system.name}-{next(self._numbers)}")
        ports = [next(filter(_is_free, self._ports)) for _ in range(2)]
        return Running(system, servers, self.cluster, ports, group, self._groups)


def _is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class Direct:
    """The servers themselves, in a system's place."""

    pids = ()
    group = None
    metrics_address = None

    def __init__(self, system, servers):
        self.system = system
        self.addresses = [server.address for server in servers]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Running:
    """A started system."""

    def __init__(self, system, servers, cluster, ports, group, groups):
        self.system = system
        self.addresses = [f"127.0.0.1:{ports[0]}"]
        side_address = f"127.0.0.1:{ports[1]}"
        #: Where it tells what it counts, if it does.
        self.metrics_address = side_address if system.has_metrics else None
        self.group = group
        self._groups = groups
        self._servers = servers
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix=f"bench-{system.name}-"))
        self._log = self._folder / "log"
        self._process = None
        self._names = {
            **system.tools,
            "dir": str(self._folder),
            "host": "127.0.0.1",
            "port": str(ports[0]),
            "address": self.addresses[0],
            "side_address": side_address,
            "primary": cluster.servers[0].address,
            "certificate": cluster.certificate,
            "key": cluster.key,
            "user": cluster.user,
            "password": cluster.password,
            "monitor_user": cluster.monitor_user,
            "monitor_password": cluster.monitor_password,
        }

    @property
    def pids(self):
        return procs.children_of(self._process.pid)

    def __enter__(self):
        try:
            self._launch()
            self._wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=STOPPED_WITHIN_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._groups.drop(self.group)
        shutil.rmtree(self._folder, ignore_errors=True)

    def log_end(self):
        """Its last words."""
        return self._log.read_text()[-2000:]

    def _launch(self):
        entry = self.system.entry
        for name, text in entry.get("settings", {}).items():
            self._names[name] = self._fill(text)
        for name, text in entry.get("lists", {}).items():
            text, separator = (text, "\n") if isinstance(text, str) else text
            self._names[name] = separator.join(self._fill(text, extra) for extra in self._each())
        for name, text in entry.get("files", {}).items():
            (self._folder / name).write_text(self._fill(text))
        environment = {key: self._fill(text) for key, text in entry.get("env", {}).items()}
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
                # Before it starts anything, so that all of it counts.
                preexec_fn=lambda: self.group.add(os.getpid()),
            )
        self.group.add(self._process.pid)

    def _command(self):
        words = []
        for word in self.system.entry["command"]:
            if isinstance(word, str):
                words.append(self._fill(word))
                continue
            for extra in self._each():
                words += [self._fill(part, extra) for part in word["each"]]
        return words

    def _each(self):
        for number, server in enumerate(self._servers):
            host, _, port = server.address.rpartition(":")
            tables = range(number + 1, cluster.TABLES + 1, len(self._servers))
            yield {
                "n": str(number),
                "server": server.address,
                "server_host": host,
                "server_port": port,
                "server_tables": ", ".join(f'"sbtest{table}"' for table in tables),
            }

    def _fill(self, text, extra=None):
        return string.Template(text).substitute(self._names, **(extra or {}))

    def _wait_ready(self):
        """Until it greets a client with a protocol's first packet."""
        deadline = time.monotonic() + READY_WITHIN_SECONDS
        while not greets(self.addresses[0]):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.system.name} did not start:\n{self.log_end()}")
            time.sleep(0.05)


def greets(address):
    """Whether a MySQL server's greeting (protocol version 10) comes from there."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2) as client:
            client.settimeout(2)
            greeting = client.recv(5)
            return len(greeting) == 5 and greeting[4] == 10
    except OSError:
        return False

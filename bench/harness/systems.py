"""The systems under test, read from systems.toml, started and stopped.

Knows nothing of what is measured on them.
"""

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

from harness import procs

READY_WITHIN_SECONDS = 15


class Missing(Exception):
    """A tool that the system needs is not on this machine."""


def load(path, cluster, places):
    """All systems of the file whose tools exist, and the names of those left out."""
    table = tomllib.loads(pathlib.Path(path).read_text())
    systems, left_out = [], {}
    for entry in table["system"]:
        try:
            systems.append(System(entry, _tools(table["tools"], places), cluster))
        except Missing as error:
            left_out[entry["name"]] = str(error)
    return systems, left_out


def _tools(table, places):
    found = {}
    for name, candidates in table.items():
        paths = [string.Template(path).substitute(places) for path in candidates]
        found[name] = next((path for path in paths if os.access(path, os.X_OK)), None)
    return found


class System:
    """One entry of systems.toml against one cluster."""

    def __init__(self, entry, tools, cluster):
        self.name = entry["name"]
        self.entry = entry
        self.cluster = cluster
        self.tools = tools
        for name, path in tools.items():
            if path is None and "${%s}" % name in str(entry):
                raise Missing(f"{name} is not on this machine")
        self.version = self._version()

    @property
    def is_direct(self):
        return "command" not in self.entry

    def _version(self):
        if "version" not in self.entry:
            return None
        command = [string.Template(word).substitute(self.tools) for word in self.entry["version"]]
        out = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        return (out.stdout + out.stderr).strip().partition("\n")[0]

    def start(self, port):
        """Starts it; the result is a context manager, ready for clients."""
        if self.is_direct:
            return Direct(self)
        return Running(self, port)


class Direct:
    """The servers themselves, in a system's place."""

    def __init__(self, system):
        self.name = system.name
        self.addresses = system.cluster.servers
        self.pids = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Running:
    """A started system."""

    def __init__(self, system, port):
        self.name = system.name
        self.addresses = [f"127.0.0.1:{port}"]
        self._system = system
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix=f"bench-{system.name}-"))
        self._log = self._folder / "log"
        self._process = None
        self._names = {
            **system.tools,
            "dir": str(self._folder),
            "host": "127.0.0.1",
            "port": str(port),
            "address": self.addresses[0],
            "primary": system.cluster.servers[0],
            "monitor_user": system.cluster.monitor_user,
            "monitor_password": system.cluster.monitor_password,
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
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _launch(self):
        entry = self._system.entry
        for name, text in entry.get("lists", {}).items():
            self._names[name] = "\n".join(self._fill(text, extra) for extra in self._each())
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
            )

    def _command(self):
        words = []
        for word in self._system.entry["command"]:
            if isinstance(word, str):
                words.append(self._fill(word))
                continue
            for extra in self._each():
                words += [self._fill(part, extra) for part in word["each"]]
        return words

    def _each(self):
        servers = self._system.cluster.servers
        return [{"n": str(n), "server": server} for n, server in enumerate(servers)]

    def _fill(self, text, extra=None):
        return string.Template(text).substitute(self._names, **(extra or {}))

    def _wait_ready(self):
        """Until it greets a client with a protocol's first packet."""
        deadline = time.monotonic() + READY_WITHIN_SECONDS
        while not greets(self.addresses[0]):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.1)


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

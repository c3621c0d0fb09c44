"""CPU caps and CPU accounts by control groups, of either version.

Each server and each system gets a group. Where groups cannot be had, nothing is capped, which
the results must say (`Cgroups.missing`), and accounts come from /proc instead.
"""

import contextlib
import os
import pathlib
import time

from harness import procs

#: Short, so that a capped process stands still often and briefly, not long and rarely.
PERIOD_US = 20_000


class Cgroups:
    """All groups of one run, gone when the block ends."""

    def __init__(self):
        self.version, self._roots, self.missing = None, [], None
        self._groups = []
        try:
            self.version, parents = _find()
            self._roots = [self._make_root(parent) for parent in parents]
        except OSError as error:
            self.missing = str(error)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for group in self._groups:
            group.remove()
        for root in self._roots:
            _remove(root)

    def group(self, name):
        group = Group(self.version, [root / name for root in self._roots])
        self._groups.append(group)
        return group

    def drop(self, group):
        group.remove()
        self._groups.remove(group)

    def _make_root(self, parent):
        root = parent / f"millrace-bench-{os.getpid()}"
        if self.version == 2:
            (parent / "cgroup.subtree_control").write_text("+cpu")
        root.mkdir()
        if self.version == 2:
            (root / "cgroup.subtree_control").write_text("+cpu")
        return root


def _find():
    """(version, parents): version 1 has a tree for caps and one, maybe the same, for accounts."""
    trees = {}
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        mount = pathlib.Path(mount)
        if kind == "cgroup":
            for controller in ("cpu", "cpuacct"):
                if controller in options.split(","):
                    trees[controller] = mount
        elif kind == "cgroup2" and "cpu" in (mount / "cgroup.controllers").read_text().split():
            return 2, [mount]
    if len(trees) < 2:
        raise OSError("no control groups for CPU are mounted")
    return 1, sorted(set(trees.values()))


class Group:
    """Processes whose CPU is counted, and capped when asked."""

    def __init__(self, version, folders):
        self._version = version
        self._folders = folders
        self._pids = []
        for folder in folders:
            folder.mkdir()

    def add(self, pid):
        """The process and what it starts from now on."""
        self._pids.append(pid)
        for folder in self._folders:
            (folder / "cgroup.procs").write_text(str(pid))

    def cap(self, cores):
        """At most so many cores; None for no cap."""
        quota = int(cores * PERIOD_US) if cores else None
        for folder in self._folders:
            if self._version == 2:
                (folder / "cpu.max").write_text(f"{quota or 'max'} {PERIOD_US}")
            elif (folder / "cpu.cfs_quota_us").exists():
                (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (folder / "cpu.cfs_quota_us").write_text(str(quota or -1))

    def cpu(self):
        """What they have used since the group was made."""
        if not self._folders:
            return procs.cpu_of(child for pid in self._pids for child in procs.children_of(pid))
        if self._version == 2:
            used = _table(self._folders[0] / "cpu.stat")
            return procs.Cpu(*(used[f"{key}_usec"] / 1e6 for key in ("usage", "user", "system")))
        folder = next(folder for folder in self._folders if (folder / "cpuacct.usage").exists())
        modes = _table(folder / "cpuacct.stat")
        return procs.Cpu(
            int((folder / "cpuacct.usage").read_text()) / 1e9,
            modes["user"] / procs.TICKS_PER_SECOND,
            modes["system"] / procs.TICKS_PER_SECOND,
        )

    def remove(self):
        for folder in self._folders:
            _remove(folder)
        self._folders = []


def _table(path):
    return {key: int(value) for key, value in map(str.split, path.read_text().splitlines())}


def _remove(folder):
    """A group can go when it is empty; a process that has just ended counts for a moment yet."""
    for _ in range(100):
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (folder.parent / "cgroup.procs").write_text(pid)
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.02)

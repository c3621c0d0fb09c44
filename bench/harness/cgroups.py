"""CPU caps and CPU accounts by control groups, of either version.

Each server and each system gets a group. Counting must not change who runs when, so only a group that
is capped has a share of the CPU of its own; but version 1 may count and cap in one tree, where the one
brings the other. Where groups cannot be had, nothing is capped, which the results must say
(`Cgroups.missing`), and accounts come from /proc instead.
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
        self.version, self.missing = None, None
        #: Where groups are counted, and where they are capped; of version 2 the same.
        self._accounts = self._caps = None
        self._groups = []
        self._capped = set()
        try:
            self.version, accounts, caps = _find()
            self._accounts = self._make_root(accounts)
            self._caps = self._accounts if caps == accounts else self._make_root(caps)
        except OSError as error:
            self.missing = str(error)
            self._remove_roots()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for group in self._groups:
            group.remove()
        self._remove_roots()

    def group(self, name):
        if self._accounts is None:
            group = Group(self, None, None)
        else:
            group = Group(self, self._accounts / name, self._caps / name)
        self._groups.append(group)
        return group

    def drop(self, group):
        group.remove()
        self._groups.remove(group)

    def will_cap(self, group, capped):
        """Version 2 gives all groups of a run shares of their own, or none."""
        before = bool(self._capped)
        (self._capped.add if capped else self._capped.discard)(group)
        if self.version == 2 and before != bool(self._capped):
            sign = "+" if self._capped else "-"
            (self._accounts / "cgroup.subtree_control").write_text(f"{sign}cpu")

    def _remove_roots(self):
        for root in {self._accounts, self._caps} - {None}:
            _remove(root)
        self._accounts = self._caps = None

    def _make_root(self, parent):
        root = parent / f"millrace-bench-{os.getpid()}"
        if self.version == 2:
            (parent / "cgroup.subtree_control").write_text("+cpu")
        root.mkdir()
        return root


class Uncounted:
    """In place of control groups, where nobody asks what something costs."""

    def group(self, _name):
        return Group(self, None, None)

    def drop(self, _group):
        pass


def _find():
    """(version, accounts, caps): version 1 has a tree for each, maybe the same one."""
    trees = {}
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        mount = pathlib.Path(mount)
        if kind == "cgroup":
            for controller in ("cpu", "cpuacct"):
                if controller in options.split(","):
                    trees[controller] = mount
        elif kind == "cgroup2" and "cpu" in (mount / "cgroup.controllers").read_text().split():
            return 2, mount, mount
    if len(trees) < 2:
        raise OSError("no control groups for CPU are mounted")
    return 1, trees["cpuacct"], trees["cpu"]


class Group:
    """Processes whose CPU is counted, and capped when asked."""

    def __init__(self, groups, accounts, caps):
        self._groups = groups
        self._accounts = accounts
        self._caps = caps
        self._pids = []
        if accounts is not None:
            accounts.mkdir()

    def add(self, pid):
        """The process and what it starts from now on."""
        self._pids.append(pid)
        if self._accounts is not None:
            _move(pid, self._accounts)
            if self._caps.exists():
                _move(pid, self._caps)

    def cap(self, cores):
        """At most so many cores; None for no cap."""
        if self._accounts is None:
            return
        if cores is None:
            self._uncap()
            return
        self._groups.will_cap(self, True)
        quota = int(cores * PERIOD_US)
        if self._groups.version == 2:
            (self._caps / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            return
        self._caps.mkdir(exist_ok=True)
        (self._caps / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (self._caps / "cpu.cfs_quota_us").write_text(str(quota))
        for pid in (self._accounts / "cgroup.procs").read_text().split():
            _move(pid, self._caps)

    def _uncap(self):
        if self._caps != self._accounts:
            if self._caps.exists():
                _remove(self._caps)
        elif self._groups.version == 1:
            (self._caps / "cpu.cfs_quota_us").write_text("-1")
        elif (self._caps / "cpu.max").exists():
            (self._caps / "cpu.max").write_text(f"max {PERIOD_US}")
        self._groups.will_cap(self, False)

    def cpu(self):
        """What they have used since the group was made."""
        if self._accounts is None:
            return procs.cpu_of(child for pid in self._pids for child in procs.children_of(pid))
        if self._groups.version == 2:
            used = _table(self._accounts / "cpu.stat")
            return procs.Cpu(*(used[f"{key}_usec"] / 1e6 for key in ("usage", "user", "system")))
        modes = _table(self._accounts / "cpuacct.stat")
        return procs.Cpu(
            int((self._accounts / "cpuacct.usage").read_text()) / 1e9,
            modes["user"] / procs.TICKS_PER_SECOND,
            modes["system"] / procs.TICKS_PER_SECOND,
        )

    def remove(self):
        if self._accounts is None:
            return
        self._uncap()
        _remove(self._accounts)
        self._accounts = None


def _move(pid, folder):
    """A process that has ended meanwhile is none."""
    with contextlib.suppress(ProcessLookupError):
        (folder / "cgroup.procs").write_text(str(pid))


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

"""What the operating system says of a process: CPU, memory, connections.

Reads /proc only; never starts or ends anything.
"""

import os
import pathlib
from dataclasses import dataclass

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cpu:
    """CPU time in seconds, of all threads together."""

    user: float = 0.0
    system: float = 0.0

    @property
    def total(self):
        return self.user + self.system

    def __add__(self, other):
        return Cpu(self.user + other.user, self.system + other.system)

    def __sub__(self, other):
        return Cpu(self.user - other.user, self.system - other.system)


def cpu_of(pids):
    """Of the processes, threads that have ended included (proc(5), stat)."""
    total = Cpu()
    for pid in pids:
        # The command's name is in parentheses and may hold anything.
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += Cpu(int(fields[11]) / TICKS_PER_SECOND, int(fields[12]) / TICKS_PER_SECOND)
    return total


def memory_of(pids):
    """Resident memory in KiB: `rss`, and `pss` with shared pages divided by their users."""
    rss = pss = 0
    for pid in pids:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            key, _, value = line.partition(":")
            if key == "Rss":
                rss += int(value.split()[0])
            elif key == "Pss":
                pss += int(value.split()[0])
    return {"rss": rss, "pss": pss}


def children_of(pid):
    """The process and all that descend from it."""
    found = [pid]
    for parent in found:
        for task in pathlib.Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:
                continue
    return found


def connections_to(pids, ports):
    """How many established TCP connections the processes hold to the local ports."""
    inodes = set()
    for pid in pids:
        for descriptor in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            try:
                link = os.readlink(descriptor)
            except OSError:
                continue
            if link.startswith("socket:["):
                inodes.add(link[8:-1])
    return sum(1 for inode, port in _established() if port in ports and inode in inodes)


def _established():
    """(inode, remote port) of each established connection (proc(5), net/tcp)."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = pathlib.Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "01":
                yield fields[9], int(fields[2].rpartition(":")[2], 16)


def load_average():
    return os.getloadavg()[0]

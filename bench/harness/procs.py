"""What the operating system says of processes and of the machine.

Reads /proc only; never starts or ends anything.
"""

import os
import pathlib
import platform
from dataclasses import dataclass

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cpu:
    """CPU time in seconds. The kernel counts the total exactly, and by sampling in which mode."""

    total: float = 0.0
    sampled_user: float = 0.0
    sampled_system: float = 0.0

    @property
    def user(self):
        sampled = self.sampled_user + self.sampled_system
        return self.total * self.sampled_user / sampled if sampled else 0.0

    @property
    def system(self):
        return self.total - self.user

    def __add__(self, other):
        return Cpu(
            self.total + other.total,
            self.sampled_user + other.sampled_user,
            self.sampled_system + other.sampled_system,
        )

    def __sub__(self, other):
        return Cpu(
            self.total - other.total,
            self.sampled_user - other.sampled_user,
            self.sampled_system - other.sampled_system,
        )


def cpu_of(pids):
    """Of the processes, threads that have ended included, in ticks (proc(5), stat)."""
    total = Cpu()
    for pid in pids:
        # The command's name is in parentheses and may hold anything.
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        user, system = (int(field) / TICKS_PER_SECOND for field in fields[11:13])
        total += Cpu(user + system, user, system)
    return total


def threads_of(pids):
    """{thread: CPU seconds that it has used} of the processes (proc(5), schedstat)."""
    found = {}
    for pid in pids:
        for task in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                found[task.parent.name] = int(task.read_text().split()[0]) / 1e9
            except OSError:
                continue  # it has just ended
    return found


def busy_seconds():
    """CPU time that anybody on this machine has used, on all cores."""
    user, nice, system, _, _, irq, softirq = map(
        int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return (user + nice + system + irq + softirq) / TICKS_PER_SECOND


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


def forget_peaks(pids):
    """Peak memory counts from now on (proc(5), clear_refs)."""
    for pid in pids:
        try:
            pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")
        except OSError:
            continue  # then it counts from the start of the process


def peak_kib_of(pids):
    total = 0
    for pid in pids:
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1])
    return total


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


def machine():
    """What results are to be read with."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
    }


def _cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()

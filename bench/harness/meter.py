"""What a stretch of load cost: CPU of the proxy, of each server and of the whole machine."""

import time

from harness import procs


class Meter:
    """Reads the accounts of a target; `stop` gives what they grew by, as often as it is asked."""

    def __init__(self, target):
        self._target = target
        procs.forget_peaks(target.running.pids)
        self._before = self._read()

    def _read(self):
        group = self._target.running.group
        return (
            time.monotonic(),
            procs.busy_seconds(),
            group.cpu() if group else procs.Cpu(),
            [server.group.cpu() for server in self._target.servers],
            procs.threads_of(self._target.running.pids),
        )

    def stop(self):
        began, busy, proxy, servers, threads = self._before
        ended, busy_after, proxy_after, servers_after, threads_after = self._read()
        return Spent(
            ended - began,
            busy_after - busy,
            proxy_after - proxy,
            [after - before for before, after in zip(servers, servers_after, strict=True)],
            [used - threads.get(thread, 0) for thread, used in threads_after.items()],
        )


class Spent:
    """CPU over a stretch of time."""

    def __init__(self, seconds, busy, proxy, servers, threads):
        self.seconds, self.busy, self.proxy, self.servers = seconds, busy, proxy, servers
        self.threads = threads

    def cores(self):
        """How many cores each kept busy."""
        each = [round(server.total / self.seconds, 4) for server in self.servers]
        return {
            "proxy_cores": self.proxy.total / self.seconds,
            "servers_cores": sum(each),
            "server_cores": each,
            "machine_cores": self.busy / self.seconds,
            **({"busiest_percent": max(self.threads) / sum(self.threads) * 100} if any(self.threads) else {}),
        }

    def per(self, count):
        """µs for each of what was done so many times."""
        if not count:
            return {}
        scale = 1e6 / count
        return {
            "proxy_us": self.proxy.total * scale,
            "proxy_user_us": self.proxy.user * scale,
            "proxy_system_us": self.proxy.system * scale,
            "servers_us": sum(server.total for server in self.servers) * scale,
        }

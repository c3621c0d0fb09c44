"""What each figure is called, in which unit, and with how many digits it is worth reading."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    title: str
    unit: str = ""
    digits: int = 1
    #: Of all rounds together.
    is_total: bool = False

    @property
    def heading(self):
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def text(self, value):
        return f"{value:,.{self.digits}f}"


METRICS = {
    "qps": Metric("queries", "1/s", 0),
    "events_per_s": Metric("events", "1/s", 0),
    "reads_per_s": Metric("reads", "1/s", 0),
    "writes_per_s": Metric("writes", "1/s", 0),
    "connects_per_s": Metric("connections", "1/s", 0),
    "mean_ms": Metric("mean", "ms", 2),
    "p50_ms": Metric("p50", "ms", 2),
    "p95_ms": Metric("p95", "ms", 2),
    "p99_ms": Metric("p99", "ms", 2),
    "mean_us": Metric("mean", "µs", 0),
    "p50_us": Metric("p50", "µs", 0),
    "p95_us": Metric("p95", "µs", 0),
    "p99_us": Metric("p99", "µs", 0),
    "added_p50_us": Metric("added to direct at p50", "µs", 0),
    "added_p95_us": Metric("added to direct at p95", "µs", 0),
    "proxy_us": Metric("proxy CPU each", "µs"),
    "proxy_user_us": Metric("of that user", "µs"),
    "proxy_system_us": Metric("system", "µs"),
    "proxy_us_per_mb": Metric("proxy CPU per MB", "µs", 0),
    "servers_us": Metric("servers' CPU each", "µs", 0),
    "proxy_cores": Metric("proxy CPU", "cores", 2),
    "busiest_percent": Metric("of that the busiest thread", "%", 0),
    "servers_cores": Metric("servers' CPU", "cores", 2),
    "machine_cores": Metric("machine's CPU", "cores", 2),
    "peak_mib": Metric("peak resident memory", "MiB"),
    "server_connections": Metric("server connections", "", 0),
    "clients": Metric("clients", "", 0),
    "kib_per_client": Metric("resident memory per client", "KiB"),
    "kib_per_client_pss": Metric("proportional", "KiB"),
    "idle_cpu_percent": Metric("idle CPU", "% of a core", 2),
    "login_seconds": Metric("to log all in", "s", 1),
    "hits_percent": Metric("reads out of memory", "%"),
    "fills_percent": Metric("statements whose result was kept", "%"),
    "checked": Metric("reads checked", "", 0, is_total=True),
    "stale": Metric("stale", "", 0, is_total=True),
    "late": Metric("late by a replica's lag", "", 0, is_total=True),
    "seen_p50_ms": Metric("seen after, p50", "ms", 2),
    "seen_p95_ms": Metric("p95", "ms", 2),
    "seen_p99_ms": Metric("p99", "ms", 2),
    "seen_max_ms": Metric("at most", "ms", 2),
    "written": Metric("writes", "", 0, is_total=True),
    "unseen": Metric("never seen", "", 0, is_total=True),
    "rows_per_s": Metric("rows written", "1/s", 0),
    "row_us": Metric("proxy CPU each row", "µs", 2),
    "added_mib": Metric("resident memory added", "MiB"),
    "cache_mib": Metric("the cache's own account", "MiB"),
    "errors": Metric("errors", "", 0, is_total=True),
    "reconnects": Metric("reconnects", "", 0, is_total=True),
}

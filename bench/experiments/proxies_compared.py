"""HAProxy, ProxySQL and MySQL Router compared on small cores: many connections, capped rate and not.

Published: capped, all level until Router stops serving at 1,024 to 2,048 threads; uncapped, HAProxy
8.2K reads a second on half its core, ProxySQL 6.6K and saturated at 256 threads, Router under 1K.
"""

from harness.experiment import Chart, Experiment, Point
from harness.load import Sysbench

THREADS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
QUICK_THREADS = (256,)
#: At most one core, as published; and a fraction of one, so that the proxy is the bottleneck.
CAPS = (1.0, 0.25)
RATE = 100
#: The bare greeter, which reads nothing, cannot tell prepared statements apart: where it shows what
#: lending connections takes at the least, statements are text.
TEXT_THREADS = (128, 256, 1024)

COLUMNS = (
    "reads_per_s",
    "events_per_s",
    "mean_ms",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "proxy_us",
    "proxy_cores",
    "servers_us",
    "peak_mib",
    "server_connections",
    "reconnects",
    "errors",
)

NOTES = (
    "sysbench's read-only load without transactions (14 reads per event), each client connecting "
    "anew after every 10 events; on one table, because sysbench prepares its statements for each "
    "table in each thread, and with 4,096 of them would spend its 30 s for logging in on that.",
    "Short rounds see few reconnects where threads are many: the column tells.",
    "A primary with two asynchronous replicas stands for the published three members of a group: "
    "nothing is written, so replication has no part in it.",
)


def point(group, cores, threads, *options):
    return Point(
        f"{group}, {threads:,} threads",
        Sysbench(
            "reconnect",
            clients=threads,
            options=("--skip-trx=on", "--tables=1", *options),
            patience=60 + threads // 32,
        ),
        group=group,
        x=threads,
        proxy_cores=cores,
        seconds_min=30 if threads > 512 else 10,
        quick=threads in QUICK_THREADS and group == f"{CAPS[-1]:g} core",
    )


def points(*options):
    return tuple(point(f"{cores:g} core", cores, threads, *options) for cores in CAPS for threads in THREADS)


TEXT_POINTS = tuple(
    point(f"{CAPS[-1]:g} core, text", CAPS[-1], threads, "--db-ps-mode=disable") for threads in TEXT_THREADS
)


T1 = Experiment(
    id="T1",
    title="Many connections at a capped rate",
    question=f"How many connections does a proxy serve, at {RATE} events a second in all?",
    points=points(f"--rate={RATE}"),
    columns=COLUMNS,
    charts=(
        Chart("p95_ms", "threads", log_x=True, log_y=True),
        Chart("proxy_cores", "threads", log_x=True),
        Chart("reads_per_s", "threads", log_x=True),
    ),
    notes=NOTES,
)

T2 = Experiment(
    id="T2",
    title="Many connections with no cap on the rate",
    question="How many connections does a proxy serve, as fast as it can?",
    points=points() + TEXT_POINTS,
    columns=COLUMNS,
    charts=(
        Chart("reads_per_s", "threads", log_x=True),
        Chart("proxy_us", "threads", log_x=True),
        Chart("p95_ms", "threads", log_x=True, log_y=True),
    ),
    notes=NOTES,
)

EXPERIMENTS = (T1, T2)

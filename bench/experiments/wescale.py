"""WeSQL WeScale's experiments: the proxy's cost, the split's gain, many clients on few connections.

Published: split off, 0.62 of direct's QPS at 4 threads, level from 125; split on, 1.79 times direct's
at 200; over 5,000 clients where MySQL takes 100.
"""

from harness.cluster import Spec
from harness.experiment import Chart, Experiment, Point
from harness.load import Idle, Sysbench

THREADS = (4, 8, 16, 25, 50, 75, 100, 125, 150, 175, 200)
QUICK_THREADS = (200,)
SERVER_CORES = 0.25

COLUMNS = (
    "qps",
    "reads_per_s",
    "writes_per_s",
    "mean_ms",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "proxy_us",
    "servers_us",
    "servers_cores",
    "peak_mib",
    "server_connections",
    "errors",
    "reconnects",
)

MIXED = tuple(
    Point(
        f"mixed, {threads} threads",
        Sysbench("read_write", clients=threads, options=("--skip-trx=on",), writes=True),
        group="mixed",
        x=threads,
        server_cores=SERVER_CORES,
        quick=threads in QUICK_THREADS,
    )
    for threads in THREADS
)

W1 = Experiment(
    id="W1",
    title="The proxy's cost, split off",
    question="What does the proxy cost where everything runs on the primary?",
    points=MIXED,
    columns=COLUMNS,
    charts=(
        Chart("qps", "threads"),
        Chart("p95_ms", "threads"),
        Chart("proxy_us", "threads"),
        Chart("peak_mib", "threads"),
    ),
    notes=("A primary with two replicas; sysbench's balanced read-write without transactions.",),
)

W2 = Experiment(
    id="W2",
    title="The split's gain",
    question="What do three servers gain that all serve reads?",
    points=(
        *MIXED,
        *(
            Point(
                f"reads, {servers} server{'s' * (servers > 1)}",
                Sysbench(clients=256),
                group="reads",
                x=servers,
                servers=servers,
                server_cores=SERVER_CORES,
            )
            for servers in (1, 3)
        ),
    ),
    columns=COLUMNS,
    charts=(Chart("qps", "threads"), Chart("mean_ms", "threads"), Chart("servers_us", "threads")),
    notes=(
        "Mixed: as in W1; what does not split runs it on the primary alone. Reads: point selects "
        "of 256 clients, on the primary alone and on all three.",
    ),
)

W3 = Experiment(
    id="W3",
    title="Many clients on few connections",
    question="How many clients are served where each server takes 100 connections?",
    points=(
        *(
            Point(
                f"{clients:,} busy clients",
                Sysbench(clients=clients, patience=180),
                group="busy",
                x=clients,
                quick=clients == 5_000,
            )
            for clients in (100, 1_000, 5_000, 10_000)
        ),
        Point("10,000 idle clients", Idle(10_000), group="idle", quick=False),
    ),
    columns=(
        "qps",
        "p50_ms",
        "p95_ms",
        "p99_ms",
        "proxy_us",
        "server_connections",
        "clients",
        "kib_per_client",
        "idle_cpu_percent",
        "peak_mib",
        "errors",
        "reconnects",
    ),
    charts=(Chart("qps", "clients"), Chart("server_connections", "clients")),
    cluster=Spec(max_connections=100),
    notes=(
        "max_connections = 100 on each server. Millrace has 30 connections to each of the three, and on "
        "each one per account that logs in and one for its monitor. Point selects over text.",
    ),
)

EXPERIMENTS = (W1, W2, W3)

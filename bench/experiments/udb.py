"""UCloud UDB's experiments: do reads grow with the nodes, and how does ProxySQL compare on two?

Published: 50K, 100K and 150K QPS on one, two and three nodes; 100K against ProxySQL's 75K on two.
"""

from harness.experiment import Chart, Experiment, Point
from harness.load import Sysbench

THREADS = (64, 128, 192, 256)
SERVER_CORES = 0.25

COLUMNS = (
    "qps",
    "mean_ms",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "proxy_us",
    "proxy_cores",
    "servers_us",
    "servers_cores",
    "machine_cores",
    "server_connections",
    "errors",
)


def points(nodes, quick_nodes):
    return tuple(
        Point(
            f"{servers} server{'s' * (servers > 1)}, {threads} threads",
            Sysbench(clients=threads),
            group=f"{threads} threads",
            x=servers,
            servers=servers,
            server_cores=SERVER_CORES,
            quick=threads == THREADS[-1] and servers in quick_nodes,
        )
        for threads in THREADS
        for servers in nodes
    )


U1 = Experiment(
    id="U1",
    title="Reads on one to three nodes",
    question="Do reads grow with the nodes, the primary serving reads too?",
    points=points((1, 2, 3), quick_nodes=(1, 3)),
    columns=COLUMNS,
    charts=(Chart("qps", "servers"), Chart("servers_us", "servers")),
    notes=("Point selects over text. At least 64 clients for each node: judged at 256 threads.",),
)

U2 = Experiment(
    id="U2",
    title="Two equal read nodes",
    question="What do two equal nodes serve, beside other proxies?",
    points=points((1, 2), quick_nodes=(2,)),
    columns=COLUMNS,
    charts=(Chart("qps", "servers"), Chart("servers_us", "servers")),
    notes=(
        "Published against ProxySQL. Where systems.toml has no entry for it or it is not on the "
        "machine, it is left out, and Millrace stands beside what is there.",
    ),
)

EXPERIMENTS = (U1, U2)

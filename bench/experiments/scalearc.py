"""ScaleArc's experiments on Aurora: does it add latency, does it scale over nodes by balancing?

Published: QPS through the proxy as direct on one node whose CPU is used up; 18,000, 27,500, 31,500
and 34,000 QPS on one to four nodes.
"""

from harness.cluster import Spec
from harness.experiment import Chart, Experiment, Point
from harness.load import Bursts, Sysbench

SERVER_CORES = 0.25

S1 = Experiment(
    id="S1",
    title="Latency on one node",
    question="Does it add latency, alone and where the server is at its limit?",
    points=(
        Point("one client", Bursts(), group="one client"),
        Point(
            "mixed, 64 clients",
            Sysbench("read_write", options=("--skip-trx=on",), writes=True),
            group="mixed",
            server_cores=SERVER_CORES,
        ),
    ),
    columns=(
        "p50_us",
        "p95_us",
        "p99_us",
        "added_p50_us",
        "reads_per_s",
        "writes_per_s",
        "mean_ms",
        "p95_ms",
        "proxy_us",
        "proxy_cores",
        "servers_us",
        "servers_cores",
        "errors",
    ),
    charts=(Chart("added_p50_us"), Chart("reads_per_s"), Chart("writes_per_s")),
    cluster=Spec(replicas=0),
    notes=(
        "One client: point selects, 50 to each system in turn, the server with all the CPU it "
        "wants. Mixed: sysbench's balanced read-write without transactions, on 12 tables of 10,000 "
        "rows (published: 64).",
    ),
)

S2 = Experiment(
    id="S2",
    title="Balancing over nodes",
    question="Do reads grow with the nodes, each query balanced for itself?",
    points=tuple(
        Point(
            f"{servers} server{'s' * (servers > 1)}",
            Sysbench(clients=256),
            group="256 clients",
            x=servers,
            servers=servers,
            server_cores=SERVER_CORES,
            quick=servers in (1, 4),
        )
        for servers in (1, 2, 3, 4)
    ),
    columns=(
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
    ),
    charts=(Chart("qps", "servers"), Chart("servers_us", "servers"), Chart("p95_ms", "servers")),
    cluster=Spec(replicas=3),
    notes=(
        "Point selects over text; the primary serves reads as well.",
        "By table: a rule sends the reads of each of the twelve tables to a server of its own, so that a "
        "client moves with nearly every read. At level session each move asks the server that it read "
        "from last how far it is; at level eventual, as with rivals' rules, it does not.",
    ),
)

EXPERIMENTS = (S1, S2)

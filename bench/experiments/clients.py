"""What do clients cost? Idle ones, ones that come and go, many busy ones; and do workers scale?"""

from harness.experiment import Chart, Experiment, Point
from harness.load import Connects, Idle, Sysbench

IDLE = Experiment(
    id="IDLE",
    title="Idle clients",
    question="What memory and CPU do 10,000 clients take that do nothing?",
    points=(Point("idle clients", Idle(10_000)),),
    columns=(
        "clients",
        "kib_per_client",
        "kib_per_client_pss",
        "idle_cpu_percent",
        "peak_mib",
        "server_connections",
        "login_seconds",
        "errors",
    ),
    charts=(Chart("kib_per_client"),),
    notes=(
        "Each client logged in over plain TCP and ran a query. A process has 20,000 files here, "
        "so systems with a server connection for each client get 5,000 clients.",
    ),
)

CONNECT = Experiment(
    id="CONNECT",
    title="New connections",
    question="How many clients a second can connect, log in, run one query and close?",
    points=(Point("32 at once", Connects(32)),),
    columns=(
        "connects_per_s",
        "mean_ms",
        "p50_ms",
        "p95_ms",
        "p99_ms",
        "proxy_us",
        "proxy_user_us",
        "proxy_system_us",
        "servers_us",
        "machine_cores",
        "peak_mib",
        "errors",
    ),
    charts=(Chart("connects_per_s"), Chart("proxy_us")),
)

BUSY = Experiment(
    id="BUSY",
    title="Many busy clients on few connections",
    question="What do 512 busy clients get done on 100 server connections?",
    points=(
        Point("512 clients", Sysbench(clients=512), quick=False),
        Point("512 clients, servers capped", Sysbench(clients=512), server_cores=0.25),
    ),
    columns=(
        "qps",
        "mean_ms",
        "p50_ms",
        "p95_ms",
        "p99_ms",
        "server_connections",
        "proxy_us",
        "servers_us",
        "servers_cores",
        "machine_cores",
        "errors",
        "reconnects",
    ),
    charts=(Chart("qps"), Chart("p95_ms")),
    notes=(
        "Point selects over text. Millrace has 30 connections to each of three servers, which all "
        "serve reads, and on each one per account that logs in and one for its monitor; the bare greeter has a "
        "hundred, the others one for each client.",
        "Uncapped, load, servers and proxy share the machine's cores, and nothing that costs CPU "
        "can keep up with direct connections unless the servers save as much. With the servers "
        "capped at a quarter core each they are the scarce thing, as where each has a machine.",
    ),
)

WORKERS = Experiment(
    id="WORKERS",
    title="Two workers against one",
    question="Do two workers do twice the work of one?",
    points=(Point("128 clients", Sysbench(clients=128), proxy_cores=0.15),),
    columns=(
        "qps",
        "p50_ms",
        "p95_ms",
        "proxy_us",
        "proxy_cores",
        "busiest_percent",
        "servers_us",
        "machine_cores",
        "errors",
    ),
    charts=(Chart("qps"),),
    by_name_only=True,
    notes=(
        "On a machine whose cores servers and load need as well, two workers cannot have a core "
        "each. So the proxy is capped, at 0.15 core with one worker and 0.30 with two: it is the "
        "bottleneck, and all else has room. What this shows is that workers do not stand in each "
        "other's way at that rate; it cannot show what they do to each other at full speed. The cap is "
        "for both together, so what the busiest thread had of it tells whether they share the work evenly.",
    ),
)

EXPERIMENTS = (IDLE, CONNECT, BUSY, WORKERS)

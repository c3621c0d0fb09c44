"""What does a statement cost? CPU for each kind of it, for large results, and time alone."""

from harness.cluster import Spec
from harness.experiment import Chart, Experiment, Point
from harness.load import Bursts, Sysbench

NO_TRANSACTIONS = ("--skip-trx=on",)
#: sysbench's four kinds of range reads, of 100 rows each, and nothing else.
RANGES = ("--skip-trx=on", "--point-selects=0")

COLUMNS = (
    "qps",
    "mean_ms",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "proxy_us",
    "proxy_user_us",
    "proxy_system_us",
    "servers_us",
    "server_connections",
    "peak_mib",
    "machine_cores",
    "errors",
    "reconnects",
)

CPU = Experiment(
    id="CPU",
    title="CPU per statement",
    question="What CPU does the proxy spend on each statement, in which mode, and the servers?",
    points=(
        Point("point selects, 64 clients", Sysbench()),
        Point("point selects, 256 clients", Sysbench(clients=256), quick=False),
        Point("prepared point selects, 64 clients", Sysbench(prepared=True)),
        Point(
            "read-write, 64 clients",
            Sysbench("read_write", options=NO_TRANSACTIONS, writes=True),
        ),
        Point(
            "prepared read-write, 64 clients",
            Sysbench("read_write", options=NO_TRANSACTIONS, writes=True, prepared=True),
            quick=False,
        ),
        Point(
            "read-write in transactions, 64 clients",
            Sysbench("oltp_read_write", writes=True),
            quick=False,
        ),
        Point(
            "prepared read-write in transactions, 64 clients",
            Sysbench("oltp_read_write", writes=True, prepared=True),
            quick=False,
        ),
        Point(
            "range reads, 64 clients",
            Sysbench("oltp_read_only", options=RANGES),
            quick=False,
        ),
        Point(
            "prepared range reads, 64 clients",
            Sysbench("oltp_read_only", options=RANGES, prepared=True),
            quick=False,
        ),
    ),
    columns=COLUMNS,
    charts=(Chart("proxy_us"), Chart("proxy_user_us"), Chart("qps"), Chart("p95_ms")),
    notes=(
        "Read-write is sysbench's balanced read-write: per event 14 reads and 4 writes. What "
        "does not split runs it on the primary alone.",
    ),
)

ROWS = Experiment(
    id="ROWS",
    title="Results of many rows",
    question="What does the size of a result cost?",
    points=tuple(
        Point(
            f"{'prepared ' if prepared else ''}{f'{rows:,} rows' if rows > 1 else '1 row'}",
            Sysbench("rows", clients=16, rows=rows, prepared=prepared),
            quick=rows == 10_000 and not prepared,
        )
        for prepared in (False, True)
        for rows in (1, 100, 10_000)
    ),
    columns=(
        "qps",
        "p50_ms",
        "p95_ms",
        "proxy_us",
        "proxy_user_us",
        "proxy_system_us",
        "proxy_us_per_mb",
        "servers_us",
        "peak_mib",
        "errors",
    ),
    charts=(Chart("proxy_us_per_mb"),),
    notes=("Whole rows of sysbench's table, about 200 bytes each; 16 clients.",),
)

LATENCY = Experiment(
    id="LATENCY",
    title="Latency at one client",
    question="How much longer does a single query take?",
    points=(Point("one client", Bursts()),),
    columns=("mean_us", "p50_us", "p95_us", "p99_us", "added_p50_us", "added_p95_us", "errors"),
    charts=(Chart("added_p50_us"),),
    notes=("Point selects on one connection to each system, 50 to each in turn.",),
)

LEVELS = Experiment(
    id="LEVELS",
    title="What consistency costs",
    question="What does a read cost more for what it is guaranteed to see?",
    points=(
        Point("point selects, 64 clients", Sysbench()),
        Point("prepared point selects, 64 clients", Sysbench(prepared=True), quick=False),
    ),
    columns=COLUMNS,
    charts=(Chart("proxy_us"), Chart("p50_ms"), Chart("qps")),
    by_name_only=True,
    notes=("Replicas have caught up and nobody writes: what the promise costs when it is kept already.",),
)

#: sysbench's balanced read-write without transactions: each session's writes have its next reads wait.
BEHIND_WRITES = tuple(
    Point(
        f"mixed, {threads} threads",
        Sysbench("read_write", clients=threads, options=("--skip-trx=on",), writes=True),
        server_cores=0.25,
        quick=threads == 100,
    )
    for threads in (16, 100)
)

FRESH, FRESH_GALERA, FRESH_FILES = (
    Experiment(
        id=name,
        title=f"What consistency costs behind writes: {servers}",
        question="What does each level cost where every session reads what it has just written?",
        points=BEHIND_WRITES,
        columns=("qps", "p50_ms", "p95_ms", "proxy_us", "servers_us", "errors"),
        charts=(Chart("qps"), Chart("p95_ms")),
        cluster=cluster,
        notes=("A primary and two more servers; direct runs on the primary alone, where all of it is seen.",),
    )
    for name, servers, cluster in (
        ("FRESH", "GTIDs", Spec()),
        ("FRESH-GALERA", "Galera", Spec(topology="galera", family="mariadb")),
        ("FRESH-FILES", "MySQL without GTIDs", Spec(gtids=False, family="mysql")),
    )
)

EXPERIMENTS = (CPU, LEVELS, FRESH, FRESH_GALERA, FRESH_FILES, ROWS, LATENCY)

"""Results in memory: ScaleArc's experiment on its cache, and what such a cache costs.

Published: four times the reads with the cache on, where all of them hit, and where there are writes too.
"""

from harness.cache_load import Beside, Cached, Distinct, Seen, Statements
from harness.experiment import Chart, Experiment, Point
from harness.load import Bursts

SERVER_CORES = 0.25
#: With and without the cache, and nothing else.
BOTH = ("millrace-all", "millrace-cached")
#: The same, and what a read must see is held to its tables and keys.
BY_POSITION = ("millrace-all-position", "millrace-cached-position")
#: The first two again, but each result is kept at once.
FILLING = ("millrace-all", "millrace-filling")
#: Without the log, and with it: by table it is followed with the cache off, too.
FOLLOWING = ("millrace-all-position", "millrace-cached")
#: As systems.toml has it.
MEMORY_MIB = 64
WRITES = (1, 5, 20)
#: So few that what writes remove and reads bring back is in balance soon.
WRITTEN_ROWS = 2_000


def writes_point(percent, rand="uniform"):
    return f"{percent} % writes" if rand == "uniform" else f"{rand}, {percent} %"


ONE_CLIENT = Point(
    "one client",
    Bursts(rows=100),
    group="one client",
    only=("direct", "relay", "haproxy", *BOTH),
)
CAPPED = Point(
    "hits, servers capped",
    Cached(),
    group="hits",
    server_cores=SERVER_CORES,
    only=("direct", "relay", "haproxy", *BOTH),
)
UNCAPPED = Point("hits, no caps", Cached(), group="hits", only=("relay", *BOTH))

S3 = Experiment(
    id="S3",
    title="What the cache gains",
    question="How many more reads are served, where all of them hit, and where rows are written?",
    points=(
        CAPPED,
        UNCAPPED,
        ONE_CLIENT,
        *(
            Point(
                writes_point(percent, rand),
                Cached(
                    writes_percent=percent,
                    rand=rand,
                    hot_rows=WRITTEN_ROWS,
                    is_checked=True,
                    writes=True,
                ),
                group="writes",
                x=percent,
                server_cores=SERVER_CORES,
                only=(*BOTH, *BY_POSITION),
                quick=rand == "uniform",
            )
            for percent, rand in (*((percent, "uniform") for percent in WRITES), (5, "pareto"))
        ),
    ),
    columns=(
        "qps",
        "reads_per_s",
        "writes_per_s",
        "hits_percent",
        "p50_ms",
        "p95_ms",
        "p50_us",
        "p95_us",
        "added_p50_us",
        "proxy_us",
        "proxy_cores",
        "servers_us",
        "servers_cores",
        "machine_cores",
        "checked",
        "stale",
        "late",
        "errors",
    ),
    charts=(Chart("reads_per_s"), Chart("p95_ms"), Chart("proxy_us")),
    notes=(
        "Reads by primary key of one table, 64 clients, text; a primary with two replicas, the primary reading "
        "too. Rows are drawn uniformly but where pareto is said (sysbench's parameter, 0.2; it has no zipfian here).",
        "Hits: of 10,000 rows; all were read until all were in memory. Direct, the bare relay and HAProxy deal "
        "connections among the servers, and know no cache.",
        "One client: 100 rows in turn, 50 reads to each system in turn, the servers with all the CPU they want.",
        "Writes: of 2,000 rows; UPDATEs by primary key of the column that is read. So what they remove and reads "
        "bring back is soon in balance.",
        "Meanwhile other clients check rows that only grow. Sixteen read them, and rest for 8 ms after each read. They "
        "are written some five times a second through Millrace, and as often at the primary. A read is stale that "
        "shows less than was acknowledged through Millrace before it began, or less than its session has seen. So "
        "it is if it shows less than was acknowledged at the primary a second before. It is only late where the "
        "answer is not from memory, but from a replica that lags by more than that second.",
        'By table: routing.freshness = "table" on both sides, with the cache and without it.',
    ),
)

CACHE = Experiment(
    id="CACHE",
    title="What the cache costs",
    question="What do reads cost that are not in memory, and what does following the primary's log cost?",
    points=(
        Point("misses that are not kept", Distinct(), group="misses", only=BOTH),
        Point("misses that are kept", Distinct(), group="misses", only=FILLING),
        Point("written past Millrace", Seen(), group="writes past Millrace", only=("millrace-cached",)),
        *(
            Point(
                f"{rows} row{'s' * (rows > 1)} a transaction",
                Beside(rows_each=rows),
                group="following",
                only=FOLLOWING,
            )
            for rows in (1, 100)
        ),
        Point(
            "300,000 statements",
            Statements(count=300_000),
            group="memory",
            only=FILLING,
            rounds_max=1,
            quick=False,
        ),
    ),
    columns=(
        "qps",
        "p50_ms",
        "p95_ms",
        "hits_percent",
        "fills_percent",
        "proxy_us",
        "proxy_user_us",
        "proxy_system_us",
        "servers_us",
        "written",
        "seen_p50_ms",
        "seen_p95_ms",
        "seen_p99_ms",
        "seen_max_ms",
        "unseen",
        "rows_per_s",
        "row_us",
        "added_mib",
        "cache_mib",
        "errors",
    ),
    by_name_only=True,
    notes=(
        "Misses: reads by primary key, each text once, 64 clients. What is asked for once is not kept, "
        "unless second_use is off.",
        "Written past Millrace: one client reads a row through Millrace without a rest, another writes it at the "
        "primary every 20 to 40 ms. From the write's acknowledgement until the first answer that shows it.",
        "Following: eight clients write at the primary, and Millrace has no clients. CPU of the whole process, its "
        "monitoring among it, for each row that was written.",
        f"Memory: resident memory after the load beyond that before it; the cache may take {MEMORY_MIB} MiB.",
    ),
)

EXPERIMENTS = (S3, CACHE)

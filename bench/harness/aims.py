"""Millrace's aims, and how each is judged from the results.

An aim's figure is the median over the rounds. Where it must hold at several points, it is the
worst of their medians.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import geometric_mean

from experiments import cache, proxies_compared, wescale
from harness.results import Results, Spread

BOUNDS = {
    "at most": lambda value, limit: value <= limit,
    "at least": lambda value, limit: value >= limit,
    "more than": lambda value, limit: value > limit,
    "less than": lambda value, limit: value < limit,
}


@dataclass(frozen=True)
class Aim:
    """One row of the page: what is to hold, and its figure."""

    experiment: str
    what: str
    bound: str
    limit: float
    figure: Callable[[Results], Spread | None]
    unit: str = "times"
    digits: int = 2
    #: Meaningless where servers could not be capped.
    needs_caps: bool = False
    #: The same figure of a program that does nothing but what such a proxy must: (its name, figure).
    floor: tuple[str, Callable[[Results], Spread | None]] | None = None

    def judge(self, results):
        """{figure, low, high, met}, `met` None where it was not measured."""
        spread = self.figure(results)
        missing = results.about["cgroups"]["missing"] if self.needs_caps else None
        met = None if spread is None or missing else BOUNDS[self.bound](spread.mid, self.limit)
        failed = sum(times for (_, system), (times, _) in results.failures(self.experiment).items()
                     if results.about["families"][system] == "millrace")  # fmt: skip
        return {
            "experiment": self.experiment,
            "what": self.what,
            "aim": f"{self.bound} {self.limit:g} {self.unit}".strip(),
            "measured": self._text(spread) + (f"; Millrace failed {failed} times" if failed else ""),
            "floor": self._floor(results),
            # A figure without the rounds that failed is none.
            "met": False if failed else met,
        }

    def _floor(self, results):
        if self.floor is None or self.floor[1](results) is None:
            return ""
        return f"{self.floor[0]}: {self._text(self.floor[1](results))}"

    def _text(self, spread):
        if spread is None:
            return "not measured"
        numbers = [f"{value:.{self.digits}f}" for value in (spread.mid, spread.low, spread.high)]
        text = f"{numbers[0]} {self.unit}".strip()
        return text if len(set(numbers)) == 1 else f"{text} ({numbers[1]} to {numbers[2]})"


# --- Figures ------------------------------------------------------------------------


def value(experiment, point, system, metric):
    return lambda results: results.spread(experiment, point, system, metric)


def ratio(experiment, point, metric, system, other, other_point=None):
    return lambda results: results.ratio(experiment, metric, (point, system), (other_point or point, other))


def ratio_of_means(experiment, point, metric, system, other):
    """For what the kernel samples so coarsely that one round by itself says little."""

    def figure(results):
        means = [results.mean(experiment, point, name, metric) for name in (system, other)]
        return Spread.of([means[0] / means[1]]) if all(means) else None

    return figure


def difference(experiment, point, metric, system, other):
    def figure(results):
        mine = results.by_round(experiment, point, system, metric)
        theirs = results.by_round(experiment, point, other, metric)
        return Spread.of(mine[n] - theirs[n] for n in mine if n in theirs)

    return figure


def worst(pick, figures):
    """Of those that were measured, the one with the least or the most median."""

    def figure(results):
        spreads = [one(results) for one in figures]
        spreads = [spread for spread in spreads if spread]
        return pick(spreads, key=lambda spread: spread.mid) if spreads else None

    return figure


def together(experiment, points, metric, system, other):
    """The geometric mean of the ratios at several points, for each round that has them all.

    The least of many medians of few rounds is less than any of them really is; their mean is not.
    """

    def figure(results):
        ratios = []
        for point in points:
            mine = results.by_round(experiment, point, system, metric)
            theirs = results.by_round(experiment, point, other, metric)
            ratios.append({n: mine[n] / theirs[n] for n in mine if theirs.get(n)})
        rounds = set.intersection(*(set(each) for each in ratios))
        return Spread.of(geometric_mean([each[n] for each in ratios]) for n in rounds)

    return figure


def line(experiment, system, points, corrected, base=None):
    """How near to a straight line from the first point through nought: {servers: point's name}.

    Corrected: as if a server had spent on each query what it did in the first point, because
    servers that share cores and caches need more for the same.
    """
    (first, first_point), *others = points.items()

    def figure(results):
        spreads = []
        for servers, point in others:
            growth = results.by_round(experiment, point, system, "qps")
            start = results.by_round(experiment, first_point, base or system, "qps")
            cost = results.by_round(experiment, point, system, "servers_us")
            cost_at_start = results.by_round(experiment, first_point, base or system, "servers_us")
            spreads.append(
                Spread.of(
                    growth[n]
                    / start[n]
                    / (servers / first)
                    * (cost[n] / cost_at_start[n] if corrected else 1)
                    for n in growth
                    if start.get(n) and cost.get(n)
                )
            )
        spreads = [spread for spread in spreads if spread]
        return min(spreads, key=lambda spread: spread.mid) if spreads else None

    return figure


def scaled(figure, factor):
    """A figure as a multiple of its own unit."""

    def times(results):
        spread = figure(results)
        return spread and Spread(spread.mid * factor, spread.low * factor, spread.high * factor)

    return times


def total(experiment, points, system, metric):
    """Of all rounds together; none where no round got that far."""

    def figure(results):
        if not any(results.rounds(experiment, point, system) for point in points):
            return None
        return Spread.of([sum(results.total(experiment, point, system, metric) for point in points)])

    return figure


# --- Aims ---------------------------------------------------------------------------


def _cpu():
    for clients in (64, 256):
        point = f"point selects, {clients} clients"
        what = f"CPU per point select, {clients} clients"
        yield Aim(
            "CPU",
            f"{what}, to HAProxy's",
            "at most",
            1.0,
            ratio("CPU", point, "proxy_us", "millrace", "haproxy"),
        )
        yield Aim(
            "CPU",
            f"{what}, to the bare relay's",
            "at most",
            1.2,
            ratio("CPU", point, "proxy_us", "millrace", "relay"),
            floor=("bare greeter", ratio("CPU", point, "proxy_us", "greeter", "relay")),
        )
        yield Aim("CPU", f"{what}, in user mode, to the relay's, of all rounds together", "at most", 2.0,
                  ratio_of_means("CPU", point, "proxy_user_us", "millrace", "relay"),
                  floor=("bare greeter", ratio_of_means("CPU", point, "proxy_user_us", "greeter", "relay")))  # fmt: skip
    for kind in ("read-write", "prepared read-write"):
        yield Aim("CPU", f"CPU per statement of {kind}, to HAProxy's", "at most", 1.1,
                  ratio("CPU", f"{kind}, 64 clients", "proxy_us", "millrace", "haproxy"))  # fmt: skip


    for point in ("point selects, 64 clients", "prepared point selects, 64 clients"):
        for metric, what in (("proxy_us", "CPU"), ("mean_ms", "latency")):
            yield Aim("LEVELS", f"{what} of {point}, session to eventual", "at most", 1.03,
                      ratio("LEVELS", point, metric, "millrace-session", "millrace-eventual"))  # fmt: skip


def _clients():
    yield Aim("ROWS", "CPU per result of 10,000 rows, to the bare relay's", "at most", 1.1,
              ratio("ROWS", "10,000 rows", "proxy_us", "millrace", "relay"))  # fmt: skip
    yield Aim("IDLE", "resident memory per idle client, 10,000 clients", "at most", 4,
              value("IDLE", "idle clients", "millrace", "kib_per_client"), "KiB", 1)  # fmt: skip
    yield Aim("IDLE", "idle CPU with 10,000 idle clients", "less than", 1,
              value("IDLE", "idle clients", "millrace", "idle_cpu_percent"), "% of a core")  # fmt: skip
    yield Aim("CONNECT", "connect, log in, one query, close: per second, to direct", "at least", 2,
              ratio("CONNECT", "32 at once", "connects_per_s", "millrace", "direct"),
              floor=("bare greeter", ratio("CONNECT", "32 at once", "connects_per_s", "greeter", "direct")))  # fmt: skip
    yield Aim("CONNECT", "… proxy CPU each", "at most", 50,
              value("CONNECT", "32 at once", "millrace", "proxy_us"), "µs", 1,
              floor=("bare greeter", value("CONNECT", "32 at once", "greeter", "proxy_us")))  # fmt: skip
    for other, name in (("direct", "direct"), ("haproxy", "HAProxy's")):
        for point, what, capped in (
            ("512 clients", "QPS of 512 clients on 100 server connections", False),
            ("512 clients, servers capped", "… where the servers are the scarce thing", True),
        ):
            yield Aim("BUSY", f"{what}, to {name}", "more than", 1, ratio("BUSY", point, "qps", "millrace-30", other),
                      needs_caps=capped, floor=("bare greeter", ratio("BUSY", point, "qps", "greeter", other)))  # fmt: skip
    yield Aim("WORKERS", "QPS of two workers, to one", "at least", 1.8,
              ratio("WORKERS", "128 clients", "qps", "millrace-2-workers", "millrace"), needs_caps=True)  # fmt: skip


def _wescale():
    mixed = [point.name for point in wescale.MIXED]
    from_16 = [point.name for point in wescale.MIXED if point.x >= 16]
    # Two runs of the same thing differ by that much here.
    yield Aim("W1", "QPS to direct's, least from 16 threads on (level: within 3 %)", "at least", 0.97,
              worst(min, [ratio("W1", point, "qps", "millrace-primary", "direct") for point in from_16]),
              needs_caps=True, floor=("bare relay", worst(min, [ratio("W1", point, "qps", "relay", "direct") for point in from_16])))  # fmt: skip
    yield Aim("W1", "… of all these counts together", "at least", 0.97,
              together("W1", from_16, "qps", "millrace-primary", "direct"),
              needs_caps=True, floor=("bare relay", together("W1", from_16, "qps", "relay", "direct")))  # fmt: skip
    yield Aim("W1", "CPU per query to HAProxy's, most at any count", "at most", 1,
              worst(max, [ratio("W1", point, "proxy_us", "millrace-primary", "haproxy") for point in mixed]),
              floor=("bare relay", worst(max, [ratio("W1", point, "proxy_us", "relay", "haproxy") for point in mixed])))  # fmt: skip
    yield Aim("W1", "… of all counts together", "at most", 1,
              together("W1", mixed, "proxy_us", "millrace-primary", "haproxy"),
              floor=("bare relay", together("W1", mixed, "proxy_us", "relay", "haproxy")))  # fmt: skip
    reads = {1: "reads, 1 server", 3: "reads, 3 servers"}
    yield Aim("W2", "reads on three servers to direct's on one, corrected for the servers' CPU", "at least", 2.7,
              scaled(line("W2", "millrace-all", reads, corrected=True, base="direct"), 3), needs_caps=True)  # fmt: skip
    yield Aim("W2", "mixed load at 200 threads, to direct", "at least", 1.79,
              ratio("W2", mixed[-1], "qps", "millrace-all", "direct"), needs_caps=True)  # fmt: skip
    busy = [point.name for point in wescale.W3.points if point.group == "busy"]
    yield Aim(
        "W3",
        "errors with up to 10,000 busy clients, and as many idle ones",
        "at most",
        0,
        total("W3", [*busy, "10,000 idle clients"], "millrace-30", "errors"),
        "",
        0,
    )
    yield Aim("W3", "server connections of 10,000 busy clients", "at most", 100,
              value("W3", busy[-1], "millrace-30", "server_connections"), "", 0)  # fmt: skip
    yield Aim("W3", "resident memory per idle client, 10,000 clients", "at most", 4,
              value("W3", "10,000 idle clients", "millrace-30", "kib_per_client"), "KiB", 1)  # fmt: skip


def _scalearc():
    yield Aim("S1", "p50 above direct's, one client", "at most", 60,
              value("S1", "one client", "millrace", "added_p50_us"), "µs", 0,
              floor=("bare relay", value("S1", "one client", "relay", "added_p50_us")))  # fmt: skip
    yield Aim("S1", "p50 above HAProxy's, one client", "at most", 0,
              difference("S1", "one client", "p50_us", "millrace", "haproxy"), "µs", 0,
              floor=("bare relay", difference("S1", "one client", "p50_us", "relay", "haproxy")))  # fmt: skip
    nodes = {n: f"{n} server{'s' * (n > 1)}" for n in (1, 2, 3, 4)}
    yield from _straight("S2", nodes)
    yield from _straight("S2", nodes, "millrace-routed", "by table: ")
    yield from _straight("S2", nodes, "millrace-routed-eventual", "by table, eventual: ")


def _straight(experiment, points, system="millrace-all", how_routed=""):
    last = max(points)
    for corrected, limit, how in ((True, 0.95, "corrected for the servers' CPU"), (False, 0.87, "as it is")):
        yield Aim(experiment, f"{how_routed}reads on up to {last} servers, of a straight line, {how}", "at least", limit,
                  line(experiment, system, points, corrected), "of ideal", needs_caps=True)  # fmt: skip


def _cache():
    hits = cache.CAPPED.name
    yield Aim("S3", "reads, all hits, to the same servers without the cache", "at least", 10,
              ratio("S3", hits, "reads_per_s", "millrace-cached", "millrace-all"), needs_caps=True)  # fmt: skip
    yield Aim("S3", "… to direct", "at least", 10,
              ratio("S3", hits, "reads_per_s", "millrace-cached", "direct"), needs_caps=True)  # fmt: skip
    yield Aim("S3", "CPU per hit to the bare relay's per statement, no caps", "at most", 0.55,
              ratio("S3", cache.UNCAPPED.name, "proxy_us", "millrace-cached", "relay"))  # fmt: skip
    yield Aim("S3", "p50 of one client above direct's", "less than", 0,
              value("S3", cache.ONE_CLIENT.name, "millrace-cached", "added_p50_us"), "µs", 0)  # fmt: skip
    checked = [point.name for point in cache.S3.points if point.group == "writes"]
    for (without, cached), how in ((cache.BOTH, ""), (cache.BY_POSITION, ", by position")):
        for percent, limit in zip(cache.WRITES, (5, 3, 1.5), strict=True):
            yield Aim("S3", f"reads with {percent} % writes{how}, to the same servers without the cache", "at least", limit,
                      ratio("S3", cache.writes_point(percent), "reads_per_s", cached, without), needs_caps=True)  # fmt: skip
        yield Aim("S3", f"stale reads, of all that were checked meanwhile{how}", "at most", 0,
                  total("S3", checked, cached, "stale"), "", 0)  # fmt: skip
        yield Aim("S3", f"reads checked, of all rounds together{how}", "more than", 0,
                  total("S3", checked, cached, "checked"), "", 0)  # fmt: skip
    for point, system, limit in (
        ("misses that are not kept", "millrace-cached", 1.05),
        ("misses that are kept", "millrace-filling", 1.5),
    ):
        yield Aim("CACHE", f"CPU of {point}, to the same with the cache off", "at most", limit,
                  ratio("CACHE", point, "proxy_us", system, "millrace-all"))  # fmt: skip
    past = "written past Millrace"
    yield Aim("CACHE", "a write past Millrace is seen after, p95", "at most", 10,
              value("CACHE", past, "millrace-cached", "seen_p95_ms"), "ms", 1)  # fmt: skip
    yield Aim("CACHE", "… at most", "at most", 1000,
              value("CACHE", past, "millrace-cached", "seen_max_ms"), "ms", 1)  # fmt: skip
    for point in (point.name for point in cache.CACHE.points if point.group == "following"):
        yield Aim("CACHE", f"CPU of following, each row, {point}", "at most", 3,
                  difference("CACHE", point, "row_us", "millrace-cached", "millrace-all-position"), "µs")  # fmt: skip
    last = cache.CACHE.points[-1].name
    added = difference("CACHE", last, "added_mib", "millrace-filling", "millrace-all")
    yield Aim("CACHE", f"resident memory of the cache after {last}, to what is configured", "at most", 1.05,
              scaled(added, 1 / cache.MEMORY_MIB))  # fmt: skip
    yield Aim("CACHE", "… by its own account", "at most", 1.05,
              scaled(value("CACHE", last, "millrace-filling", "cache_mib"), 1 / cache.MEMORY_MIB))  # fmt: skip


def _proxies_compared():
    def at(cores):
        return [point.name for point in proxies_compared.T1.points if point.proxy_cores == cores]

    def every(pick, experiment, metric, cores, system="millrace"):
        return worst(pick, [ratio(experiment, point, metric, system, "haproxy") for point in at(cores)])

    def floor(*of):
        return ("bare relay", every(*of, system="relay"))

    for experiment in ("T1", "T2"):
        yield Aim(experiment, "errors with 4,096 threads on one core", "at most", 0,
                  total(experiment, at(1.0)[-1:], "millrace", "errors"), "", 0, needs_caps=True)  # fmt: skip
        for cores in proxies_compared.CAPS:
            yield Aim(experiment, f"CPU per read to HAProxy's, most at any count, {cores:g} core", "less than", 1,
                      every(max, experiment, "proxy_us", cores), needs_caps=True,
                      floor=floor(max, experiment, "proxy_us", cores))  # fmt: skip
    # As many as the rate allows is all that there are.
    for cores in proxies_compared.CAPS:
        yield Aim("T1", f"reads per second to HAProxy's, least at any count, {cores:g} core (level: within 3 %)",
                  "at least", 0.97, every(min, "T1", "reads_per_s", cores), needs_caps=True,
                  floor=floor(min, "T1", "reads_per_s", cores))  # fmt: skip
    for cores in proxies_compared.CAPS:
        yield Aim("T2", f"reads per second to HAProxy's, least at any count, {cores:g} core", "more than", 1,
                  every(min, "T2", "reads_per_s", cores), needs_caps=True,
                  floor=floor(min, "T2", "reads_per_s", cores))  # fmt: skip
    for point in proxies_compared.TEXT_POINTS:
        for bound, metric, what in (
            ("less than", "proxy_us", "CPU per read to HAProxy's"),
            ("more than", "reads_per_s", "reads per second to HAProxy's"),
        ):
            yield Aim("T2", f"{what}, {point.name}", bound, 1, ratio("T2", point.name, metric, "millrace", "haproxy"),
                      needs_caps=True,
                      floor=("bare greeter", ratio("T2", point.name, metric, "greeter", "haproxy")))  # fmt: skip


def _udb():
    for experiment, nodes in (("U1", (1, 2, 3)), ("U2", (1, 2))):
        yield from _straight(experiment, {n: f"{n} server{'s' * (n > 1)}, 256 threads" for n in nodes})


AIMS = (*_cpu(), *_clients(), *_wescale(), *_scalearc(), *_cache(), *_proxies_compared(), *_udb())

"""Results as Markdown. Medians over the rounds, with their spread; judges nothing."""

from statistics import median


def spread(values, digits=1):
    """`median (least to most)`."""
    values = list(values)
    if not values:
        return "–"
    middle = f"{median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def ratios(rounds, key, system, base):
    """The median of each round's own ratio: what the machine did to both cancels out."""
    pairs = [(r[system][key], r[base][key]) for r in rounds if system in r and base in r]
    quotients = [mine / theirs for mine, theirs in pairs if theirs]
    return f"{median(quotients):.2f}" if quotients else "–"


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def page(result):
    parts = [_head(result)]
    for section, draw in (("cpu", _cpu), ("latency", _latency), ("memory", _memory), ("connections", _connections)):
        if result.get(section):
            parts.append(draw(result))
    return "\n".join(parts)


def _head(result):
    machine, settings = result["machine"], result["settings"]
    lines = [
        "# Figures",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}; "
        f"{result['servers']['version']}: a primary and {settings['replicas']} replicas.",
        f"{result['began']}, load of the machine before {machine['load_before']:.2f}, "
        f"after {machine['load_after']:.2f}. `{result['command']}`",
        "",
    ]
    lines += [f"- {name}: {version}" for name, version in result["versions"].items() if version]
    lines += [f"- left out: {name} ({why})" for name, why in result["left_out"].items()]
    for failure in result["failures"]:
        lines.append(f"- **failed: {failure}**")
    return "\n".join(lines) + "\n"


def _cpu(result):
    rounds, settings = result["cpu"], result["settings"]
    rows = []
    for system in result["systems"]:
        mine = [r[system] for r in rounds if system in r]
        if not mine:
            continue
        rows.append([
            system,
            spread((m["qps"] for m in mine), 0),
            ratios(rounds, "qps", system, "direct"),
            spread(m["proxy_cpu_us"] for m in mine),
            spread(m["proxy_user_us"] for m in mine),
            ratios(rounds, "proxy_cpu_us", system, "haproxy"),
            ratios(rounds, "proxy_cpu_us", system, "relay"),
            spread((m["servers_cpu_us"] for m in mine), 0),
            sum(m["errors"] + m.get("reconnects", 0) for m in mine),
        ])  # fmt: skip
    heads = ["", "QPS", "to direct", "proxy CPU µs/query", "of that user", "to HAProxy", "to relay",
             "servers' CPU µs/query", "errors, reconnects"]  # fmt: skip
    title = (
        f"## CPU per point select\n\nText protocol, {settings['clients']} clients, one worker, "
        f"{len(rounds)} rounds of {settings['seconds']} s, interleaved: medians (least to most).\n\n"
    )
    return title + table(heads, rows)


def _latency(result):
    rounds, settings = result["latency"], result["settings"]
    rows = []
    for system in result["systems"]:
        mine = [r[system] for r in rounds if system in r]
        if not mine:
            continue
        added = [
            spread(r[system][key] - r["direct"][key] for r in rounds if system in r)
            for key in ("p50_us", "p95_us")
        ]
        rows.append([system, *(spread(m[key] for m in mine) for key in ("p50_us", "p95_us", "p99_us")), *added])
    title = (
        "## Latency at one client, µs\n\nPoint selects on one connection to each system, in bursts that take "
        f"turns, {len(rounds)} rounds of {settings['seconds']} s.\n\n"
    )
    return title + table(["", "p50", "p95", "p99", "added at p50", "added at p95"], rows)


def _memory(result):
    rows = [
        [
            system,
            found["connected"],
            found["failed"],
            f"{found['kib_per_client_rss']:.1f}",
            f"{found['kib_per_client_pss']:.1f}",
            found["server_connections"],
            f"{found['idle_cpu_percent']:.1f}",
        ]
        for system, found in result["memory"].items()
    ]
    heads = ["", "clients", "refused", "KiB RSS each", "KiB PSS each", "server connections", "idle CPU %"]
    title = (
        f"## Memory per idle client\n\n{result['settings']['idle_clients']} clients, each logged in, ran a query, "
        "then idle. What the proxy's resident memory grew by, per client.\n\n"
    )
    return title + table(heads, rows)


def _connections(result):
    rows = [
        [
            system,
            found["server_connections_max"],
            f"{found['qps']:.0f}",
            found.get("p95_ms", "–"),
            found["errors"] + found.get("reconnects", 0),
            found.get("failed", ""),
        ]
        for system, found in result["connections"].items()
    ]
    heads = ["", "server connections, at most", "QPS", "p95 ms", "errors, reconnects", ""]
    title = f"## Server connections of {result['settings']['busy_clients']} busy clients\n\n"
    return title + table(heads, rows)

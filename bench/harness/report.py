"""The results for readers: one page in HTML, the same tables as Markdown, and curves as SVG."""

from dataclasses import dataclass
from html import escape

from harness import build, svg
from harness.aims import AIMS, line
from harness.metrics import METRICS

#: Metrics shown as ratios beside themselves, and to what besides rivals.
RATIOS = {
    "qps": ("direct",),
    "connects_per_s": ("direct",),
    "reads_per_s": ("direct",),
    "proxy_us": ("relay",),
}
MET = {True: "met", False: "not met", None: "–"}
TITLE = "Millrace, measured"

STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1180px; margin: 2rem auto; padding: 0 1rem;
       color: #1c2530; background: #fff }
h2 { margin-top: 2.5rem; border-top: 1px solid #8884; padding-top: 1rem }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .55rem; text-align: right; border-bottom: 1px solid #8883; vertical-align: top }
th:first-child, td:first-child, .text td, .text th { text-align: left }
.wide { overflow-x: auto }
.charts { display: flex; flex-wrap: wrap; gap: 1rem }
.charts svg { max-width: 100%; height: auto }
.met { color: #1f9d55; font-weight: 600 } .unmet { color: #d0392b; font-weight: 600 }
code { font-size: 13px }
@media (prefers-color-scheme: dark) { body { color: #dfe5ec; background: #14181d } }
"""


@dataclass(frozen=True)
class Table:
    """A title, heads and rows of texts; the writer knows how to draw them."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    words: bool = False


def write(results, experiments, out):
    """Everything but the raw data, which the results save themselves."""
    aims = [aim.judge(results) for aim in AIMS if results.systems(aim.experiment)]
    shown = [one for one in experiments if results.systems(one.id)]
    charts = {one.id: list(_charts(results, one)) for one in shown}
    out.mkdir(parents=True, exist_ok=True)
    for found in charts.values():
        for name, drawing in found:
            (out / f"{name}.svg").write_text(drawing)
    (out / "results.md").write_text(_markdown(results, shown, aims, charts))
    (out / "page.html").write_text(_html(results, shown, aims, charts))


# --- What there is to say -------------------------------------------------------------


def _facts(results):
    about = results.about
    machine, settings, cgroups = about["machine"], about["settings"], about["cgroups"]
    yield (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Linux {machine['kernel']}. "
        f"{about['began']}; load of the machine before {machine['load_before']:.2f}"
        + (f", after {machine['load_after']:.2f}." if "load_after" in machine else ".")
    )
    yield (
        f"Servers: {about.get('servers', 'none')}, {settings['tables']} tables of {settings['rows']:,} rows. "
        f"{settings['rounds']} round{'s' * (settings['rounds'] > 1)}, {settings['seconds']:g} s for each load, "
        "more where its clients need that; medians (least to most), ratios taken within a round."
    )
    yield (
        f"No CPU caps: {cgroups['missing']}. What needs them is not judged."
        if cgroups["missing"]
        else f"CPU caps: control groups of version {cgroups['version']}, period {cgroups['period_us'] / 1000:g} ms."
    )
    if settings["quick"]:
        yield "A quick run: few points and short loads. Good for seeing a change, not for quoting."
    for name, version in about["versions"].items():
        if version:
            yield f"{name}: {version}"
    if "build" in about:
        yield build.in_words(about["build"])
    for name, why in about["left_out"].items():
        yield f"Left out: {name} ({why})"
    for failure in about["failures"]:
        yield f"Failed: {failure}"


def _commands(results):
    """All that the results come from: a run may have been had in pieces."""
    return [results.about["command"], *(one["command"] for one in results.about.get("resumed", []))]


def _aims_table(aims):
    rows = [[a["experiment"], a["what"], a["aim"], a["measured"], MET[a["met"]], a["floor"]] for a in aims]
    return Table("Aims", ["", "what", "aim", "measured", "", "a floor, here"], rows, words=True)


def _ratios(results, metric):
    """To whom a metric is compared: of rivals those that are what they are, not their variants."""
    families = results.about["families"]
    rivals = [name for name in results.about["versions"] if families.get(name) == name != "millrace"]
    return [*RATIOS[metric], *rivals] if metric in RATIOS else []


def _caps(experiment):
    servers = sorted({point.server_cores for point in experiment.points if point.server_cores})
    proxies = sorted({point.proxy_cores for point in experiment.points if point.proxy_cores})
    texts = []
    every = all(point.server_cores for point in experiment.points)
    some = "Each server is capped" if every else "Where servers are capped, each is so"
    if servers:
        texts.append(f"{some} at {' or '.join(f'{cores:g}' for cores in servers)} core.")
    if proxies:
        texts.append(
            f"Each worker of a proxy is capped at {' or '.join(f'{cores:g}' for cores in proxies)} core."
        )
    return texts


def _notes(results, experiment):
    notes = [f"{1 + experiment.cluster.replicas} server{'s' * (experiment.cluster.replicas > 0)}."]
    if results.about["cgroups"]["missing"] is None:
        notes += _caps(experiment)
    elif _caps(experiment):
        notes.append("Not capped, for want of control groups: not the experiment that it should be.")
    return [*notes, *experiment.notes]


def _tables(results, experiment):
    """One for each group of points; columns that nobody has are left out."""
    groups = list(dict.fromkeys(point.group for point in experiment.points))
    for group in groups:
        points = [point for point in experiment.points if point.group == group]
        rows = []
        for point in points:
            for system in results.systems(experiment.id):
                if results.rounds(experiment.id, point.name, system):
                    rows.append((point, system))
        columns = [
            (metric, other)
            for metric in experiment.columns
            for other in (None, *_ratios(results, metric))
            if any(_cell(results, experiment, row, metric, other) for row in rows)
        ]
        if rows and columns:
            yield Table(
                group,
                ["", "", *(_heading(results, *column) for column in columns)],
                [
                    [
                        "" if number and rows[number - 1][0] is point else point.name,
                        results.about["labels"][system],
                        *(_cell(results, experiment, (point, system), *column) or "–" for column in columns),
                    ]
                    for number, (point, system) in enumerate(rows)
                ],
            )
        if lines := _lines(results, experiment, points):
            yield Table(
                f"{group}: reads for each server, to those of one server",
                ["", *(head for point in points[1:] for head in (point.name, "… corrected"))],
                lines,
            )
    failures = [
        [point, results.about["labels"][system], str(times), text]
        for (point, system), (times, text) in results.failures(experiment.id).items()
    ]
    if failures:
        yield Table("Failed", ["point", "system", "rounds", "first"], failures, words=True)


def _lines(results, experiment, points):
    """Where points differ in servers: how near each system is to a straight line, as it is and
    corrected for what the servers spend on each query."""
    if len({point.servers for point in points}) < 2:
        return []
    rows = []
    for system in results.systems(experiment.id):
        cells = []
        for point in points[1:]:
            pair = {points[0].servers: points[0].name, point.servers: point.name}
            for corrected in (False, True):
                spread = line(experiment.id, system, pair, corrected)(results)
                cells.append(f"{spread.mid:.2f}" if spread else "–")
        if set(cells) != {"–"}:
            rows.append([results.about["labels"][system], *cells])
    return rows


def _heading(results, metric, other):
    return f"… to {results.about['labels'][other]}" if other else METRICS[metric].heading


def _cell(results, experiment, row, metric, other):
    point, system = row
    if other:
        if system == other or not results.mean(experiment.id, point.name, system, metric):
            return None
        spread = results.ratio(experiment.id, metric, (point.name, system), (point.name, other))
        return spread and f"{spread.mid:.2f}"
    if METRICS[metric].is_total:
        if not results.by_round(experiment.id, point.name, system, metric):
            return None
        return f"{results.total(experiment.id, point.name, system, metric):,.0f}"
    spread = results.spread(experiment.id, point.name, system, metric)
    if spread is None or (metric.startswith("proxy_") and not spread.high):
        return None
    text = METRICS[metric].text
    mid = text(spread.mid)
    return mid if spread.low == spread.high else f"{mid} ({text(spread.low)} to {text(spread.high)})"


def _charts(results, experiment):
    """(name of its file, drawing)"""
    for chart in experiment.charts:
        metric = METRICS[chart.metric]
        groups = list(dict.fromkeys(point.group for point in experiment.points)) if chart.x else [None]
        for group in groups:
            points = [point for point in experiment.points if group in (None, point.group)]
            series = _series(results, experiment, chart, points)
            if chart.x and (len({point.x for point in points}) < 2):
                continue
            if not series:
                continue
            title = f"{experiment.id}: {metric.title}" + (f", {group}" if group and len(groups) > 1 else "")
            name = "-".join(filter(None, (experiment.id, chart.metric, (group or "").replace(" ", "-"))))
            if chart.x:
                yield name, svg.curves(title, chart.x, metric.heading, series, chart.log_x, chart.log_y)
            else:
                names = [point.name for point in points if any(point.name in one.values for one in series)]
                yield name, svg.bars(title, metric.heading, names, series)


def _series(results, experiment, chart, points):
    """A family's colour is the same in all charts; its second and further members are drawn apart."""
    families = list(dict.fromkeys(results.about["families"].values()))
    series, seen = [], {}
    for system in results.systems(experiment.id):
        values = {}
        for point in points:
            spread = results.spread(experiment.id, point.name, system, chart.metric)
            if spread is not None and not (chart.metric.startswith("proxy_") and not spread.high):
                values[point.x if chart.x else point.name] = spread
        if values:
            family = results.about["families"][system]
            label = results.about["labels"][system]
            series.append(svg.Series(label, families.index(family), seen.setdefault(family, 0), values))
            seen[family] += 1
    return series


# --- How it is drawn ------------------------------------------------------------------


def _markdown(results, experiments, aims, charts):
    parts = [f"# {TITLE}", *(f"- {fact}" for fact in _facts(results)), ""]
    parts += [*(f"    {command}" for command in _commands(results)), ""]
    parts.append(_markdown_table(_aims_table(aims)))
    for one in experiments:
        parts.append(f"## {one.id}: {one.title}\n\n{one.question} " + " ".join(_notes(results, one)) + "\n")
        parts += [_markdown_table(table) for table in _tables(results, one)]
        parts += [f"![{name}]({name}.svg)" for name, _ in charts[one.id]]
    return "\n".join(parts) + "\n"


def _markdown_table(table):
    lines = [f"### {table.title}\n"] if table.title else []
    lines += ["| " + " | ".join(table.heads) + " |", "|" + "---|" * len(table.heads)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table.rows]
    return "\n".join(lines) + "\n"


def _html(results, experiments, aims, charts):
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in _facts(results))
    commands = "<br>".join(escape(command) for command in _commands(results))
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{TITLE}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body><h1>{TITLE}</h1>",
        f"<ul>{facts}</ul><p><code>{commands}</code></p>",
        _html_table(_aims_table(aims)),
    ]
    for one in experiments:
        notes = escape(" ".join(_notes(results, one)))
        parts.append(f'<h2 id="{one.id}">{one.id}: {escape(one.title)}</h2>')
        parts.append(f"<p><strong>{escape(one.question)}</strong> {notes}</p>")
        judged = [aim for aim in aims if aim["experiment"] == one.id]
        if judged:
            parts.append(_html_table(_aims_table(judged)))
        parts.append(f'<div class="charts">{"".join(drawing for _, drawing in charts[one.id])}</div>')
        parts += [_html_table(table) for table in _tables(results, one)]
    return "\n".join(parts) + "\n</body></html>\n"


def _html_table(table):
    heads = "".join(f"<th>{escape(head)}</th>" for head in table.heads)
    rows = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>\n" for row in table.rows)
    title = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    kind = ' class="text"' if table.words else ""
    return f'{title}<div class="wide"><table{kind}><tr>{heads}</tr>\n{rows}</table></div>'


def _html_cell(text):
    kind = {MET[True]: ' class="met"', MET[False]: ' class="unmet"'}.get(text, "")
    return f"<td{kind}>{escape(text)}</td>"

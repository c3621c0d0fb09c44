"""Curves and bars as SVG, readable on light and dark ground. Judges nothing."""

import math
from dataclasses import dataclass
from html import escape

from harness.results import Spread

WIDTH, HEIGHT = 760, 360
LEFT, RIGHT, TOP, BOTTOM = 74, 200, 34, 52
INNER_WIDTH, INNER_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

#: Told apart by colour-blind readers too, and on either ground.
COLOURS = ("#7f7f7f", "#b08d57", "#2f7fd1", "#d9730d", "#1f9d55", "#9b59b6", "#c0392b", "#16a2a2")

#: What tells variants of one system apart, in curves and in bars; the first is the system itself.
DASHES = ("", ' stroke-dasharray="6 4"', ' stroke-dasharray="2 4"', ' stroke-dasharray="10 3 2 3"')
PALE = ("", ' opacity=".6"', ' opacity=".4"', ' opacity=".25"')

STYLE = """
.chart { font: 12px system-ui, sans-serif; color: #1c2530; background: transparent }
.chart text { fill: currentColor }
.chart .title { font-size: 13px; font-weight: 600 }
.chart .grid { stroke: currentColor; stroke-opacity: .15 }
.chart .axis { stroke: currentColor; stroke-opacity: .6 }
@media (prefers-color-scheme: dark) { .chart { color: #dfe5ec } }
"""


@dataclass(frozen=True)
class Series:
    """One system: its label, colour, and a spread for each x (of curves) or name (of bars)."""

    label: str
    colour: int
    #: 0, or which variant of its family it is.
    variant: int
    values: dict[float | str, Spread]

    @property
    def paint(self):
        return COLOURS[self.colour % len(COLOURS)]


def curves(title, x_title, y_title, series, log_x=False, log_y=False):
    """Lines through the medians, with bands from the least to the most of the rounds."""
    xs = sorted({x for one in series for x in one.values})
    spreads = [spread for one in series for spread in one.values.values()]
    place = _log_scale(xs) if log_x else _linear_scale(0, max(xs))
    most, least = max(spread.high for spread in spreads), min(spread.low for spread in spreads)
    ticks, share = _log_ticks(least, most) if log_y and least > 0 else _ticks(most)

    def x_of(x):
        return LEFT + place(x) * INNER_WIDTH

    def y_of(y):
        return TOP + (1 - share(y)) * INNER_HEIGHT

    parts = [*_frame(title, y_title, ticks, y_of), *_x_ticks(xs, x_of)]
    parts.append(_text(LEFT + INNER_WIDTH / 2, HEIGHT - 10, x_title, "middle"))
    for one in series:
        points = sorted(one.values.items())
        upper = [f"{x_of(x):.1f},{y_of(spread.high):.1f}" for x, spread in points]
        lower = [f"{x_of(x):.1f},{y_of(spread.low):.1f}" for x, spread in reversed(points)]
        middle = [f"{x_of(x):.1f},{y_of(spread.mid):.1f}" for x, spread in points]
        dash = DASHES[one.variant % len(DASHES)]
        parts.append(f'<polygon points="{" ".join(upper + lower)}" fill="{one.paint}" fill-opacity=".15"/>')
        parts.append(
            f'<polyline points="{" ".join(middle)}" fill="none" stroke="{one.paint}" stroke-width="2"{dash}/>'
        )
        parts += [
            f'<circle cx="{point.split(",")[0]}" cy="{point.split(",")[1]}" r="2.8" fill="{one.paint}"/>'
            for point in middle
        ]
    return _document(title, parts + _legend(series, "line: median; band: least to most", DASHES))


def bars(title, y_title, names, series):
    """A group of bars for each name, with whiskers from the least to the most of the rounds."""
    ticks, share = _ticks(max(spread.high for one in series for spread in one.values.values()))
    slot = INNER_WIDTH / len(names)
    width = min(0.8 * slot / len(series), 46)

    def y_of(y):
        return TOP + (1 - max(share(y), 0)) * INNER_HEIGHT

    parts = _frame(title, y_title, ticks, y_of)
    for number, name in enumerate(names):
        middle = LEFT + (number + 0.5) * slot
        for line, words in enumerate(_wrapped(name, slot / 6.2)):
            parts.append(_text(middle, TOP + INNER_HEIGHT + 16 + 13 * line, words, "middle"))
        for index, one in enumerate(series):
            spread = one.values.get(name)
            if spread is None:
                continue
            left = middle + (index - len(series) / 2) * width
            pattern = PALE[one.variant % len(PALE)]
            parts.append(
                f'<rect x="{left + 1:.1f}" y="{y_of(spread.mid):.1f}" width="{width - 2:.1f}" '
                f'height="{TOP + INNER_HEIGHT - y_of(spread.mid):.1f}" fill="{one.paint}"{pattern}>'
                f"<title>{escape(one.label)}: {spread.mid:,.1f}</title></rect>"
            )
            x = left + width / 2
            parts.append(f'<path d="M{x:.1f} {y_of(spread.low):.1f}V{y_of(spread.high):.1f}" class="axis"/>')
    return _document(title, parts + _legend(series, "bar: median; line: least to most", PALE))


def _frame(title, y_title, ticks, y_of):
    parts = [f'<text x="{LEFT}" y="16" class="title">{escape(title)}</text>']
    for tick in ticks:
        y = y_of(tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{LEFT + INNER_WIDTH}" class="grid"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{tick:,.10g}", "end"))
    middle = TOP + INNER_HEIGHT / 2
    parts.append(
        f'<text transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">{escape(y_title)}</text>'
    )
    parts.append(
        f'<path d="M{LEFT} {TOP}V{TOP + INNER_HEIGHT}H{LEFT + INNER_WIDTH}" class="axis" fill="none"/>'
    )
    return parts


def _x_ticks(xs, x_of):
    """One for each x, left out where it would touch the one before."""
    parts, last = [], -math.inf
    for x in xs:
        at = x_of(x)
        parts.append(f'<path d="M{at:.1f} {TOP + INNER_HEIGHT}v4" class="axis"/>')
        if at - last > 7.5 * len(f"{x:,g}") + 4:
            parts.append(_text(at, TOP + INNER_HEIGHT + 18, f"{x:,.10g}", "middle"))
            last = at
    return parts


def _legend(series, how, marks):
    parts, left = [], LEFT + INNER_WIDTH + 18
    for number, one in enumerate(series):
        y = TOP + 10 + number * 32
        other = marks[one.variant % len(marks)]
        parts.append(f'<path d="M{left} {y}h22" stroke="{one.paint}" stroke-width="4"{other}/>')
        for line, words in enumerate(_wrapped(one.label, 24)):
            parts.append(_text(left + 28, y + 4 + 13 * line, words))
    parts.append(f'<text x="{left}" y="{HEIGHT - 10}" font-size="10" opacity=".7">{how}</text>')
    return parts


def _document(title, parts):
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" class="chart" role="img" aria-label="{escape(title)}">\n'
        f"<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _text(x, y, words, anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _wrapped(words, letters):
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + len(word) >= letters:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _linear_scale(low, high):
    return lambda x: (x - low) / ((high - low) or 1) * 0.97


def _log_scale(xs):
    low, high = math.log(min(xs)), math.log(max(xs))
    return lambda x: 0.02 + 0.95 * (math.log(x) - low) / ((high - low) or 1)


def _ticks(most):
    """About five ticks from nought to a round number above, and the share of it that a value is."""
    step = 10 ** math.floor(math.log10(most / 5)) if most > 0 else 1
    step *= next(factor for factor in (1, 2, 5, 10) if most / (step * factor) <= 6)
    count = math.ceil(most / step) if most > 0 else 1
    return [round(step * number, 10) for number in range(count + 1)], lambda y: y / (step * count)


def _log_ticks(least, most):
    """The same over powers of ten."""
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    high = max(high, low + 1)
    return [10.0**power for power in range(low, high + 1)], lambda y: (math.log10(y) - low) / (high - low)

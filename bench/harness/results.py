"""All that a run has seen, and how figures are taken from it: medians over the rounds.

Ratios are taken within a round, where the machine's moods met both alike.
"""

import json
from dataclasses import dataclass
from statistics import fmean, median


@dataclass(frozen=True)
class Spread:
    """A median with the least and the most of the rounds."""

    mid: float
    low: float
    high: float

    @classmethod
    def of(cls, values):
        values = list(values)
        return cls(median(values), min(values), max(values)) if values else None


class Results:
    """Facts of the run under `about`, and one sample for each round, point and system."""

    def __init__(self, about, samples=()):
        self.about = about
        self.samples = []
        self._index = {}
        for sample in samples:
            self.add(sample)

    def add(self, sample):
        self.samples.append(sample)
        key = sample["experiment"], sample["point"], sample["system"]
        self._index.setdefault(key, {})[sample["round"]] = sample["seen"]

    def has(self, experiment, number, point, system):
        return number in self.rounds(experiment, point, system)

    def rounds(self, experiment, point, system):
        """{round: what was seen}."""
        return self._index.get((experiment, point, system), {})

    def by_round(self, experiment, point, system, metric):
        """{round: value}, for rounds that have it."""
        seen = self.rounds(experiment, point, system)
        return {number: one[metric] for number, one in seen.items() if one.get(metric) is not None}

    def spread(self, experiment, point, system, metric):
        return Spread.of(self.by_round(experiment, point, system, metric).values())

    def ratio(self, experiment, metric, mine, theirs):
        """Of (point, system) to (point, system)."""
        ours = self.by_round(experiment, *mine, metric)
        others = self.by_round(experiment, *theirs, metric)
        return Spread.of(ours[n] / others[n] for n in ours if others.get(n))

    def mean(self, experiment, point, system, metric):
        values = self.by_round(experiment, point, system, metric).values()
        return fmean(values) if values else None

    def total(self, experiment, point, system, metric):
        return sum(self.by_round(experiment, point, system, metric).values())

    def systems(self, experiment):
        """In the order of systems.toml."""
        seen = {key[2] for key in self._index if key[0] == experiment}
        return [name for name in self.about["systems"] if name in seen]

    def failures(self, experiment):
        """{(point, system): (how often, the first in its own words)}"""
        found = {}
        for (of, point, system), rounds in self._index.items():
            texts = [one["failed"] for one in rounds.values() if one.get("failed")]
            if of == experiment and texts:
                found[point, system] = len(texts), texts[0]
        return found

    def save(self, path):
        """Whole or not at all: a run may end at any moment."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"about": self.about, "samples": self.samples}, indent=1) + "\n")
        new.replace(path)

    @classmethod
    def read(cls, path):
        return cls(**json.loads(path.read_text()))

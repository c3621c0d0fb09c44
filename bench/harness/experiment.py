"""What an experiment is: a question, and all it takes to ask it. Declared in experiments/."""

from dataclasses import dataclass, field

from harness.cluster import Spec


@dataclass(frozen=True)
class Point:
    """One load on a number of servers under caps: a point of a curve, or a row of a table."""

    name: str
    load: object
    #: Points of one group are one curve; `x` is where on it.
    group: str = ""
    x: float = 0
    #: How many of the cluster's servers take part, the primary first; 0 for all.
    servers: int = 0
    #: CPU caps of each server and of each worker of a proxy; None for none.
    server_cores: float | None = None
    proxy_cores: float | None = None
    #: The load lasts that long at least, but in a quick run.
    seconds_min: float = 0
    #: Only these systems take it, by their names; all of the experiment's without them.
    only: tuple[str, ...] = ()
    #: It is measured in so many rounds at most; 0 for all.
    rounds_max: int = 0
    #: Whether it is part of a quick run.
    quick: bool = True


@dataclass(frozen=True)
class Chart:
    """A drawing of one metric: curves over `x` where that has a title, else bars."""

    metric: str
    x: str = ""
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Experiment:
    """All that one run of it needs to know."""

    id: str
    title: str
    question: str
    points: tuple[Point, ...]
    columns: tuple[str, ...]
    charts: tuple[Chart, ...] = ()
    cluster: Spec = field(default_factory=Spec)
    #: Takes only systems that name this experiment.
    by_name_only: bool = False
    #: What a reader must know to judge the figures.
    notes: tuple[str, ...] = ()

    def takes(self, system, point):
        if system.points and not point.name.startswith(tuple(system.points)):
            return False
        if point.only and system.name not in point.only:
            return False
        if system.experiments is None:
            return not self.by_name_only
        return self.id in system.experiments

"""All experiments, in the order in which they are run and shown."""

from experiments import clients, cost, proxies_compared, scalearc, udb, wescale

ALL = (
    *cost.EXPERIMENTS,
    *clients.EXPERIMENTS,
    *wescale.EXPERIMENTS,
    *scalearc.EXPERIMENTS,
    *proxies_compared.EXPERIMENTS,
    *udb.EXPERIMENTS,
)

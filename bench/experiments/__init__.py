"""All experiments, in the order in which they are run and shown."""

from experiments import cache, clients, cost, proxies_compared, scalearc, udb, wescale

ALL = (
    *cost.EXPERIMENTS,
    *clients.EXPERIMENTS,
    *wescale.EXPERIMENTS,
    *scalearc.EXPERIMENTS,
    *cache.EXPERIMENTS,
    *proxies_compared.EXPERIMENTS,
    *udb.EXPERIMENTS,
)

"""How simulations are dealt to processes: equal work for each, and to one process what is alike.

A process keeps the network it built last, and the prices on it: experiments of one cluster are
neighbours, among them those of one model.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...experiment import Experiment, Transformer

__all__ = ["dealt"]

PIECES = 8
"""Pieces of work for each process, at least, so that none is much larger than what is left over."""

GROWTH = 2 / 3
"""CPU time of a simulation grows with its rows by this power (0.68 over 243 rows of the table of
docs/accuracy.md)."""


def dealt(experiments: Sequence[Experiment], processes: int) -> list[list[int]]:
    """Deal experiments to processes.

    Returns
    -------
    list of list of int
        For each process the experiments it simulates, in its order.
    """
    efforts = [_effort(each) for each in experiments]
    most = sum(efforts) / (PIECES * processes)
    pieces: list[list[int]] = []
    last = None
    for i in sorted(range(len(experiments)), key=lambda i: (*_kin(experiments[i]), i)):
        kin = _kin(experiments[i])[0]
        if kin != last or sum(efforts[j] for j in pieces[-1]) + efforts[i] > most:
            pieces.append([])
        pieces[-1].append(i)
        last = kin
    load = [0.0] * processes
    shares: list[list[int]] = [[] for _ in load]
    # The largest piece first, to whom has the least.
    weights = [sum(efforts[i] for i in piece) for piece in pieces]
    for number in sorted(range(len(pieces)), key=lambda number: (-weights[number], number)):
        process = load.index(min(load))
        load[process] += weights[number]
        shares[process] += pieces[number]
    return shares


def _kin(experiment: Experiment) -> tuple[str, str]:
    """Return what experiments have in common that share a network; among them, that are alike."""
    return repr((experiment.cluster, experiment.network)), repr(experiment.model)


def _effort(experiment: Experiment) -> float:
    """Return about how long a simulation takes: by its rows, of one rank of each stage."""
    plan, model = experiment.plan, experiment.model
    layers = model.layers if isinstance(model, Transformer) else 50
    micro_batches = plan.global_batch / ((plan.dp or 1) * plan.micro_batch)
    # Tensor and expert parallel layers have communications to price, and links to share.
    dear = 1 + (plan.tp > 1) + 2 * (plan.ep > 1)
    rows: float = dear * micro_batches * (layers + 2 * plan.pp * plan.vpp) + 100.0
    return rows**GROWTH

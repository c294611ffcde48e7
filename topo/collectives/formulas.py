"""Cost formulas of collectives, each with a few numbers that are fitted to measurements.

`NcclFormula` is the model of this package (:mod:`mpisim.topo.nccl`) with a platform's factors;
`DeepEpFormula` is DeepEP's all-to-all kernels. `AlphaBetaFormula` and `EchoFormula` are what others
use, for comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import log2
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation

from ..nccl import Factors, Nccl, Settings, Shape, System
from ..network import bus_factor

__all__ = [
    "NIC_ALONE",
    "AlphaBetaFormula",
    "CostFormula",
    "DeepEpFormula",
    "EchoFormula",
    "FittedFormula",
    "NcclFormula",
    "Sweep",
]

Bytes = TypeVar("Bytes", float, NDArray[np.float64])

NcclVariables = tuple[tuple[str, str], ...]


class Sweep(NamedTuple):
    """Communications on one machine that differ in size alone, as nccl-tests measures them.

    Attributes
    ----------
    system : System
    operation : Operation
    bytes : float64, shape (n,)
        Of the full buffer.
    shape : Shape
        Of the group.
    settings : tuple of (str, str)
        Names and values of ``NCCL_*`` variables.
    """

    system: System
    operation: Operation
    bytes: NDArray[np.float64]
    shape: Shape
    settings: NcclVariables = ()


class CostFormula(Protocol):
    """A formula with numbers to be fitted, all above 0."""

    name: str
    """On the command line."""

    start: Mapping[str, float]
    """The numbers, and where a fit starts: what is true of a machine that was not measured."""

    strong_priors: Mapping[str, float]
    """Numbers that differ little between machines, and how firmly they stay near wider fits: a
    factor of e costs as much as so many times all set-ups."""

    family_priors: Mapping[str, float]
    """Numbers of what GPUs of an architecture have in common whatever joins their nodes, and the
    set-ups that the wider fit counts as for a platform. Families, which are kinds of fabrics, have
    the architecture's."""

    def seconds(self, numbers: Mapping[str, float], sweep: Sweep) -> NDArray[np.float64]:
        """Return the durations of communications that differ in size alone.

        Parameters
        ----------
        numbers : mapping of str to float
            With the keys of `start`; their units are the formula's.
        sweep : Sweep
            Of n sizes.

        Returns
        -------
        float64, shape (n,)
            In seconds.

        Raises
        ------
        InputError
            If the formula does not cover the operation.
        """
        ...


@frozen
class FittedFormula:
    """A formula with its numbers, on one machine.

    Attributes
    ----------
    form : CostFormula
    numbers : mapping of str to float
    system : System
    settings : tuple of (str, str)
        ``NCCL_*`` variables.
    """

    form: CostFormula
    numbers: Mapping[str, float]
    system: System
    settings: NcclVariables = ()

    def seconds(self, operation: Operation, bytes: Bytes, shape: Shape) -> Bytes:
        """Return the duration of a communication, or of several that differ in size alone.

        Parameters
        ----------
        operation : Operation
        bytes : float or float64, shape (n,)
            Of the full buffer.
        shape : Shape
            Of the group.

        Returns
        -------
        float or float64, shape (n,)
            Seconds, an array if `bytes` is one.
        """
        sizes = np.atleast_1d(np.asarray(bytes, np.float64))
        sweep = Sweep(self.system, operation, sizes, shape, self.settings)
        found = self.form.seconds(self.numbers, sweep)
        return found if isinstance(bytes, np.ndarray) else float(found[0])


class NcclFormula:
    """The model of :mod:`mpisim.topo.nccl`; the numbers are its `Factors`."""

    name = "nccl"
    start: Mapping[str, float] = {
        "bandwidth_inside": 1.0,
        "bandwidth_across": 1.0,
        "latency_inside": 1.0,
        "latency_across": 1.0,
        "latency_bulk": 1.0,
    }
    strong_priors: Mapping[str, float] = {"latency_inside": 0.75}
    """Across nodes the latencies inside and across can stand in for each other; those inside are
    the same GPUs' and links'."""
    family_priors: Mapping[str, float] = {"bandwidth_inside": 25.0}
    """Links of a kind differ by some hundredths from machine to machine, and single curves are off
    by as much."""

    def seconds(self, numbers: Mapping[str, float], sweep: Sweep) -> NDArray[np.float64]:
        """Numbers are multipliers, the attributes of `Factors` → durations; see `CostFormula`."""
        model = _nccl(sweep.system, sweep.settings, tuple(numbers.items()))
        return model.seconds_of(sweep.operation, sweep.bytes, sweep.shape)


@lru_cache(maxsize=256)
def _nccl(system: System, settings: NcclVariables, numbers: tuple[tuple[str, float], ...]) -> Nccl:
    return Nccl(system, Settings.of(dict(settings)), Factors(**dict(numbers)))


NIC_ALONE = ("nic_alone", "1")
"""The setting of kernels that use the NIC in the node, too."""


class DeepEpFormula:
    """DeepEP's dispatch and combine; `bytes` is all that one GPU sends, itself included.

    Each GPU writes what others need into their memory, in the node over NVLink and across through
    its own NIC, at the same time; the slower of the two decides. The low-latency kernels of the
    first release used the NIC for all of it (github:deepseek-ai/DeepEP).

    The numbers: shares of the links' bandwidth that are reached, and seconds, of any exchange and
    for each doubling of the nodes.
    """

    name = "deepep"
    start: Mapping[str, float] = {
        "bandwidth_inside": 0.8,
        "bandwidth_across": 0.85,
        "latency_inside": 20e-6,
        "latency_across": 5e-6,
    }
    strong_priors: Mapping[str, float] = {}
    family_priors: Mapping[str, float] = {}

    def seconds(self, numbers: Mapping[str, float], sweep: Sweep) -> NDArray[np.float64]:
        """All-to-alls → durations; with the setting `NIC_ALONE` the NIC serves the node, too.

        See `CostFormula`.
        """
        system, shape = sweep.system, sweep.shape
        if sweep.operation is not Operation.ALL_TO_ALL:
            raise InputError(f"DeepEP does all-to-all, not {sweep.operation.name.lower()}")
        n, per_node = shape.ranks, shape.max_per_node
        stay, leave = (per_node - 1) / n, (n - per_node) / n
        if NIC_ALONE in sweep.settings:
            stay, leave = 0.0, stay + leave
        nic = system.nic_bandwidth * system.nics / system.gpus_per_node
        slowest = max(
            stay / (system.link_bandwidth * numbers["bandwidth_inside"]),
            leave / (nic * numbers["bandwidth_across"]) if leave else 0.0,
        )
        latency = numbers["latency_inside"] + log2(shape.nodes) * numbers["latency_across"]
        return latency + sweep.bytes * slowest


class AlphaBetaFormula:
    """The cost of `AlphaBeta`, its four numbers fitted to a platform."""

    name = "alpha-beta"
    start: Mapping[str, float] = {
        "latency_inside": 20e-6,
        "bandwidth_inside": 200e9,
        "latency_across": 60e-6,
        "bandwidth_across": 100e9,
    }
    strong_priors: Mapping[str, float] = {}
    family_priors: Mapping[str, float] = {}

    def seconds(self, numbers: Mapping[str, float], sweep: Sweep) -> NDArray[np.float64]:
        """Latencies (seconds), bus bandwidths (bytes per second) → durations; see `CostFormula`."""
        where = "inside" if sweep.shape.nodes == 1 else "across"
        factor = bus_factor(sweep.operation, sweep.shape.ranks)
        return numbers[f"latency_{where}"] + factor * sweep.bytes / numbers[f"bandwidth_{where}"]


class EchoFormula:
    """Echo's formulas: collectives as hops and bytes of NCCL's rings and trees.

    With N ranks on M nodes, K a node, a ring all-gather of S bytes takes alpha + gamma eta (N - 1),
    where eta = S / N is what moves in a hop; a ring all-reduce makes twice as many hops and reduces
    all bytes once, delta S; a tree passes K - 1 hops in a node and 2 log2 M across. (Feng et al.,
    "Echo: simulating distributed training at scale", arXiv:2412.12487, equations 2 to 5.) The
    parameters are profiled there; here they are fitted per platform.

    The numbers: `alpha`, of any collective, in seconds; `hop_inside` and `hop_across`, of a hop
    whatever its size; `byte_inside`, seconds a byte of what one GPU sends inside its node, and
    `byte_across`, of what leaves a node through one GPU's share of its NICs; `reduce`, seconds a
    byte of the buffer, where it is reduced.
    """

    name = "echo"
    start: Mapping[str, float] = {
        "alpha": 15e-6,
        "hop_inside": 1e-6,
        "hop_across": 5e-6,
        "byte_inside": 1 / 250e9,
        "byte_across": 1 / 25e9,
        "reduce": 1 / 2000e9,
    }
    strong_priors: Mapping[str, float] = {}
    family_priors: Mapping[str, float] = {}

    def seconds(self, numbers: Mapping[str, float], sweep: Sweep) -> NDArray[np.float64]:
        """Seconds, and seconds per byte → durations; see `CostFormula`."""
        operation, bytes, shape = sweep.operation, sweep.bytes, sweep.shape
        n, nodes, per_node = shape.ranks, shape.nodes, shape.max_per_node
        inside, across = numbers["byte_inside"], numbers["byte_across"]
        alpha, reduce = numbers["alpha"], numbers["reduce"]
        # A ring passes every node's boundary once a round, on as many channels as GPUs.
        ring = inside if nodes == 1 else max(inside, across / per_node)
        crossings = nodes if nodes > 1 else 0
        round_trip = (n - crossings) * numbers["hop_inside"] + crossings * numbers["hop_across"]
        share = (n - 1) / n
        if operation is Operation.ALL_REDUCE:
            by_ring = 2 * round_trip + 2 * share * bytes * ring
            hops = (per_node - 1) * numbers["hop_inside"] + log2(nodes) * numbers["hop_across"]
            # Up and down each byte crosses a GPU's links once each way; a node's boundary too, and
            # of two nodes only half as often, since either is the root of one of the two trees.
            tree = max(inside, across / per_node * (nodes - 1) / nodes)
            by_tree = 2 * hops + 2 * bytes * tree
            found: NDArray[np.float64] = alpha + np.minimum(by_ring, by_tree) + reduce * bytes
            return found
        if operation in (Operation.ALL_GATHER, Operation.GATHER, Operation.SCATTER):
            return alpha + round_trip + share * bytes * ring
        if operation is Operation.REDUCE_SCATTER:
            return alpha + round_trip + share * bytes * ring + reduce * bytes
        if operation in (Operation.BROADCAST, Operation.REDUCE):
            return alpha + round_trip + bytes * ring
        if operation is Operation.ALL_TO_ALL:
            stay, leave = (per_node - 1) / n, (n - per_node) / n
            return alpha + round_trip + bytes * max(stay * inside, leave * across)
        if operation is Operation.SEND_RECV:
            hop = numbers["hop_inside" if nodes == 1 else "hop_across"]
            return alpha + hop + bytes * (inside if nodes == 1 else across)
        raise InputError(f"Echo's formulas do not cover {operation.name.lower()}")

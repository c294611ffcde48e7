"""Run → sensitivity of its step time to each hardware quantity, along the critical path.

The path's pieces add up to the step time. Raising a quantity a little makes each piece shorter or
longer by its elasticity. For a kernel this is the change of its model's time on a GPU that is 1%
faster; for a communication the change of its price on links that are (NCCL's choice held); CPU work
is proportional. The slowdown of an overlapped kernel lasts as long as the communications beside it,
and changes as they do. First order misses that another path may become critical, that NCCL may
choose otherwise, or that another limit may take over (`mpisim.sensitivity` simulates again).

A piece that is inversely proportional to a quantity changes by its length times 1/f - 1 when the
quantity is multiplied by f: `mpisim.prediction.quantities.first_order` extrapolates so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import distinct, equal_columns
from ..base.numbered_texts import NumberedTexts
from ..engine.critical_path import PieceKind
from ..engine.refine import ranges
from ..engine.run import Run
from ..kernels import KernelModel
from ..kernels.operations import Kernel
from ..kernels.slowdown import CLASSES
from ..program import UNPRICED, Operation
from ..results.sensitivities import Sensitivities
from ..topo.alpha_beta import AlphaBeta
from ..topo.network import WEIGHT_ONE
from .path_shares import PathShares
from .prepared import PreparedExperiment
from .quantities import NAMES, SPEEDS, has_fast_links, key_of, name_of, values_now

if TYPE_CHECKING:
    from ..overlap import OverlapSummary
    from .prepared_program import PreparedProgram

__all__ = ["path_sensitivities"]

BANDWIDTH, COMMUNICATIONS = "overlap: bandwidth of memory", "overlap: communications"
"""Numbers that the slowdown of kernels by memory traffic, and of communications, depend on."""

OF_KERNELS = ("hbm_bandwidth", "matrix_rate", "pcie_bandwidth")
"""Numbers of a GPU that kernels depend on."""

MIN_STRETCH = 1.05
"""Times its price that a communication takes at least where it counts as sharing links."""

VARIATION = 1.01
"""Factor of a number whose effect is looked for."""


def path_sensitivities(
    prepared: PreparedExperiment | PreparedProgram,
    run: Run,
    overlap: OverlapSummary | None = None,
    shares: PathShares | None = None,
) -> Sensitivities:
    """Run → sensitivity of its step time to each quantity, the largest first. Local.

    Parameters
    ----------
    prepared : PreparedExperiment or PreparedProgram
    run : Run
        With its critical path.
    overlap : OverlapSummary, optional
        What slowed what overlaps, if that was modelled.
    shares : PathShares, optional
        Of the run, if known.
    """
    now = values_now(prepared)
    parts = _PathParts(prepared, shares or PathShares(prepared, run), overlap, run.mode).parts
    step = max(run.step_time, 1)
    order = {name: i for i, name in enumerate(NAMES)}
    found = {name: parts.get(name, 0.0) / step for name in now if name not in ("memory",)}
    names = sorted(found, key=lambda name: (-abs(found[name]), order[name]))
    return Sensitivities(
        tuple(name_of(name, prepared.cluster) for name in names),
        tuple(key_of(name) for name in names),
        tuple(now[name] for name in names),
        np.array([found[name] for name in names], np.float64),
    )


# --- the path -------------------------------------------------------------------------------------


class _PathParts:
    """Time of a step that is proportional to each quantity, in ps; negative: inversely.

    Attributes
    ----------
    parts : dict of str to float
        By names of `NAMES`.
    """

    def __init__(
        self,
        prepared: PreparedExperiment | PreparedProgram,
        shares: PathShares,
        overlap: OverlapSummary | None,
        mode: str,
    ) -> None:
        self._prepared, self._shares, self._overlap = prepared, shares, overlap
        path = shares.path
        length = path.lengths
        added = np.zeros(len(length), np.int64) if overlap is None else overlap.longer
        self._models: dict[tuple[int, str], KernelModel] = {}
        self._kernels = cache(self._kernel_elasticities)
        self._loads: dict[tuple[int, Any], Any] = {}
        self.parts: dict[str, float] = {}
        kinds = path.kind.tolist()
        shared = mode != "dataflow" and hasattr(prepared.network, "scales_of_link")
        for piece, pieces in shares.equal_pieces():
            kind = kinds[piece]
            whole = float(length[pieces].sum())
            if kind in (PieceKind.HOST, PieceKind.LAUNCH):
                self._add({"launch_time": 1.0}, whole)
            elif kind in (PieceKind.COMPUTE, PieceKind.COPY):
                self._add(self._of_kernel(piece), whole - float(added[pieces].sum()))
            elif kind == PieceKind.COMMUNICATION:
                if shared:
                    self._add_shared(piece, pieces)
                else:
                    self._add(self._of_communication(piece), whole)
        if overlap is not None and prepared.network is not None:
            slowed = overlap.lengths()
            time = overlap.outcome.kernel_time
            self._add_slowdown(added, slowed.get(BANDWIDTH, 0.0), _at_the_end(time))
            # Products use less of a faster memory, and more if they are faster themselves; it is
            # communications that have their links to themselves that are slower for it.
            alone = time[:, 0]
            products = float(alone[CLASSES.index("matrix")] / max(int(alone.sum()), 1))
            wire = 0.0 if shared else products * slowed.get(COMMUNICATIONS, 0.0)
            self._add({"hbm_bandwidth": -1.0, "matrix_rate": 1.0}, wire)

    def _add(self, elasticities: Mapping[str, float], length: float) -> None:
        for name, elasticity in elasticities.items():
            self.parts[name] = self.parts.get(name, 0.0) + elasticity * length

    # --- kernels ----------------------------------------------------------------------------------

    def _of_kernel(self, piece: int) -> Mapping[str, float]:
        prepared, path = self._prepared, self._shares.path
        if self._shares.prepares_batch(piece):
            return {"data_loading": -1.0}
        if not isinstance(prepared, PreparedExperiment):
            return {SPEEDS: -1.0}
        if self._shares.is_of_host_cpu(piece):
            return {"host_memory_bandwidth": -1.0}
        rank, row = int(path.rank[piece]), int(path.row[piece])
        program, layout = prepared.program, prepared.workload.layout
        table = program.table_of(rank)
        device = 0 if layout.gpu_of is None else int(layout.gpu_of[rank])
        key = program.names[table.name[row]], int(table.duration[row])
        kernel = prepared.workload.pricings[device].kernels.get(key)
        return {} if kernel is None else self._kernels(device, kernel)

    def _kernel_elasticities(self, device: int, kernel: Kernel) -> Mapping[str, float]:
        assert isinstance(self._prepared, PreparedExperiment)
        model = self._prepared.workload.pricings[device].model
        before = model.estimate(kernel).duration
        found = {}
        for name in OF_KERNELS if before else ():
            if name == "pcie_bandwidth" and getattr(kernel, "path", "") != "host":
                continue
            varied = self._models.get((device, name))
            if varied is None:
                varied = self._models[device, name] = model.scaled({name: VARIATION})
            after = varied.estimate(kernel).duration
            if after != before:
                found[name] = (after / before - 1) / (1 - 1 / VARIATION)
        return found

    # --- communications ---------------------------------------------------------------------------

    def _of_communication(self, piece: int) -> Mapping[str, float]:
        path, program = self._shares.path, self._prepared.program
        rank, row = int(path.rank[piece]), int(path.row[piece])
        table = program.table_of(rank)
        if table.duration[row] != UNPRICED:
            return {"communications": -1.0}
        group = program.slots_of(rank)[table.slot[row]]
        label = int(self._shares.label[group])
        found = self._price_elasticities(int(table.operation[row]), int(table.bytes[row]), label)
        waits = self._shares.set_up_share(piece)
        if not waits:
            return found
        found = {name: (1 - waits) * each for name, each in found.items()}
        return found | {"latency": found.get("latency", 0.0) + waits}

    def _add_shared(self, piece: int, pieces: NDArray[np.int64]) -> None:
        """Add communications, some of which are slowed by others on shared links.

        One that has the network to itself answers as its price does. One that shares links all
        along moves its bytes as fast as the link does that is loaded most when all groups of its
        kind communicate at once. One in between is taken to move a part of its bytes so.
        """
        path, network = self._shares.path, self._prepared.network
        program = self._prepared.program
        assert network is not None
        alone = self._of_communication(piece)
        length, times = (path.end - path.begin)[pieces], path.times[pieces]
        rank, row = int(path.rank[piece]), int(path.row[piece])
        table = program.table_of(rank)
        whole = float((length * times).sum())
        if table.duration[row] != UNPRICED or self._shares.set_up_share(piece):
            self._add(alone, whole)
            return
        groups = self._groups_of(pieces)
        label = int(self._shares.label[groups[0]])
        operation, size = Operation(int(table.operation[row])), int(table.bytes[row])
        price = network.price(operation, size, self._shares.classes[label])
        late = length > MIN_STRETCH * price.duration
        if price.pattern is None or not late.any():
            self._add(alone, whole)
            return
        self._add(alone, float((length * times)[~late].sum()))
        for group in distinct(groups[late]).tolist():
            here = late & (groups == group)
            each = (length * times)[here].astype(float)
            found = self._shared_link(group, price.pattern)
            slowest = price if found is None else price._replace(rate=min(found[0], price.rate))
            more = slowest.duration - price.duration
            if found is None or not more:
                self._add(alone, float(each.sum()))
                continue
            part = np.minimum((length[here] - price.duration) / more, 1.0)
            flowing = (slowest.duration - slowest.latency) / slowest.duration
            shared = float((each * part * slowest.duration / length[here]).sum())
            shared = min(shared, float(each.sum()))
            self._add(dict.fromkeys(found[1], -flowing), shared)
            latency = alone.get("latency", 0.0) * price.duration / slowest.duration
            self._add({"latency": latency}, shared)
            self._add(alone, float(each.sum()) - shared)

    def _groups_of(self, pieces: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the group of each communication: its slot is that of its own rank's table."""
        path, program = self._shares.path, self._prepared.program
        ranks, rows = path.rank[pieces], path.row[pieces]
        slots = np.empty(len(pieces), np.int64)
        for rank in distinct(ranks).tolist():
            own = ranks == rank
            slots[own] = program.table_of(int(rank)).slot[rows[own]]
        found: NDArray[np.int64] = program.slots[program.slot_index[ranks] + slots]
        return found

    def _shared_link(self, group: int, pattern: Any) -> tuple[int, tuple[str, ...]] | None:
        """Group of an operation → the rate that its most loaded link leaves it, the link's factors.

        All groups of its kind communicate at the same time; the rate is in units of prices.
        """
        network: Any = self._prepared.network
        index, links, weights = self._loads_of_kind(self._kinds_of_groups[group], pattern)
        members = np.flatnonzero(self._kinds_of_groups == self._kinds_of_groups[group])
        at = int(np.searchsorted(members, group))
        own = slice(int(index[at]), int(index[at + 1]))
        if own.start == own.stop:
            return None
        total = np.bincount(links, weights.astype(float), minlength=len(network.capacity))
        rates = network.capacity[links[own]] / total[links[own]] * WEIGHT_ONE
        lowest = int(np.argmin(rates))
        return max(1, int(rates[lowest])), network.scales_of_link(int(links[own][lowest]))

    def _loads_of_kind(self, kind: int, pattern: Any) -> Any:
        """Return the links that all groups of a kind load."""
        known = self._loads.get((kind, pattern))
        if known is None:
            groups = self._prepared.program.communicators
            which = np.flatnonzero(self._kinds_of_groups == kind)
            entries, _ = ranges(groups.index, which)
            index = np.concatenate([[0], np.cumsum(groups.sizes[which])]).astype(np.int64)
            network: Any = self._prepared.network
            known = network.loads(index, groups.members[entries], pattern)
            self._loads[kind, pattern] = known
        return known

    @cached_property
    def _kinds_of_groups(self) -> NDArray[np.int64]:
        """Equal numbers for communicators whose names differ in numbers alone."""
        known: dict[str, int] = {}
        names = self._prepared.program.communicators.names
        if isinstance(names, NumberedTexts):
            return names.part
        words = (name.rstrip("0123456789 ") for name in names)
        return np.array([known.setdefault(word, len(known)) for word in words], np.int64)

    def _price_elasticities(self, operation: int, size: int, label: int) -> Mapping[str, float]:
        network: Any = self._prepared.network
        group: Any = self._shares.classes[label]
        if isinstance(network, AlphaBeta):
            fast = self._prepared.cluster is not None and has_fast_links(self._prepared.cluster)
            names = {
                "node_bandwidth": ("link_bandwidth" if fast else "pcie_bandwidth", -1.0),
                "network_bandwidth": ("nic_bandwidth", -1.0),
                "node_latency": ("latency", 1.0),
                "network_latency": ("latency", 1.0),
            }
            shares = network.shares(Operation(operation), size, group)
            known = [(*names[name], share) for name, share in shares.items() if name in names]
            return {name: sign * share for name, sign, share in known}
        if not hasattr(network, "elasticities"):
            return {}
        found: Mapping[str, float] = network.elasticities(Operation(operation), size, group)
        return found

    def _add_slowdown(self, added: NDArray[np.int64], by_traffic: float, at_the_end: float) -> None:
        """Add the slowdown of overlapped kernels, in ps: `added` by piece.

        Of it `by_traffic` is in proportion to the share of the memory's bandwidth that
        communications take.

        It lasts as long as what runs beside: communications that are shorter end earlier beside a
        kernel, which is slowed `at_the_end` times as much as those before on the average, and take
        more of the memory's bandwidth until then. Those beside are taken to be all of the rank's
        that are not on the path.
        """
        self._add({"hbm_bandwidth": -1.0}, by_traffic)
        whole = float(added.sum())
        path, program = self._shares.path, self._prepared.program
        of_piece = program.table[path.rank]
        for number in distinct(of_piece[added > 0]).tolist():
            here = of_piece == number
            own = float(added[here].sum())
            self._add(self._beside(number, here), own * (at_the_end - by_traffic / whole))

    def _beside(self, number: int, here: NDArray[np.bool_]) -> dict[str, float]:
        """Return the mean elasticities of a table's communications that are not on the path."""
        path, program = self._shares.path, self._prepared.program
        rank = int(path.rank[np.argmax(here)])
        table = program.table_of(rank)
        rows = np.flatnonzero((table.slot >= 0) & (table.duration == UNPRICED))
        on_path = path.row[here & (path.kind == PieceKind.COMMUNICATION)]
        rows = rows[~np.isin(rows, on_path)]
        if not len(rows):
            return {}
        label = self._shares.label[program.slots_of(rank)[table.slot[rows]]]
        columns = np.stack([table.operation[rows].astype(np.int64), table.bytes[rows] + 1, label])
        kind, n = equal_columns(columns)
        first = np.zeros(n, np.int64)
        first[kind] = np.arange(len(kind))
        assert self._overlap is not None
        count = np.bincount(kind, self._overlap.times_of_rows(rank, rows), minlength=n)
        found: dict[str, float] = {}
        total = 0.0
        network = self._prepared.network
        assert network is not None
        for (operation, more, at), times in zip(
            columns[:, first].T.tolist(), count.tolist(), strict=True
        ):
            of_group = self._shares.classes[at]
            time = times * network.price(Operation(operation), more - 1, of_group).duration
            total += time
            for name, share in self._price_elasticities(operation, more - 1, at).items():
                found[name] = found.get(name, 0.0) + share * time
        return {name: part / total for name, part in found.items()} if total else {}


def _at_the_end(kernel_time: NDArray[np.object_]) -> float:
    """Return the slowdown of kernels in which communications end, over the mean of all classes.

    That is the one that takes most of the time beside them: the others are short, and begin where
    communications do.

    Parameters
    ----------
    kernel_time : int, shape (classes, 2)
        Alone, and beside communications, in ps.
    """
    alone, beside = kernel_time.T.astype(float)
    added = beside - alone
    if not added.sum():
        return 1.0
    longest = int(np.argmax(alone))
    return float(added[longest] / alone[longest] / (added.sum() / alone.sum()))

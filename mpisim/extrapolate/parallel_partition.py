"""A recorded pipeline and a number of stages → which recorded layers each new stage runs.

The same layers, with their recorded times, are run by more stages or fewer: what a stage does
before and behind its layers (embedding, head and loss) stays with the first and the last stage.

How many bytes of gradients a layer has follows from what the stages reduce: a stage between the
others has layers alone; of two stages the last has, besides layers, a copy of the embedding whose
gradients both add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..base.frozen import frozen
from ..kernels.operations import Gemm
from ..program import Kind, Program
from .parallel_overlap import KernelsByName
from .parallel_passes import RecordedStage, recorded_stage
from .parallel_structure import Axis, ParallelStructure

__all__ = ["GradientBytes", "StagePartition"]


@frozen(eq=False)
class GradientBytes:
    """Bytes of gradients of the parts of a model.

    Attributes
    ----------
    first, layer, last : float
        What the first stage has besides layers, one layer, and the last stage besides layers.
    how : str
        What tells them, as a clause.
    """

    first: float
    layer: float
    last: float
    how: str


class StagePartition:
    """Which recorded layers each new stage of a pipeline runs, and its share of the parameters.

    Parameters
    ----------
    program : Program
        Whole, as recorded.
    structure : ParallelStructure
        Of this program.
    stages : int
        Of the new pipeline.
    node : int
        Ranks of a node.
    floor : int
        Of each kernel's time, what it takes besides its work, in ps.
    kernels : mapping of str to sequence of (int, Kernel)
        What kernels compute, by name and time in ps, where shapes are on record.

    Raises
    ------
    InputError
        If passes or layers cannot be told apart, or layers do not divide.
    """

    def __init__(
        self,
        program: Program,
        structure: ParallelStructure,
        stages: int,
        node: int,
        floor: int,
        kernels: KernelsByName,
    ) -> None:
        self.kernels = kernels
        self.recorded, self.structure, self.stages = program, structure, stages
        self.node, self.floor = node, floor
        pp = structure.axis("pp")
        assert pp is not None
        self.pp, self.recorded_stages = pp, structure.axes[pp].size
        self.rank_at = {tuple(place): rank for rank, place in enumerate(structure.place.tolist())}
        self.of_rank: dict[int, RecordedStage] = {}
        signatures: dict[tuple[Any, ...], int] = {}
        places = structure.place.tolist()
        for rank in sorted(range(program.n_ranks), key=lambda rank: places[rank][pp]):
            start = [0 if i == pp else at for i, at in enumerate(places[rank])]
            first_stage = self.of_rank.get(self.rank_at[tuple(start)])
            self.of_rank[rank] = recorded_stage(program, structure, rank, signatures, first_stage)
        first = self._column({})
        counts = [each.layers for each in first]
        self.layers = sum(counts)
        self.micro_batches = first[0].micro_batches
        gpipe = any(each.schedule == "gpipe" for each in self.of_rank.values())
        self.schedule = "gpipe" if gpipe else "1f1b"
        for rank, each in self.of_rank.items():
            expected = counts[structure.place[rank, pp]]
            if each.layers != expected or each.micro_batches != self.micro_batches:
                raise InputError(
                    f"--pp: rank {structure.ranks[rank]} has {each.layers} layers and "
                    f"{each.micro_batches} micro-batches, others of its stage {expected} and "
                    f"{self.micro_batches}"
                )
        if self.layers % stages:
            allowed = [n for n in range(2, self.layers + 1) if self.layers % n == 0]
            raise InputError(
                f"--pp {stages}: the recording has {self.layers} layers, which cannot be dealt "
                f"evenly; allowed are {', '.join(map(str, allowed))}"
            )
        self.owner = [(s, i) for s, count in enumerate(counts) for i in range(count)]
        """Of each layer, its recorded stage and its number there."""
        self.gradients = self._gradient_bytes(first)
        sizes = [axis.size for axis in structure.axes]
        sizes[pp] = stages
        strides = np.cumprod([1, *sizes])
        self.axes = tuple(
            Axis(axis.name, size, int(stride))
            for axis, size, stride in zip(structure.axes, sizes, strides, strict=False)
        )

    @property
    def said(self) -> str:
        """What was assumed."""
        each = self.layers // self.stages
        order = "GPipe" if self.schedule == "gpipe" else "1F1B"
        return (
            f"{self.stages} stages in place of {self.recorded_stages}: {self.layers} layers, found "
            f"as rows that repeat, {each} on each, with their recorded times, in the order of "
            f"{order}; {self.gradients.how}; optimizer and gradients by each stage's share of these"
        )

    def _column(self, fixed: Mapping[int, int]) -> list[RecordedStage]:
        """Recorded stages of one pipeline, at given places of the other axes."""
        found = []
        for stage in range(self.recorded_stages):
            place = [fixed.get(i, 0) for i in range(len(self.structure.axes))]
            place[self.pp] = stage
            found.append(self.of_rank[self.rank_at[tuple(place)]])
        return found

    def _gradient_bytes(self, column: Sequence[RecordedStage]) -> GradientBytes:
        """Recorded stages of one pipeline → bytes of gradients of a layer, and of both ends."""
        reduced = [each.reduced for each in column]
        if not all(reduced):
            raise InputError(
                "--pp: no gradients are reduced over replicas, whose bytes would tell how much of "
                "the model each stage has"
            )
        first, last = column[0], column[-1]
        if self.recorded_stages > 2:
            middle = column[1]
            layer = middle.reduced / middle.layers
            how = "gradients of a layer as of a stage between the others"
        elif first.tied:
            layer = (last.reduced - first.tied) / last.layers
            how = "the last stage has, besides layers, the embedding that both ends reduce"
        else:
            elements = self._matrices(first)
            fit = [n for n in (4, 2) if n * elements * self.layers <= 2 * min(reduced)]
            if not elements or not fit:
                raise InputError(
                    "--pp: of two stages without tied embeddings it is not known how large "
                    "embedding and head are; record three stages or more, or shapes "
                    "(record_shapes=True)"
                )
            layer = float(fit[0] * elements)
            how = f"its matrices, of {fit[0]} bytes an element"
        ends = (
            first.reduced - layer * first.layers,
            last.reduced - layer * last.layers,
        )
        if layer <= 0 or min(ends) < 0:
            raise InputError(
                f"--pp: stages reduce {', '.join(f'{each:,}' for each in reduced)} bytes of "
                "gradients, which is no number for each layer"
            )
        how = f"{layer / 2**20:.1f} MiB of gradients a layer: {how}"
        return GradientBytes(ends[0], layer, ends[1], how)

    def _matrices(self, first: RecordedStage) -> int:
        """Elements of the matrices of a layer, by the shapes of its forward's products."""
        table, found = first.table, 0
        for row in first.passes[1].layers[0]:
            known = self.kernels.get(self.recorded.names[table.name[row]])
            if known and table.kind[row] == Kind.KERNEL:
                time = int(table.duration[row])
                kernel = min(known, key=lambda pair: abs(pair[0] - time))[1]
                if isinstance(kernel, Gemm) and kernel.batch == 1:
                    found += kernel.n * kernel.k  # m counts tokens
        return found

    def gradient_bytes(self, stage: int) -> float:
        """Bytes of gradients of a new stage."""
        size = self.gradients.layer * self.layers / self.stages
        size += self.gradients.first if stage == 0 else 0.0
        return size + (self.gradients.last if stage == self.stages - 1 else 0.0)

    def same_place(self, old: Sequence[int], new: Sequence[int]) -> bool:
        """Whether groups before and now stand in as many nodes."""
        ranks = [self.structure.ranks[i] for i in old]
        nodes = [len({rank // self.node for rank in each}) for each in (ranks, new)]
        return nodes[0] == nodes[1]

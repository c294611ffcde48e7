"""A recorded pipeline and a number of stages → which recorded layers each new stage runs.

The same layers, with their recorded times, are run by more stages or fewer: what a stage does
before and behind its layers (embedding, head and loss) stays with the first and the last stage.

How many bytes of gradients a layer has follows from what the stages reduce: a stage between the
others has layers alone; of two stages the last has, besides layers, a copy of the embedding whose
gradients both add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..base.errors import InputError
from ..base.frozen import frozen
from ..kernels.operations import Gemm
from ..program import Kind, Program
from ..schedules import SCHEDULES as CATALOGUE
from .parallel_axes import Axis
from .parallel_order import Pass, PipelineOrder
from .parallel_overlap import KernelsByName
from .parallel_passes import recorded_stages
from .parallel_recorded import RecordedStage
from .parallel_structure import ParallelStructure

__all__ = ["GradientBytes", "StagePartition"]


@frozen(eq=False)
class GradientBytes:
    """Bytes of gradients of the parts of a model.

    Attributes
    ----------
    first, layer, last : float
        What the first stage has besides layers, one layer, and the last stage besides layers.
    experts : float
        Of one layer, a rank's share of the experts.
    how : str
        What tells them, as a clause.
    """

    first: float
    layer: float
    last: float
    experts: float
    how: str


class StagePartition:
    """Which recorded layers each new stage of a pipeline runs, and its share of the parameters.

    The model is cut into parts in sequence: chunk c of stage s is part c × stages + s.

    Parameters
    ----------
    program : Program
        Whole, as recorded.
    structure : ParallelStructure
        Of this program.
    stages : int
        Of the new pipeline.
    schedule : str, optional
        Of the new pipeline, one of `SCHEDULES`; by default the recorded one.
    chunks : int, optional
        Of each stage of an interleaved schedule; by default as recorded.
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
        *,
        schedule: str | None = None,
        chunks: int | None = None,
    ) -> None:
        self.kernels = kernels
        self.recorded, self.structure, self.stages = program, structure, stages
        self.node, self.floor = node, floor
        pp = structure.axis("pp")
        assert pp is not None
        self.pp, self.recorded_stages = pp, structure.axes[pp].size
        self.rank_at = {tuple(place): rank for rank, place in enumerate(structure.place.tolist())}
        self.of_rank = recorded_stages(program, structure)
        first = self._column({})
        self.before = first[0].order
        self.order = self._new_order(schedule, chunks)
        counts = [each.layers for each in first]
        self.layers = sum(counts) * self.before.chunks
        for rank, each in self.of_rank.items():
            expected = counts[structure.place[rank, pp]]
            if each.layers != expected:
                raise InputError(
                    f"--pp: rank {structure.ranks[rank]} has {each.layers} layers a chunk, others "
                    f"of its stage {expected}"
                )
        if self.layers % self.order.parts:
            per = self.order.chunks
            allowed = [n for n in range(2, self.layers // per + 1) if self.layers % (n * per) == 0]
            option, to = f"--pp {stages}", ""
            if per > 1:
                option, to = f"{option} with --vpp {per}", f" to {per} chunks a stage"
            numbers = f"allowed are {', '.join(map(str, allowed))} stages"
            raise InputError(
                f"{option}: the recording has {self.layers} layers, which cannot be dealt evenly"
                f"{to}; {numbers if allowed else 'no number of stages goes with so many'}"
            )
        self.owner = [
            (part % self.recorded_stages, part // self.recorded_stages, i)
            for part in range(self.before.parts)
            for i in range(counts[part % self.recorded_stages])
        ]
        """Of each layer, its recorded stage, chunk and number there."""
        self.gradients = self._gradient_bytes(first)
        sizes = [axis.size for axis in structure.axes]
        sizes[pp] = stages
        strides = np.cumprod([1, *sizes])
        self.axes = tuple(
            Axis(axis.name, size, int(stride))
            for axis, size, stride in zip(structure.axes, sizes, strides, strict=False)
        )

    def _new_order(self, schedule: str | None, chunks: int | None) -> PipelineOrder:
        """The order of the new pipeline; refuses what its schedule cannot work with."""
        before = self.before
        name = schedule or before.schedule
        if name != "interleaved" and chunks not in (None, 1):
            raise InputError(f"--vpp {chunks}: the schedule is {name}; interleaved has chunks")
        several = before.chunks if before.chunks > 1 else 2
        count = 1 if name != "interleaved" else several if chunks is None else chunks
        # A group of more than the stages stays; Megatron-LM's default is as many as stages.
        group = before.group if before.group > before.stages else self.stages
        order = PipelineOrder(
            *(name, self.stages, before.micro_batches, count),
            group=group if name == "interleaved" else 0,
            fused=before.fused,
        )
        order.laid_out()
        return order

    @property
    def drops_waits(self) -> bool:
        """Whether the CPU, which waited for messages as recorded, does not in the new order.

        It is Megatron-LM that waits for its batches (``batch_p2p_sync``); a schedule that this has
        not is run by others, which do not.
        """
        old, new = (CATALOGUE[each.schedule].megatron for each in (self.before, self.order))
        return old and not new

    @property
    def said(self) -> str:
        """Assumptions of the partition, a line each."""
        each = self.layers // self.order.parts
        where = "on each" if self.order.chunks == 1 else "in each chunk"
        stages = f"{self.stages} stages"
        if self.stages != self.recorded_stages:
            stages += f" in place of {self.recorded_stages}"
        order = f"in the order of {self.order.text}"
        if self.order.schedule != self.before.schedule or self.order.chunks != self.before.chunks:
            order += f" in place of {self.before.text}"
        if self.order.schedule == "gpipe" and self.before.schedule != "gpipe":
            order += " (the head's backward right behind its forward, from which it is not told)"
        if self.drops_waits:
            order += " (the CPU no longer waits for messages; Megatron-LM, which does, lacks it)"
        return (
            f"{stages}: {self.layers} layers, found as rows that repeat, {each} {where}, with "
            f"their recorded times, {order}; {self.gradients.how}; optimizer and gradients by each "
            "stage's share of these"
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
        if not all(each.reduced for each in column):
            raise InputError(
                "--pp: no gradients are reduced over replicas, whose bytes would tell how much of "
                "the model each stage has"
            )
        reduced = [each.reduced - each.reduced_of_experts for each in column]
        first = column[0]
        of_stage = [each.layers * self.before.chunks for each in column]
        experts = sum(each.reduced_of_experts for each in column) / sum(of_stage)
        inside = first.reduces[-1] if self.before.chunks > 1 else []
        if self.recorded_stages > 2:
            layer = reduced[1] / of_stage[1]
            how = "gradients of a layer as of a stage between the others"
        elif inside:
            rows = [row for row in inside if not first.is_of_experts(row)]
            layer = int(first.table.bytes[rows].sum()) / first.layers
            how = "gradients of a layer as of the first stage's last chunk"
        elif first.tied:
            layer = (reduced[-1] - first.tied) / of_stage[-1]
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
        ends = (reduced[0] - layer * of_stage[0], reduced[-1] - layer * of_stage[-1])
        if layer <= 0 or min(ends) < 0:
            raise InputError(
                f"--pp: stages reduce {', '.join(f'{each:,}' for each in reduced)} bytes of "
                "gradients, which is no number for each layer"
            )
        how = f"{(layer + experts) / 2**20:.1f} MiB of gradients a layer: {how}"
        if experts:
            how += f", and {experts / 2**20:.1f} MiB of experts"
        return GradientBytes(ends[0], layer + experts, ends[1], experts, how)

    def _matrices(self, first: RecordedStage) -> int:
        """Elements of the matrices of a layer, by the shapes of its forward's products."""
        table, found = first.table, 0
        for row in first.passes[Pass(True, 0, 0)].layers[0]:
            known = self.kernels.get(self.recorded.names[table.name[row]])
            if known and table.kind[row] == Kind.KERNEL:
                time = int(table.duration[row])
                kernel = min(known, key=lambda pair: abs(pair[0] - time))[1]
                if isinstance(kernel, Gemm) and kernel.batch == 1:
                    found += kernel.n * kernel.k  # m counts tokens
        return found

    def part_bytes(self, part: int) -> float:
        """Bytes of gradients of a part of the new pipeline."""
        size = self.gradients.layer * self.layers / self.order.parts
        size += self.gradients.first if part == 0 else 0.0
        return size + (self.gradients.last if part == self.order.parts - 1 else 0.0)

    def recorded_part_bytes(self, part: int) -> float:
        """Bytes of gradients of a part of the recorded pipeline."""
        stage = part % self.recorded_stages
        size = self.gradients.layer * self._column({})[stage].layers
        size += self.gradients.first if part == 0 else 0.0
        return size + (self.gradients.last if part == self.before.parts - 1 else 0.0)

    def gradient_bytes(self, stage: int) -> float:
        """Bytes of gradients of a new stage."""
        return sum(self.part_bytes(part) for part in range(stage, self.order.parts, self.stages))

    def same_place(self, old: Sequence[int], new: Sequence[int]) -> bool:
        """Whether groups before and now stand in as many nodes."""
        ranks = [self.structure.ranks[i] for i in old]
        nodes = [len({rank // self.node for rank in each}) for each in (ranks, new)]
        return nodes[0] == nodes[1]

"""SimAI workload → program."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from pathlib import Path

from ..base.errors import InputError
from ..program import Kind, Operation, Phase, Program, ProgramBuilder, Table, TableBuilder
from ..schedules import Pipeline, pipeline
from .rank_limit import bounded_ranks
from .simai import Part, SimaiWorkload, read_simai
from .simai_layers import Act, MicroBatches, ParallelGroups, backward, forward, micro_batches

__all__ = ["simai_program"]

COMPUTE = 0
"""Stream of all computation; communications have one for each kind of group."""
_MOST_LAYERS = 2**15 - 1


def simai_program(workload: SimaiWorkload | Path | str, n_ranks: int = 0) -> Program:
    """SimAI workload → program of one training step, its communications unpriced.

    Every rank works through the layers of the file as SimAI has it: forward from first to last,
    backward from last to first, the input gradient of a layer before its weight gradient (but with
    DATA and DLRM). In a HYBRID_TRANSFORMER workload what follows waits for communications of the
    forward pass and of input gradients; those of weight gradients overlap. A layer's update time
    passes behind each of its communications.

    A file lists the micro-batches of one pipeline stage one after the other, and every stage has
    those layers. With several stages they go through a schedule: 1F1B, interleaved where a stage
    has several chunks (``vpp``), with a message of ``pp_comm`` bytes between chunks; layers before
    the first micro-batch and behind the last stay there. SimAI itself simulates no pipeline; its
    analytical mode adds the bubble of such a schedule, (pp-1)/(ga·vpp) of the stage's time.

    Parameters
    ----------
    workload : SimaiWorkload or path
    n_ranks : int
        Where the file does not say (``all_gpus``).

    Raises
    ------
    InputError
        If the file cannot be read, or its sizes do not fit together.
    """
    if not isinstance(workload, SimaiWorkload):
        workload = read_simai(workload)
    if workload.n_ranks and n_ranks and workload.n_ranks != n_ranks:
        raise InputError(
            f"{workload.path}: line 1: 'all_gpus' is {workload.n_ranks}, but {n_ranks} ranks are "
            "asked for"
        )
    n_ranks = bounded_ranks(workload.n_ranks or n_ranks, f"{workload.path}")
    if not n_ranks:
        raise InputError(f"{workload.path}: the file does not say for how many ranks; give --ranks")
    grid = ParallelGroups(workload, n_ranks)
    builder = ProgramBuilder()
    plan, batches = _plan(workload)
    writers = []
    for stage in range(grid.stages):
        writer = _StageWriter(workload, grid, builder.table(f"stage {stage}"), plan, stage)
        builder.add_table(writer.write(batches))
        writers.append(writer)
    for rank in range(n_ranks):
        stage = grid.stage(rank)
        slots = [
            builder.communicator(members, name) for members, name in writers[stage].bound(rank)
        ]
        builder.add_rank(stage, slots)
    return builder.build({"source": "SimAI", "policy": workload.policy, **_untimed(workload)})


def _untimed(workload: SimaiWorkload) -> dict[str, str]:
    """Say how many layers have no compute time: SimAI takes them for done at once."""
    passes = ("forward", "input_gradient", "weight_gradient")
    without = sum(
        not any(getattr(layer, each).duration for each in passes) for layer in workload.layers
    )
    if not without:
        return {}
    of_all = f"{without:,} of {len(workload.layers):,}"
    return {"no compute time": f"{of_all} layers; their communications alone take time"}


def _plan(workload: SimaiWorkload) -> tuple[Pipeline | None, MicroBatches | None]:
    """Return the schedule of a pipeline of several stages."""
    if workload.pipeline == 1:
        return None, None
    if workload.recomputes:
        raise InputError(f"{workload.path}: line 1: checkpoint_initiates with 'pp' above 1")
    try:
        plan = pipeline(
            "interleaved" if workload.chunks > 1 else "1f1b",
            workload.pipeline,
            workload.micro_batches,
            workload.chunks,
        )
    except InputError as error:
        raise InputError(f"{workload.path}: line 1: {error}") from error
    return plan, micro_batches(workload)


class _StageWriter:
    """The rows of one pipeline stage: the same for all its ranks but for the communicators."""

    def __init__(
        self,
        workload: SimaiWorkload,
        grid: ParallelGroups,
        rows: TableBuilder,
        plan: Pipeline | None,
        stage: int,
    ) -> None:
        self.workload, self.grid, self.rows = workload, grid, rows
        self.plan, self.stage = plan, stage
        self.slots: dict[tuple[str, int, int], int] = {}  # kind, other stage, chunk
        self.streams: dict[Hashable, int] = {"compute": COMPUTE}
        self.chain: list[int] = []  # what the next row waits for, and how long after it starts
        self.gap = 0
        self.overlapping: dict[tuple[int, str], int] = {}

    def write(self, batches: MicroBatches | None) -> Table:
        """Return the table."""
        workload = self.workload
        n = len(workload.layers)
        if batches is None:
            for layer in range(n):
                self._do(forward(workload, layer))
            for layer in reversed(range(n)):
                self._do(backward(workload, layer))
        else:
            behind = batches.first + batches.length * workload.micro_batches
            for layer in range(batches.first):
                self._do(forward(workload, layer))
            self._pipeline(batches)
            for layer in range(behind, n):
                self._do(forward(workload, layer))
            for layer in (*reversed(range(behind, n)), *reversed(range(batches.first))):
                self._do(backward(workload, layer))
        if self.gap:
            self.rows.host_wait(self.chain, tail=self.gap, name="update")
        return self.rows.build()

    def bound(self, rank: int) -> Iterator[tuple[range | tuple[int, int], str]]:
        """Yield members and name of the communicator of each slot of a rank of this stage."""
        for kind, other, chunk in self.slots:
            if other < 0:
                yield self.grid.members(kind, rank), kind
            else:
                peer = self.grid.peer(rank, other)
                way, _, phase = kind.partition(" ")
                yield (rank, peer) if way == "send" else (peer, rank), f"{phase} {chunk}"

    # --- pipeline -------------------------------------------------------------------------------

    def _pipeline(self, batches: MicroBatches) -> None:
        """Write what the schedule has this stage do.

        A message is called after its direction and the chunk it leaves.
        """
        assert self.plan is not None
        plan, stage = self.plan, self.stage
        for action in plan.actions[stage]:
            ahead = action.phase is Phase.FORWARD
            chunk, begin = action.chunk, batches.first + action.micro_batch * batches.length
            first, last = batches.chunks[chunk], batches.chunks[chunk + 1]
            layers = range(begin + first, begin + last)
            self.rows.tags(phase=action.phase, layer=-1, micro_batch=action.micro_batch)
            before, behind = plan.previous(stage, chunk), plan.next(stage, chunk)
            source, target = (before, behind) if ahead else (behind, before)
            way = "forward" if ahead else "backward"
            if source is not None:
                self.chain.append(self._message(Kind.RECV, way, source[0], source[1]))
            for layer in layers if ahead else reversed(layers):
                self._do((forward if ahead else backward)(self.workload, layer))
            if target is not None:
                self.rows.tags(phase=action.phase, layer=-1)
                self._message(Kind.SEND, way, target[0], chunk)
        self.rows.tags(micro_batch=-1)

    def _message(self, kind: Kind, way: str, other: int, chunk: int) -> int:
        name = f"{kind.name.lower()} {way}"
        sends = kind is Kind.SEND
        return self.rows.point_to_point(
            kind,
            self._slot(name, other, chunk),
            self._stream((name, other, chunk)),
            self.workload.pipeline_bytes,
            name=name,
            waits=self.chain if sends else (),
            gap=self.gap if sends else 0,
        )

    # --- layers ---------------------------------------------------------------------------------

    def _do(self, acts: Iterator[Act]) -> None:
        for act in acts:
            layer = self.workload.layers[act.layer]
            part: Part = getattr(layer, act.part)
            self.rows.tags(phase=act.phase, layer=act.layer if act.layer <= _MOST_LAYERS else -1)
            key = (act.layer, act.part)
            if act.what == "compute":
                if part.duration:
                    row = self.rows.kernel(
                        layer.name, COMPUTE, part.duration, waits=self.chain, gap=self.gap
                    )
                    self.chain, self.gap = [row], 0
            elif act.what == "wait":
                if key in self.overlapping:
                    self.chain.append(self.overlapping.pop(key))
            else:
                self._communicate(act, key)

    def _communicate(self, act: Act, key: tuple[int, str]) -> None:
        """Append a communication, if there is anything to send and anyone to send it to."""
        layer = self.workload.layers[act.layer]
        operation, group, size = getattr(layer, act.part).communication
        kind = self.grid.kind(act.layer, act.part, group)
        if operation is Operation.NONE or not size or kind == "none":
            return
        if len(self.grid.members(kind, 0)) == 1:
            return
        stream = self._stream(kind)
        row = self.rows.collective(
            operation,
            self._slot(kind),
            stream,
            size,
            name=f"{layer.name} {operation.name.lower()} {kind}",
            waits=self.chain,
            gap=self.gap,
        )
        if act.what == "block":
            self.chain, self.gap = [row], layer.update
        elif layer.update:
            # The delay passes beside whatever goes on.
            row = self.rows.kernel(
                f"{layer.name} update", self._stream((kind, "update")), layer.update, waits=[row]
            )
        if act.what == "overlap":
            self.overlapping[key] = row

    def _slot(self, kind: str, other: int = -1, chunk: int = -1) -> int:
        return self.slots.setdefault((kind, other, chunk), len(self.slots))

    def _stream(self, key: Hashable) -> int:
        return self.streams.setdefault(key, len(self.streams))

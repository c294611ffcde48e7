"""Program file of a captured job of one rank → a traced step, whose kernels no one has measured.

``mpisim capture --save-program`` keeps the calls of such a job with their shapes, and where each is
from (:mod:`mpisim.capture.kept_step`). Sorted into passes and layers they are the same as a trace:

forward
    Outside of autograd's engine. An operator has made the nodes of autograd up to the number that
    the next one gets, views before it included.
backward
    Inside the engine, computed again or not: of the forward operator that made the node at work.
parameters
    Each gradient that was accumulated is of one. It belongs to the first forward operator that
    works on the parameter, which is the last of its users in the backward pass.
optimizer
    Inside ``Optimizer.step``, and what comes between the backward pass and that.

Casts of weights alone go with the operator behind them, as ``torch.autocast`` makes them for it.
Kernels have the times of the kernel model on the GPU that is asked for, and its error bars;
launches and gaps are those of the GPU, as in programs that mpisim generates.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..base.errors import InputError
from ..base.hdf5 import open_file
from ..base.hdf5_data import read_attributes
from ..base.kinds import Operation, Phase
from ..capture.kept_step import CAPTURED, recording_of
from ..capture.recording import ACCUMULATES, Item, ItemKind, Recording
from ..kernels import find_gpu, gpu_name
from ..kernels.analytical import analytical_model
from ..kernels.model import KernelModel
from ..kernels.operations import Copy, Kernel
from ..kernels.recorded import Recorded, RecordedKernels
from ..kernels.scaled import rated_gpu
from ..operators import OperatorCall
from ..operators.table import kernels_of
from ..operators.tensors import Launched, all_tensors
from ..program import KEPT_STEP
from ..program.store import FORMAT, VERSION
from .optimizer_share import list_call
from .roles import activations, described
from .step import (
    TracedKernel,
    TracedOperator,
    TracedParameter,
    TracedStep,
    TracedTask,
    TracedWait,
    taken_as_one_stream,
)

__all__ = ["check_captured", "priced_for", "read_captured_step"]

_ASSUMED_GPU = "h100-sxm"
"""That kernels are priced for until it is said where they are to run."""

_REPLICATED = "DistributedDataParallel"


def check_captured(path: Path | str) -> str:
    """Program file → the text of the captured step in it. Local.

    Parameters
    ----------
    path : Path or str
        A file of mpisim (HDF5).

    Raises
    ------
    InputError
        If it is no program file, or one of no captured job of one rank: the message says what to
        do.
    """
    with open_file(path, FORMAT, VERSION) as file:
        attributes = read_attributes(file)
    if KEPT_STEP in attributes:
        return attributes[KEPT_STEP]
    if CAPTURED not in attributes:
        raise InputError(
            f"{path}: a program, which holds no shapes of tensors; mpisim run simulates it, and "
            "for another plan it is generated anew, or captured on one rank (mpisim capture "
            "--save-program)"
        )
    ranks = attributes[CAPTURED].rpartition(" of ")[2]
    if ranks == "1 ranks":
        raise InputError(
            f"{path}: captured by an older mpisim, without what other plans need; capture it again"
        )
    raise InputError(
        f"{path}: a captured job of {ranks}; mpisim run simulates it, and to extrapolate it is "
        "captured on one rank, without its parallel plan (mpisim capture --world-size 1), or anew "
        "at the other size"
    )


def read_captured_step(
    path: Path | str,
    *,
    gpu: str | None = None,
    step: int | None = None,
    batch: int | None = None,
) -> TracedStep:
    """Read the step of a captured job of one rank. Local.

    Parameters
    ----------
    path : Path or str
        What ``mpisim capture --save-program`` has written.
    gpu : str, optional
        That kernels are priced for, until `priced_for` says another.
    step : int, optional
        Number of the recorded step; by default the first.
    batch : int, optional
        Samples of the step, where the first layer's input does not begin with them.

    Raises
    ------
    InputError
        If the file is of something else, or lacks what a step is made of.
    """
    recording = recording_of(check_captured(path), str(path))
    if step is not None and not 0 <= step < recording.steps:
        raise InputError(f"{path}: has no step {step}; it has 0 to {recording.steps - 1}")
    return _Reader(recording, str(path)).step(gpu_name(gpu or _ASSUMED_GPU), step or 0, batch)


def priced_for(step: TracedStep, gpu: str) -> TracedStep:
    """Traced step → the same on another GPU, if it is of a captured job, as it is otherwise.

    Parameters
    ----------
    step : TracedStep
    gpu : str
    """
    if not step.priced or step.gpu == gpu_name(gpu):
        return step
    model = analytical_model(rated_gpu(find_gpu(gpu)))

    def priced(tasks: Iterable[TracedTask]) -> tuple[TracedTask, ...]:
        return tuple(
            replace(each, duration=_duration(model, each))
            if isinstance(each, TracedKernel)
            else each
            for each in tasks
        )

    found = replace(
        step,
        gpu=gpu_name(gpu),
        operators=tuple(
            replace(each, forward=priced(each.forward), backward=priced(each.backward))
            for each in step.operators
        ),
        optimizer=priced(step.optimizer),
        zeroing=priced(step.zeroing),
    )
    return replace(found, measured=found.kernel_time)


def _duration(model: KernelModel, kernel: TracedKernel) -> int:
    priced = Recorded(0, kernel.kernels, kernel.kernels, kernel.known, priced=True)
    return RecordedKernels(model, model).estimate(priced).duration


@dataclass
class _Forward:
    """A forward operator while it is collected."""

    call: OperatorCall
    module: int
    number: int
    uses: list[int]
    forward: list[TracedTask] = field(default_factory=list)
    backward: list[TracedTask] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)


class _Reader:
    """A recording of one rank.

    Parameters
    ----------
    recording : Recording
    source : str
        The file, for messages.
    """

    def __init__(self, recording: Recording, source: str) -> None:
        self.recording, self.source = recording, source
        self.notes: list[str] = []
        self._launched: dict[int, Launched] = {}
        self._calls: list[tuple[OperatorCall, tuple[Kernel, ...]]] = []
        self._accumulates = False
        self._zeroing: list[TracedTask] = []
        self._zeroing_at = 0
        self._optimizer: list[TracedTask] = []

    def step(self, gpu: str, number: int, batch: int | None) -> TracedStep:
        """Return a step by its number, priced for a GPU."""
        recording = self.recording
        items = [(i, each) for i, each in enumerate(recording.items) if each.step == number]
        items = self._without_groups_of_one(items)
        found = self._sorted(items)
        self._give_parameters(found)
        parameters = {recording.parameters[n].shape for each in found for n in each.completed}
        operators = [self._operator(each) for each in found]
        paths = [recording.modules[each.module] for each in found]
        known = described(operators, paths, self._calls.__getitem__, parameters, batch, self.source)
        self._note(number)
        unpriced = TracedStep(
            source=self.source,
            gpu="",
            batch=known.samples,
            operators=known.operators,
            optimizer=tuple(self._optimizer),
            measured=0,
            zeroing=tuple(self._zeroing),
            zeroing_at=self._zeroing_at,
            accumulates=self._accumulates,
            sequence=known.sequence,
            embedding=known.embedding,
            head=known.head,
            notes=tuple(self.notes),
            priced=True,
        )
        found_step = priced_for(unpriced, gpu)
        self._check_streams(items, found_step.gpu)
        return replace(found_step, notes=tuple(self.notes))

    # --- what is left out -------------------------------------------------------------------------

    def _without_groups_of_one(self, items: list[tuple[int, Item]]) -> list[tuple[int, Item]]:
        """Leave out what data parallelism does for a group of one; refuse what is sharded."""
        kinds = (ItemKind.COLLECTIVE, ItemKind.SEND, ItemKind.RECV)
        sent = Counter(Operation(each.number).name for _, each in items if each.kind in kinds)
        if not sent:
            return items
        if sent["ALL_GATHER"] and sent["REDUCE_SCATTER"]:
            raise InputError(
                f"{self.source}: gathers parameters from one rank and scatters their gradients to "
                "it (fully_shard): capture the script without sharding; --plan zero=3 adds it"
            )
        kept = [
            (i, each)
            for i, each in items
            if each.kind not in kinds and not self._of_data_parallelism(each)
        ]
        self.notes.append(
            f"left out: {sum(sent.values())} collectives of one rank, and "
            f"{len(items) - len(kept) - sum(sent.values())} calls of DistributedDataParallel, "
            "which the plan adds"
        )
        return kept

    def _of_data_parallelism(self, item: Item) -> bool:
        """Whether an item copies gradients to a bucket or back, or buffers to be broadcast."""
        if item.kind is not ItemKind.CALL:
            return False
        if item.by_reducer:
            return True
        path = self.recording.modules[item.origin.module]
        if path and path[-1].startswith(_REPLICATED):
            return True
        name = self.recording.calls[item.number].name
        if not item.origin.engine or item.origin.node != ACCUMULATES:
            return False
        return name in ("aten::mul", "aten::div_", "aten::copy_", "aten::cat")

    def _check_streams(self, items: Sequence[tuple[int, Item]], gpu: str) -> None:
        """Refuse a step whose kernels run side by side."""
        model = analytical_model(rated_gpu(find_gpu(gpu)))
        times: Counter[int] = Counter()
        for _, each in items:
            if each.kind is ItemKind.CALL:
                for one in self._kernels(each):
                    times[each.stream] += _duration(model, one)
        self.notes += taken_as_one_stream(list(times.values()), self.source)

    def _note(self, number: int) -> None:
        """Say how the step was captured."""
        recording = self.recording
        if recording.steps > 1:
            self.notes.append(f"step {number} of {recording.steps} that were captured")
        self.notes += [f"not as in the script: {line}" for line in sorted(recording.replaced)]
        self.notes += [f"value not known: {line}" for line in sorted(recording.values)]

    # --- passes -----------------------------------------------------------------------------------

    def _sorted(self, items: Sequence[tuple[int, Item]]) -> list[_Forward]:
        """Return forward operators with the tasks of their passes; the optimizer's are kept."""
        found: list[_Forward] = []
        numbers: list[int] = []
        casts: list[tuple[Item, list[TracedTask]]] = []
        early: list[TracedTask] = []
        target = early
        at, behind = -1, False
        completed = deque(self.recording.completed)
        for index, item in items:
            if item.kind is ItemKind.HOST_WORK:
                raise InputError(
                    f"{self.source}: the CPU works on {item.bytes:,} bytes in the step "
                    f"({item.name}), which other plans share in ways of their own: capture the "
                    "script with --world-size"
                )
            while completed and completed[0].item <= index:
                if behind:
                    found[at].completed.append(completed[0].parameter)
                completed.popleft()
            tasks = self._tasks(item)
            if not tasks and not item.origin.parameters:
                continue  # a view
            origin, phase = item.origin, Phase(item.phase)
            if item.kind is ItemKind.HOST_WAIT:
                target += tasks
            elif origin.engine or phase is Phase.RECOMPUTE:
                if not found:
                    raise InputError(f"{self.source}: the step begins with a backward pass")
                last = at if behind else len(found) - 1
                at = last if origin.node < 0 else min(last, bisect_right(numbers, origin.node))
                behind = True
                target = found[at].backward
                target += tasks
            elif phase is Phase.OPTIMIZER or (behind and phase is not Phase.FORWARD):
                target = self._optimizer if behind else self._zeroing
                target += tasks
                self._zeroing_at = self._zeroing_at if behind else len(found)
            elif behind:
                raise InputError(
                    f"{self.source}: forward and backward passes take turns in a step: of several "
                    "models, or of micro-batches whose gradients are added up; capture a step of "
                    "one model with one pass each"
                )
            elif self._once(item, found):
                target = self._zeroing
                target += tasks
            elif self._is_cast(item):
                casts.append((item, tasks))
                target = tasks
            else:
                call = OperatorCall("copy", ())
                if item.kind is ItemKind.CALL:
                    call = self.recording.calls[item.number]
                number = max(origin.node, numbers[-1] if numbers else -1)
                of_casts = [n for cast, _ in casts for n in cast.origin.parameters]
                each = _Forward(call, origin.module, number, [*of_casts, *origin.parameters])
                for _, done in casts:
                    each.forward += done
                each.forward += [*early, *tasks]
                early, casts = [], []
                found.append(each)
                numbers.append(number)
                target = each.forward
        if not found:
            raise InputError(f"{self.source}: the step has no forward pass")
        if not behind:
            raise InputError(f"{self.source}: the step has no backward pass")
        end = items[-1][0] + 1
        found[at].completed += [each.parameter for each in completed if each.item <= end]
        return found

    @staticmethod
    def _once(item: Item, found: Sequence[_Forward]) -> bool:
        """Whether an item before the forward pass is done once a step, not for each micro-batch.

        Weights are written, as with main weights in fp32, or the loss before is read.
        """
        if item.origin.module or any(each.module for each in found):
            return False
        return bool(item.origin.parameters) or item.name == "copy to the host"

    def _is_cast(self, item: Item) -> bool:
        """Whether a call of a forward pass works on parameters alone."""
        if item.kind is not ItemKind.CALL or not item.origin.parameters:
            return False
        given = list(all_tensors(self.recording.calls[item.number].inputs))
        return len(given) <= len(item.origin.parameters)

    def _tasks(self, item: Item) -> list[TracedTask]:
        """Item of a recording → its tasks, one a kernel."""
        if item.kind is ItemKind.HOST_WAIT:
            return [TracedWait(item.name, 0, 0)]
        if item.kind is ItemKind.CALL and item.origin.node == ACCUMULATES:
            self._accumulates |= "add" in self.recording.calls[item.number].name
        return list(self._kernels(item))

    def _kernels(self, item: Item) -> list[TracedKernel]:
        """Return the kernels of a call or a copy, not priced yet."""
        launches = 0 if item.graph else 1
        if item.kind is ItemKind.COPY:
            described: tuple[Kernel, ...] = (Copy(max(item.bytes, 1), "host"),)
            call, known = OperatorCall("copy", ()), True
        else:
            call = self.recording.calls[item.number]
            launched = self._launched.get(item.number)
            if launched is None:
                launched = self._launched[item.number] = kernels_of(call)
            described, known = launched.kernels, launched.known
        found, lists = [], list_call(call)
        for kernel in described:
            found.append(
                TracedKernel(
                    name=item.name,
                    operator=call.name,
                    call=len(self._calls),
                    duration=0,
                    kernels=(kernel,),
                    known=known,
                    priced=True,
                    launches=launches,
                    on_weight=bool(item.origin.parameters),
                    lists=lists,
                )
            )
            self._calls.append((call, (kernel,)))
        return found

    # --- operators --------------------------------------------------------------------------------

    def _give_parameters(self, found: list[_Forward]) -> None:
        """Move each parameter to the first operator that works on it."""
        first: dict[int, _Forward] = {}
        for each in found:
            for parameter in each.uses:
                first.setdefault(parameter, each)
        completed = [(each, list(each.completed)) for each in reversed(found)]
        for each, _ in completed:
            each.completed.clear()
        for each, parameters in completed:
            for parameter in parameters:
                first.get(parameter, each).completed.append(parameter)
        if any(each.completed for each in found):
            return
        # Frameworks that keep gradients in buffers of their own tell no one of them.
        for parameter, each in first.items():
            each.completed.insert(0, parameter)
        if not first:
            raise InputError(f"{self.source}: the step works on no parameter that is trained")
        self.notes.append("every parameter that the forward pass works on is taken to be trained")

    def _operator(self, each: _Forward) -> TracedOperator:
        specs = [self.recording.parameters[n] for n in each.completed]
        used = [self.recording.parameters[n].shape for n in each.uses]
        return TracedOperator(
            name=each.call.name,
            layer="",
            forward=tuple(each.forward),
            backward=tuple(each.backward),
            parameters=tuple(TracedParameter(one.shape, one.dtype) for one in reversed(specs)),
            inputs=tuple(activations(each.call, used)),
            output=next(all_tensors(each.call.outputs), None),
            statistics=specs[0].elements if specs and "batch_norm" in each.call.name else 0,
        )

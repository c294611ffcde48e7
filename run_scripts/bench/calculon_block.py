"""Calculon's formulas: sizes of a transformer block → its seconds and bytes for a micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from calculon_inputs import A100, BYTES, Application, Execution, System, rate

__all__ = ["FORWARD", "INPUTS", "WEIGHTS", "Block", "block_of"]


class _Layer:
    """An operator of a block: work and bytes of a micro-batch, and what it keeps."""

    def __init__(
        self,
        flops: tuple[float, float, float],
        sizes: tuple[float, float],
        weights: float = 0,
        kept: float | None = None,
        grads: float | None = None,
        *,
        matrix: bool = False,
        again: bool = False,
        reused: bool = False,
        stored: bool = True,
        output_stored: bool = True,
    ) -> None:
        self.flops, self.weights, self.matrix = flops, weights, matrix
        inputs, outputs = sizes
        kept = inputs if kept is None else kept
        grads = outputs if grads is None else grads
        self.inputs, self.outputs = inputs, outputs
        self.moved = [
            BYTES * (inputs + outputs + weights),
            BYTES * (weights + kept + grads),
            BYTES * (weights + kept + grads) if weights else 0,
        ]
        """Bytes of memory traffic in three passes: forward, input gradient, weight gradient."""
        self.kept, self.grads, self.output = BYTES * kept, BYTES * grads, BYTES * outputs
        self.again, self.reused = again, reused
        self.stored, self.output_stored = stored, output_stored

    def parts(self, stage: int, system: System) -> tuple[float, float]:
        """Return seconds of arithmetic and of memory."""
        if self.matrix:
            busy = rate(self.flops[stage], system.matrix, system.matrix_curve)
        else:
            busy = rate(self.flops[stage], system.vector, system.vector_curve)
        return busy, rate(self.moved[stage], system.memory, system.memory_curve)


FORWARD, INPUTS, WEIGHTS = range(3)


class _Communication(NamedTuple):
    """A collective of tensor parallelism before or after an operator, which waits for it."""

    after: bool
    again: bool


class _Overlapped(NamedTuple):
    """A collective of tensor parallelism that overlaps with its operator."""

    after: bool
    again: bool


Item = tuple[_Layer, _Communication | _Overlapped | None]


def _linear(m: int, n: int, k: int, **flags: bool) -> _Layer:
    return _Layer((2 * m * n * k,) * 3, (m * n, m * k), n * k, matrix=True, **flags)


def _batched(batch: int, m: int, n: int, k: int, **flags: bool) -> _Layer:
    work = 2 * batch * m * n * k
    return _Layer(
        (work, 2 * work, 0), (batch * (m * n + n * k), batch * m * k), matrix=True, **flags
    )


def _fork(size: int, users: int, **flags: bool) -> _Layer:
    found = _Layer((0, users * size, 0), (size, 0), grads=0, **flags)
    found.moved[FORWARD], found.moved[INPUTS] = 0, BYTES * size * (users + 1)
    return found


def _dropout(size: int, **flags: bool) -> _Layer:
    found = _Layer((size, size, 0), (size, size), **flags)
    found.moved[FORWARD] = found.moved[INPUTS] = (2 * BYTES + 1) * size
    found.kept = found.grads = size
    return found


def _pointwise(size: int, forward: int, backward: int, keeps: bool = True, **flags: bool) -> _Layer:
    kept = size if keeps else 0
    found = _Layer((forward * size, backward * size, 0), (size, size), 0, kept, kept, **flags)
    found.moved[INPUTS] = found.moved[FORWARD]
    return found


def _norm(size: int, hidden: int, **flags: bool) -> _Layer:
    return _Layer((9 * size, 14 * size, 7 * size), (size, size), 2 * hidden, **flags)


def _tp_comm(size: int, tp: int, comm: str, *, after: bool, again: bool) -> Item:
    """Return what is sent, and the arithmetic and memory that it takes."""
    whole = size if tp > 1 else 0
    reduced = whole * (tp - 1) / tp
    found = _Layer((reduced, 0, 0) if after else (0, reduced, 0), (whole, whole), stored=not after)
    if comm == "rs_ag":
        found.kept = found.grads = BYTES * whole / tp
    elif after:
        found.grads, found.moved[INPUTS] = 0, 0
    else:
        found.kept, found.moved[FORWARD] = 0, 0
    return found, _Communication(after, again)


def _overlapped(
    m: int, n: int, k: int, tp: int, comm: str, *, after: bool, again: bool, whole: bool
) -> Item:
    """Return a product that what is sent runs beside."""
    n, k = (n // tp, k) if after else (n, k // tp)
    if comm == "rs_ag":
        kept, grads = (m * n, 2 * (m * k // tp)) if after else (m * n // tp, m * k)
    else:
        kept, grads = (0, 2 * m * k) if after else (m * n, 0)
    sizes = (m * n, m * k)
    layer = _Layer((2 * m * n * k,) * 3, sizes, n * k, kept, grads, matrix=True, again=whole)
    return layer, _Overlapped(after, again)


def _items(app: Application, e: Execution) -> Iterator[Item]:
    """Yield the operators of a block with what is sent for them."""
    full, attention = e.recompute == "full", e.recompute != "none"
    m, h = e.micro_batch * app.seq_size, app.hidden
    whole = m * h
    part = m // e.tp * h if e.comm == "rs_ag" else whole
    width, heads = app.heads * app.head_size, e.micro_batch * app.heads // e.tp
    scores = app.heads // e.tp * app.seq_size**2 * e.micro_batch
    plain = e.tp_overlap == "none"

    def entry(after: bool, again: bool) -> Item:
        return _tp_comm(whole, e.tp, e.comm, after=after, again=again)

    def product_of(n: int, k: int, after: bool, again: bool) -> Item:
        return _overlapped(m, n, k, e.tp, e.comm, after=after, again=again, whole=full)

    gathered = attention or e.redo
    yield _fork(part, 2, again=full), None
    yield _norm(part, h, again=full, stored=False, reused=True), None
    if plain:
        yield entry(False, gathered)
        yield _fork(whole, 3, again=gathered, stored=not gathered), None
        for _ in range(3):
            yield _linear(m, h, width // e.tp, again=full, stored=False, reused=True), None
    else:
        yield product_of(h, 3 * width, False, gathered)
    s, d = app.seq_size, app.head_size
    yield _batched(heads, s, d, s, again=attention, output_stored=not attention), None
    yield _pointwise(scores, 5, 8, again=attention, output_stored=not attention), None
    yield _dropout(scores, again=attention, stored=not attention), None
    yield _batched(heads, s, s, d, again=full), None
    if plain:
        yield _linear(m, width // e.tp, h, again=full), None
        yield entry(True, full)
    else:
        yield product_of(width, h, True, full)
    residual = (part, 2 * part, 0), (2 * part, part)
    yield _dropout(part, again=full), None
    yield _Layer(*residual, again=full, stored=False, reused=True), None

    gathered = full or e.redo
    yield _fork(part, 2, again=full), None
    yield _norm(part, h, again=full, stored=False, reused=True), None
    if plain:
        yield entry(False, gathered)
        yield _linear(m, h, app.feedforward // e.tp, again=full, stored=not gathered), None
    else:
        yield product_of(h, app.feedforward, False, gathered)
    yield _pointwise(app.feedforward * m // e.tp, 8, 13, not e.fused, again=full), None
    if plain:
        yield _linear(m, app.feedforward // e.tp, h, again=full), None
        yield entry(True, full)
    else:
        yield product_of(app.feedforward, h, True, full)
    yield _dropout(part, again=full), None
    yield _Layer(*residual, again=full, stored=False, reused=True), None


def _sent(
    layer: _Layer,
    what: _Communication | _Overlapped,
    e: Execution,
    system: System,
    stage: int,
    edge: bool,
) -> float:
    """Return seconds on the network, of an inner block or the last of a chunk."""
    if e.tp == 1 or (stage == WEIGHTS and not what.again):
        return 0
    split = e.comm == "rs_ag" or (e.comm == "p2p_rs_ag" and edge)
    net = system.networks[e.nets[0]]
    # Towards the operator on the way back is away from it on the way there.
    reduces = what.after == (stage != INPUTS)
    if not reduces and not split:
        op = None
    else:
        op = ("reduce_scatter" if split else "all_reduce") if reduces else "all_gather"
    if isinstance(what, _Overlapped):
        if op is None:
            return 0
        size = BYTES * (layer.outputs if what.after else layer.inputs)
        seconds = net.time(op, size, e.tp)
        if stage != WEIGHTS and reduces:
            added = size / BYTES * (e.tp - 1) / e.tp
            seconds += rate(added, system.vector, system.vector_curve)
        return seconds
    seconds = net.time(op, BYTES * layer.inputs, e.tp) if op else 0.0
    return seconds + sum(layer.parts(stage, system))


def _beside(
    layer: _Layer, what: _Overlapped, e: Execution, system: System, stage: int
) -> tuple[float, float]:
    """Return seconds of an overlapped operator, and of its communication that shows."""
    busy, memory = layer.parts(stage, system)
    sent = _sent(layer, what, e, system, stage, edge=False)
    if sent == 0:
        return busy + memory, 0
    usage, others = system.networks[e.nets[0]].usage, e.tp - 1
    slowed = busy / (1 - usage)
    excess = (sent - slowed) / e.tp
    if excess > 0:
        seconds, shown = (busy + memory + others * (slowed + memory)) / e.tp, others * excess
    else:
        seconds, shown = busy + memory + others * sent / e.tp * usage, 0
    if e.tp_overlap == "pipe":
        seconds, shown = seconds + sent / e.tp, shown + sent / e.tp
    return seconds, shown


class Block:
    """Sums over the operators of a block of the model, for a micro-batch: seconds and bytes."""

    def __init__(self, app: Application, e: Execution, system: System) -> None:
        self.seconds, self.busy, self.memory = [0.0] * 3, [0.0] * 3, [0.0] * 3
        self.again = self.again_busy = self.again_memory = 0.0
        self.sent = [[0.0, 0.0] for _ in range(3)]
        """By stage and edge; of WEIGHTS: sent again."""
        self.shown = [[0.0, 0.0] for _ in range(3)]
        self.optimizer_busy = self.optimizer_memory = 0.0
        self.weights = self.working = self.storage = self.grads = 0.0
        shards = e.dp if e.sharded else 1
        self.shards = shards
        for layer, what in _items(app, e):
            beside = isinstance(what, _Overlapped)
            shown = [0.0] * 3
            for stage in range(3):
                busy, memory = layer.parts(stage, system)
                self.busy[stage] += busy
                self.memory[stage] += memory
                if isinstance(what, _Overlapped):
                    seconds, shown[stage] = _beside(layer, what, e, system, stage)
                else:
                    seconds = 0 if what else busy + memory
                self.seconds[stage] += seconds
                if stage == FORWARD and layer.again:
                    self.again += seconds
                    self.again_busy += self.busy[FORWARD]
                    self.again_memory += self.memory[FORWARD]
            if what:
                for stage, edge in product(range(3), range(2)):
                    sent = _sent(layer, what, e, system, stage, bool(edge))
                    self.sent[stage][edge] += sent
                    # What is sent again counts as it shows in the forward pass.
                    again = shown[FORWARD] if what.again else 0
                    self.shown[stage][edge] += (
                        (again if stage == WEIGHTS else shown[stage]) if beside else sent
                    )
            states = 12 * layer.weights / shards
            work = 11 * layer.weights / shards
            self.optimizer_busy += rate(work, system.vector, system.vector_curve)
            self.optimizer_memory += rate(states, system.memory, system.memory_curve)
            self.weights += layer.weights
            self.working += 0 if layer.reused else layer.kept
            self.storage += layer.kept if layer.stored else 0
            self.storage -= 0 if layer.output_stored else layer.output
            self.grads += layer.grads
        self.checkpoint = BYTES * e.micro_batch * app.seq_size * app.hidden
        if e.recompute == "full":
            self.storage = 0
        else:
            self.checkpoint = 0
        self.optimizer = 12 * self.weights / shards


@lru_cache(1 << 12)
def _block(app: Application, e: Execution) -> Block:
    return Block(app, e, A100)


def block_of(app: Application, e: Execution) -> Block:
    """Return the sums, which do not depend on the rest of the execution."""
    shards = e.dp if e.sharded else 1
    return _block(
        app,
        e._replace(
            pp=1, dp=shards, batch=0, interleaving=1, nets=(e.nets[0], 0, 0), dp_overlap=False,
            offload=(False,) * 3,
        ),
    )  # fmt: skip

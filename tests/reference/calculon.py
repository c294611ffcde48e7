"""Calculon's closed form of a training step: execution → time and memory, and its search space.

Calculon (M. Isaev, N. McDonald, L. Dennison, R. Vuduc, SC'23; github:calculon-ai/calculon,
Apache-2.0) says how long a step of a transformer takes without simulating it. Here are its formulas
for training with multi-head attention in 16 bits, written anew from its `llm/llm.py` (c02c5e9),
`llm/layers.py` (caa4b11), `llm/optimal_execution.py` (dd35b00), `network.py` and
`systems/a100_80g.json` (71f6435), what it does unintendedly included: the time by which gradients
are hidden counts recomputed operators over and over.

Left out: inference, multi-query attention, reductions in the network, blocks that stages do not
share evenly, and what is only printed (efficiencies, bandwidths that would be needed).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Literal, NamedTuple

__all__ = [
    "A100",
    "GPT3_175B",
    "MEGATRON_1T",
    "TURING_530B",
    "Application",
    "Estimate",
    "Execution",
    "Network",
    "System",
    "count",
    "divisors",
    "estimate",
    "executions",
    "fits_networks",
]

BYTES = 2
"""Of an element."""


class Network(NamedTuple):
    """A tier. `ops`: kind → (factor on bytes, further bytes over the number of members)."""

    bandwidth: float
    efficiency: float
    size: int
    latency: float
    ops: dict[str, tuple[float, float]]
    must_be_filled: bool
    usage: float

    def time(self, op: str, size: float, members: int) -> float:
        """Return seconds of an operation of so many bytes."""
        factor, offset = self.ops[op]
        size *= factor
        return self.latency + size * (1 + offset / members) / (self.bandwidth * self.efficiency)


Curve = tuple[tuple[float, float], ...]
"""(At least so much, efficiency), largest first."""


class System(NamedTuple):
    """GPU, memories and networks; rates in units a second, capacities in bytes."""

    matrix: float
    matrix_curve: Curve
    vector: float
    vector_curve: Curve
    memory: float
    memory_curve: Curve
    capacity: float
    host: float
    host_curve: Curve
    host_capacity: float
    networks: tuple[Network, ...]


class Application(NamedTuple):
    """A model."""

    hidden: int
    feedforward: int
    seq_size: int
    heads: int
    head_size: int
    blocks: int


class Execution(NamedTuple):
    """How a model is trained; `comm`: of tensor parallelism, `nets`: of (tp, pp, dp)."""

    tp: int
    pp: int
    dp: int
    batch: int
    micro_batch: int
    interleaving: int
    recompute: Literal["full", "attn_only", "none"]
    comm: Literal["ar", "p2p_rs_ag", "rs_ag"]
    nets: tuple[int, int, int]
    sharded: bool = False
    tp_overlap: Literal["none", "ring", "pipe"] = "none"
    redo: bool = False
    dp_overlap: bool = False
    offload: tuple[bool, bool, bool] = (False, False, False)
    """Weights, activations, optimizer."""
    fused: bool = True


class Estimate(NamedTuple):
    """Seconds of a step, bytes of GPU and host."""

    time: float
    memory: float
    host: float


A100 = System(
    312e12,
    ((128e9, 0.95), (16e9, 0.9), (1e9, 0.6), (0, 0.1)),
    78e12,
    ((16e9, 0.95), (1e9, 0.5), (0, 0.1)),
    2048e9,
    ((100e6, 0.90), (10e6, 0.75), (1e6, 0.6), (0, 0.3)),
    80 * 2**30,
    32e9,
    ((100e6, 0.95), (10e6, 0.9), (1e6, 0.7), (0, 0.3)),
    512 * 2**30,
    (
        Network(
            300e9,
            0.65,
            8,
            10e-6,
            {
                "p2p": (1, 0),
                "reduce_scatter": (1.5, -1),
                "all_gather": (1.5, -1),
                "all_reduce": (2, -1),
            },
            True,
            0.15,
        ),
        Network(
            25e9,
            0.9,
            65536,
            20e-6,
            dict.fromkeys(("p2p", "reduce_scatter", "all_gather", "all_reduce"), (1, 0)),
            False,
            0.02,
        ),
    ),
)
"""`systems/a100_80g.json`: nodes of 8."""

GPT3_175B = Application(12288, 49152, 2048, 96, 128, 96)
TURING_530B = Application(20480, 81920, 2048, 128, 160, 105)
MEGATRON_1T = Application(25600, 102400, 2048, 160, 160, 128)
"""`models/turing-530B.json`, `models/megatron-1T.json`."""


def _rate(amount: float, peak: float, curve: Curve) -> float:
    return amount / (peak * next(share for least, share in curve if amount >= least))


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
        """Bytes of forward, gradients of inputs, of weights."""
        self.kept, self.grads, self.output = BYTES * kept, BYTES * grads, BYTES * outputs
        self.again, self.reused = again, reused
        self.stored, self.output_stored = stored, output_stored

    def parts(self, stage: int, system: System) -> tuple[float, float]:
        """Return seconds of arithmetic and of memory."""
        if self.matrix:
            busy = _rate(self.flops[stage], system.matrix, system.matrix_curve)
        else:
            busy = _rate(self.flops[stage], system.vector, system.vector_curve)
        return busy, _rate(self.moved[stage], system.memory, system.memory_curve)


FORWARD, INPUTS, WEIGHTS = range(3)


class _Communication(NamedTuple):
    """What tensor parallelism sends before or after an operator, without overlap."""

    after: bool
    again: bool


class _Overlapped(NamedTuple):
    """The same beside the operator."""

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
            seconds += _rate(added, system.vector, system.vector_curve)
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


class _Block:
    """Sums over the operators of a block, of a micro-batch."""

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
            self.optimizer_busy += _rate(work, system.vector, system.vector_curve)
            self.optimizer_memory += _rate(states, system.memory, system.memory_curve)
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
def _block(app: Application, e: Execution) -> _Block:
    return _Block(app, e, A100)


def _block_of(app: Application, e: Execution) -> _Block:
    """Return the sums, which do not depend on the rest of the execution."""
    shards = e.dp if e.sharded else 1
    return _block(
        app,
        e._replace(
            pp=1, dp=shards, batch=0, interleaving=1, nets=(e.nets[0], 0, 0), dp_overlap=False,
            offload=(False,) * 3,
        ),
    )  # fmt: skip


def fits_networks(e: Execution, system: System = A100) -> bool:
    """Return whether the groups fit into the networks that they are assigned to."""
    sizes = [1] * len(system.networks)
    for members, net in zip((e.tp, e.pp, e.dp), e.nets, strict=True):
        sizes[net] *= members
    return all(
        size == 1 or (size <= net.size and not (net.must_be_filled and net.size % size))
        for size, net in zip(sizes, system.networks, strict=True)
    )


def estimate(app: Application, e: Execution) -> Estimate | None:
    """Return time and memory on A100s, whether or not they fit; None if it cannot run at all."""
    system, blocks = A100, app.blocks // e.pp
    if not fits_networks(e) or (any(e.offload) and blocks <= 2):
        return None
    b = _block_of(app, e)
    pp_net, dp_net = system.networks[e.nets[1]], system.networks[e.nets[2]]
    micro_batches = e.batch // e.dp // e.micro_batch
    chunk = blocks // e.interleaving
    size = BYTES * e.micro_batch * app.seq_size * app.hidden if e.pp > 1 else 0
    p2p = pp_net.time("p2p", size if e.comm == "ar" else size / e.tp, 2)

    offloaded = [b.weights * BYTES, b.checkpoint or b.storage, b.optimizer]
    moved = [amount if on else 0 for amount, on in zip(offloaded, e.offload, strict=True)]
    out = _rate(max(moved[:2]), system.host, system.host_curve)
    back = _rate(sum(moved), system.host, system.host_curve)
    memory_bw = b.memory[INPUTS] + b.memory[WEIGHTS]
    fw, bw, fw_over, bw_over = [], [], [], []
    for edge in range(2):
        ahead = b.seconds[FORWARD] + b.shown[FORWARD][edge] + edge * p2p
        behind = b.again + b.shown[WEIGHTS][edge] + b.seconds[INPUTS] + b.seconds[WEIGHTS]
        behind += b.shown[INPUTS][edge] + edge * p2p
        fw_over.append(max(0.0, out + b.memory[FORWARD] - ahead))
        bw_over.append(max(0.0, back + memory_bw - behind))
        fw.append(ahead + fw_over[edge])
        bw.append(behind + bw_over[edge])

    def over_chunk(pair: list[float]) -> float:
        return (chunk - 1) * pair[0] + pair[1]

    shortage = -micro_batches % e.pp
    bubble = (e.pp - 1 + (e.interleaving - 1) * shortage) * (over_chunk(fw) + over_chunk(bw))
    all_chunks = micro_batches * e.interleaving
    time = blocks * micro_batches * (sum(b.seconds) + b.again) + bubble
    time += blocks * (b.optimizer_busy + b.optimizer_memory)
    time += all_chunks * sum(map(over_chunk, (fw_over, bw_over, *b.shown)))
    if e.pp > 1:
        time += 2 * all_chunks * p2p
    time += _gradients(e, b, bw, p2p, micro_batches, chunk, dp_net, blocks)
    return Estimate(time, *_memory(e, b, blocks, micro_batches))


def _gradients(
    e: Execution,
    b: _Block,
    bw: list[float],
    p2p: float,
    micro_batches: int,
    chunk: int,
    net: Network,
    blocks: int,
) -> float:
    """Return seconds of reducing gradients that show."""
    if e.dp == 1:
        return 0.0
    ops = ("reduce_scatter", "all_gather") if e.sharded else ("all_reduce",)
    one = sum(net.time(op, BYTES * b.weights, e.dp) for op in ops)
    if not e.dp_overlap:
        return blocks * one
    memory = b.memory[INPUTS] + b.memory[WEIGHTS] + b.again_memory
    window = [each - memory for each in bw]
    work = b.busy[INPUTS] + b.busy[WEIGHTS] + b.again_busy
    if not e.sharded:
        window = [each + b.optimizer_busy for each in window]
        work += b.optimizer_busy
    if e.nets[2] == e.nets[0]:
        window = [window[i] - b.sent[WEIGHTS][i] - b.sent[INPUTS][i] for i in range(2)]
    of_chunk = (chunk - 1) * window[0] + window[1]
    met = 0.0
    if e.nets[2] == e.nets[1]:
        backward = (chunk - 1) * bw[0] + bw[1]
        met = min(chunk * one // backward, micro_batches % e.pp or e.pp)
    excess = chunk * one - (e.pp * of_chunk - met * p2p) + e.pp * chunk * work * net.usage
    shown = (e.interleaving - 1) * (excess if excess > 0 else chunk * one * net.usage)
    last = 0.0
    if chunk > 1:
        last = of_chunk - p2p - (bw[0] + bw[1]) / 2
        last += 0 if e.sharded else b.optimizer_busy
    excess = (chunk - 1) * one + work * net.usage - last
    return one + shown + (excess if excess > 0 else (chunk - 1) * one * net.usage)


def _memory(e: Execution, b: _Block, blocks: int, micro_batches: int) -> tuple[float, float]:
    """Return bytes on the GPU and on the host."""
    held = float(min(micro_batches, e.pp))
    if e.interleaving > 1:
        held *= 1 + (e.pp - 1) / (e.interleaving * e.pp)
    full = e.recompute == "full"
    activations = b.working if full else b.working + b.storage * (blocks * held - 1)
    checkpoints = blocks * b.checkpoint * held
    weights, sharded = BYTES * b.weights, BYTES * b.weights / b.shards
    gpu, host = b.grads, 0.0
    if e.offload[0]:
        gpu, host = gpu + 2 * weights, host + blocks * weights
    else:
        gpu += blocks * weights
    if e.offload[1]:
        gpu += b.working + (2 * b.checkpoint if full else b.storage)
        host += checkpoints if full else activations
    else:
        gpu += activations + checkpoints
    if e.offload[2]:
        gpu += 4 * b.weights + sharded + 2 * b.optimizer
        host += blocks * (sharded + b.optimizer)
    else:
        gpu += 4 * b.weights + (blocks - 1) * sharded + blocks * b.optimizer
    return gpu, host


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, in order."""
    return [each for each in range(1, number + 1) if number % each == 0]


def executions(
    app: Application, gpus: int, max_batch: int, *, every_network: bool = True
) -> Iterator[Execution]:
    """Yield what Calculon's search looks at, in its order of sizes.

    Parameters
    ----------
    app : Application
    gpus, max_batch : int
        The batch is the largest multiple of dp up to `max_batch`.
    every_network : bool
        Whether to yield assignments to networks that the groups do not fit into.
    """
    either = (True, False)
    for tp in divisors(gpus):
        if app.hidden % tp or app.heads % tp:
            continue
        for pp in divisors(min(gpus // tp, app.blocks)):
            if gpus % (tp * pp) or app.blocks % pp or gpus // (tp * pp) > max_batch:
                continue
            dp = gpus // (tp * pp)
            several = dp > 1
            batch = max_batch // dp * dp
            tiers = range(len(A100.networks))
            nets = list(product(*(tiers if n > 1 else (0,) for n in (tp, pp, dp))))
            micro = [n for n in divisors(batch // dp) if n * app.seq_size % tp == 0]
            if not every_network:
                first = Execution(tp, pp, dp, batch, 1, 1, "none", "ar", (0, 0, 0))
                nets = [each for each in nets if fits_networks(first._replace(nets=each))]
            for interleaving, recompute, sharded, comm in product(
                divisors(app.blocks // pp) if pp > 1 else (1,),
                ("full", "attn_only", "none"),
                either if several else (False,),
                ("ar", "p2p_rs_ag", "rs_ag"),
            ):
                for redo, dp_overlap, tp_overlap, w, a, o, m, tiers_of in product(
                    either if comm == "rs_ag" and recompute != "full" else (False,),
                    either if several else (False,),
                    ("none", "ring", "pipe") if tp > 1 else ("none",),
                    either,
                    (False,) if recompute == "full" else either,
                    either,
                    micro,
                    nets,
                ):
                    yield Execution(
                        tp, pp, dp, batch, m, interleaving, recompute, comm, tiers_of, sharded,
                        tp_overlap, redo, dp_overlap, (w, a, o),
                    )  # fmt: skip


def count(
    app: Application, gpus: int, max_batch: int, *, tp_overlap: bool = True, fused: int = 1
) -> int:
    """Return how many executions Calculon's search counts, with its options.

    Parameters
    ----------
    app : Application
    gpus, max_batch : int
    tp_overlap : bool
        False: ``--no-tp-overlap``.
    fused : int
        Ways to run activations: 2 with ``--fused_activation all``.
    """
    found = executions(app, gpus, max_batch)
    return fused * sum(tp_overlap or e.tp_overlap == "none" for e in found)

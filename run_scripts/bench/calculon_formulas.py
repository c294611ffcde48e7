"""Calculon's closed form of a training step: execution → time and memory, and its search space.

Calculon (M. Isaev, N. McDonald, L. Dennison, R. Vuduc, SC'23; github:calculon-ai/calculon,
Apache-2.0) says how long a step of a transformer takes without simulating it. Here are its formulas
for training with multi-head attention in 16 bits, written anew from its `llm/llm.py` (c02c5e9),
`llm/layers.py` (caa4b11), `llm/optimal_execution.py` (dd35b00), `network.py` and
`systems/a100_80g.json` (71f6435), what it does unintendedly included: the time by which gradients
are hidden counts recomputed operators over and over.

Read ``calculon_inputs`` and ``calculon_block`` first.

Left out: inference, multi-query attention, reductions in the network, blocks that stages do not
share evenly, and what is only printed (efficiencies, bandwidths that would be needed).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from calculon_block import FORWARD, INPUTS, WEIGHTS, Block, block_of
from calculon_inputs import A100, BYTES, Application, Execution, Network, fits_networks, rate

__all__ = ["Estimate", "count", "divisors", "estimate", "executions"]


class Estimate(NamedTuple):
    """Seconds of a step, bytes of GPU and host."""

    time: float
    memory: float
    host: float


def estimate(app: Application, e: Execution) -> Estimate | None:
    """Return time and memory on A100s, whether or not they fit; None if it cannot run at all."""
    system, blocks = A100, app.blocks // e.pp
    if not fits_networks(e) or (any(e.offload) and blocks <= 2):
        return None
    b = block_of(app, e)
    pp_net, dp_net = system.networks[e.nets[1]], system.networks[e.nets[2]]
    micro_batches = e.batch // e.dp // e.micro_batch
    chunk = blocks // e.interleaving
    size = BYTES * e.micro_batch * app.seq_size * app.hidden if e.pp > 1 else 0
    p2p = pp_net.time("p2p", size if e.comm == "ar" else size / e.tp, 2)

    offloaded = [b.weights * BYTES, b.checkpoint or b.storage, b.optimizer]
    moved = [amount if on else 0 for amount, on in zip(offloaded, e.offload, strict=True)]
    out = rate(max(moved[:2]), system.host, system.host_curve)
    back = rate(sum(moved), system.host, system.host_curve)
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
    b: Block,
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


def _memory(e: Execution, b: Block, blocks: int, micro_batches: int) -> tuple[float, float]:
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

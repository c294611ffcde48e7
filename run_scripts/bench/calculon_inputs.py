"""What Calculon's closed form is given: model, execution, GPU, memories and networks."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = [
    "A100",
    "BYTES",
    "GPT3_175B",
    "MEGATRON_1T",
    "TURING_530B",
    "Application",
    "Execution",
    "Network",
    "System",
    "fits_networks",
    "rate",
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


def rate(amount: float, peak: float, curve: Curve) -> float:
    """Return seconds of an amount at a peak rate times the efficiency for such an amount."""
    return amount / (peak * next(share for least, share in curve if amount >= least))


def fits_networks(e: Execution) -> bool:
    """Return whether the groups fit into the networks of `A100` that they are assigned to."""
    sizes = [1] * len(A100.networks)
    for members, net in zip((e.tp, e.pp, e.dp), e.nets, strict=True):
        sizes[net] *= members
    return all(
        size == 1 or (size <= net.size and not (net.must_be_filled and net.size % size))
        for size, net in zip(sizes, A100.networks, strict=True)
    )

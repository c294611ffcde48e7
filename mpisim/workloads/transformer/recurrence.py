"""Layers with a recurrence in place of attention: Mamba-2 and the gated delta rule.

Both have one matrix in, a causal convolution over a few tokens, a recurrence computed in chunks of
tokens, a gated norm and one matrix out. Tensor-parallel ranks have heads of their own, as
Megatron-LM's `MambaMixer` (``megatron/core/ssm/mamba_mixer.py``) and `GatedDeltaNet`
(``megatron/core/ssm/gated_delta_net.py``): the matrix in is split by columns, the one out by rows.
With context parallelism each rank exchanges its tokens of all heads for all tokens of its heads
before the convolution, and back behind it (`MambaContextParallel`).

Kernels of Mamba-2 are those of ``mamba_ssm/ops/triton`` (ssd_combined.py,
`MambaSplitConv1dScanCombinedFn`, arXiv:2405.21060, section 6): inside a chunk of L tokens products
of matrices, between chunks a scan over states. Heads of a group share what a token writes to the
state (B) and reads of it (C): their products are one with the heads side by side, of which a mask
leaves half where L × L pairs are computed. Backward convolution, states and pairs are computed
again; what is kept is the result of the matrix in and that of the scan.

Kernels of the gated delta rule are those of ``fla/ops/gated_delta_rule`` (chunk.py,
arXiv:2412.06464): pairs of keys, the inverse of a triangular matrix a chunk and head, the products
that it makes (WY form), states chunk by chunk, results.

Products are priced as cuBLAS's of the same shape, those of Mamba-2's scan times what Triton's
kernels take over these (``[gemm.scan]`` and ``[gemm.scan_gradient]`` in
``data/calibration/kernel_variants.toml``). Step sizes and decays, a number a head and token, are
elementwise kernels.
"""

from __future__ import annotations

from mpisim.kernels.operations import BYTES, Gemm, GemmVariant, Precision

from ...program import Operation
from ..operators import Communicate, Compute, Operator, Parameter, Task
from .module_options import capture_module, recompute_module
from .pointwise import dropout_add, elementwise, norm
from .precision import accumulate_gradient
from .shapes import Shapes
from .tensor_parallel import column_linear, row_linear

__all__ = ["gated_delta_layer", "mamba_layer"]

FP32 = BYTES["fp32"]

DELTA_CHUNK = 64
"""Tokens of a chunk of the gated delta rule (fla/ops/gated_delta_rule/chunk.py)."""


def mamba_layer(s: Shapes) -> tuple[Operator, ...]:
    """Hidden states → hidden states: norm, Mamba-2, residual."""
    m, tp = s.model, s.grid.tp
    inner, heads = m.mamba_inner // tp, m.mamba_heads // tp
    shared = 2 * m.mamba_groups // tp * m.mamba_state
    width = 2 * inner + shared + heads
    return _layer(s, "mamba", width, inner, inner + shared, _mamba_scan(s), m.mamba_inner // tp)


def gated_delta_layer(s: Shapes) -> tuple[Operator, ...]:
    """Hidden states → hidden states: norm, gated delta rule, residual."""
    m, tp = s.model, s.grid.tp
    values = m.delta_value_heads // tp * m.delta_value_size
    keys = m.delta_key_heads // tp * m.delta_key_size
    width = 2 * keys + 2 * values + 2 * m.delta_value_heads // tp
    return _layer(s, "delta", width, values, 2 * keys + values, _delta_rule(s), m.delta_value_size)


def _layer(
    s: Shapes,
    name: str,
    width: int,
    inner: int,
    channels: int,
    recurrence: Operator,
    normalised: int,
) -> tuple[Operator, ...]:
    """The parts that both layers have, around a recurrence.

    Parameters
    ----------
    s : Shapes
    name : str
    width, inner : int
        This rank's elements of a token: of the matrix in, and of the matrix out.
    channels : int
        This rank's elements of a token that are convolved.
    recurrence : Operator
    normalised : int
        Elements of a weight of the gated norm.
    """
    hidden = s.model.hidden
    before = norm(s, f"{name} norm", s.sharded_tokens, hidden, residual=True)
    modules = (
        column_linear(
            s,
            f"{name} in",
            hidden,
            width,
            keep=s.element_size * s.tokens * width,
            keeps_input="layernorm" not in s.plan.recompute.modules,
        ),
        *_exchange(s, f"{name} in", width),
        _convolution(s, f"{name} convolution", channels, again=name == "mamba"),
        recurrence,
        *_exchange(s, f"{name} out", inner),
        _gated_norm(s, f"{name} gated norm", inner, normalised),
        row_linear(s, f"{name} out", inner, hidden),
    )
    return (
        *capture_module(s, "mamba", (before, *modules)),
        *recompute_module(s, "layernorm", before),
        dropout_add(s, f"{name} dropout add", bias=False),
    )


def _exchange(s: Shapes, name: str, width: int) -> tuple[Operator, ...]:
    """This rank's tokens of all its tp group's heads → all tokens of some, or back (cp)."""
    if s.grid.cp == 1:
        return ()
    size = s.element_size * s.tokens * width

    def steps(suffix: str) -> tuple[Task, ...]:
        return (
            elementwise(f"{name} exchange copy{suffix}", 2 * size),
            Communicate(f"{name} all-to-all{suffix}", Operation.ALL_TO_ALL, "cp", size),
            elementwise(f"{name} exchange order{suffix}", 2 * size),
        )

    return (Operator(f"{name} exchange", steps(""), steps(" backward")),)


def _convolution(s: Shapes, name: str, channels: int, *, again: bool) -> Operator:
    """Channels → each a weighted sum of its last few tokens, with SiLU (package causal-conv1d).

    `again`: whether the backward pass computes it again before.
    """
    size, e = s.tokens * channels, s.element_size
    taps = s.model.convolution
    forward = elementwise(name, 2 * e * size)
    backward: list[Task] = [elementwise(f"{name} again", 2 * e * size)] if again else []
    backward.append(elementwise(f"{name} backward", 3 * e * size))
    parameters = [Parameter(f"{name} weight", channels * taps, rows=channels)]
    if again:
        parameters.append(Parameter(f"{name} bias", channels))
    for parameter in parameters:
        backward += accumulate_gradient(s, parameter.name, parameter.size)
    kept = 0 if again else e * size  # of Mamba the matrix in keeps it
    return Operator(name, (forward,), tuple(backward), tuple(parameters), kept)


def _gated_norm(s: Shapes, name: str, inner: int, normalised: int) -> Operator:
    """Results and gates → RMS norm of their product; one kernel forward, one backward."""
    size, e = s.tokens * inner, s.element_size
    # Of the delta rule all heads have one weight; of Mamba-2 every element has its own.
    common = normalised < inner
    parameter = Parameter(f"{name} weight", normalised, replicated=common, partial=common)
    backward: list[Task] = [elementwise(f"{name} backward", 5 * e * size)]
    backward += accumulate_gradient(s, parameter.name, parameter.size)
    return Operator(
        name, (elementwise(name, 3 * e * size),), tuple(backward), (parameter,), e * size
    )


# --- Mamba-2 ------------------------------------------------------------------------------------


def _mamba_scan(s: Shapes) -> Operator:
    """Convolved channels, step sizes → results of the heads, by chunks of tokens."""
    m, e, dtype = s.model, s.element_size, s.matmul_format
    groups, heads = m.mamba_groups // s.grid.tp, m.mamba_heads // s.grid.tp
    state, length = m.mamba_state, min(m.mamba_chunk, s.length)
    wide = heads // groups * m.mamba_head_size
    batch = max(1, s.tokens // length) * groups
    half = max(1, length // 2)
    steps = s.tokens * heads
    states = max(1, s.tokens // length) * heads * m.mamba_head_size * state
    inner = s.tokens * heads * m.mamba_head_size

    def product(what: str, rows: int, columns: int, inside: int, *, wide: bool = False) -> Compute:
        output: Precision = "fp32" if wide else s.storage_format
        variant: GemmVariant = "scan_gradient" if "gradient" in what else "scan"
        gemm = Gemm(rows, columns, inside, batch, dtype=dtype, output=output, variant=variant)
        return Compute(f"scan {what}", gemm)

    prepared = (
        elementwise("scan decays", (e + 2 * FP32) * steps),
        product("states", wide, state, length, wide=True),
        elementwise("scan passing", (FP32 + e) * states),
        product("pairs", length, length, state, wide=True),
    )
    result = product("result", length, wide, state + half)
    backward: list[Task] = [
        *(_recomputed(each) for each in prepared),
        product("states gradient", wide, state, length, wide=True),
        elementwise("scan passing backward", (2 * FP32 + 2 * e) * states),
        product("input gradient", length, wide, state + half),
        product("write gradient", length, state, wide, wide=True),
        product("read gradient", length, state, wide, wide=True),
        product("pairs gradient", length, half, wide, wide=True),
        product("pairs write gradient", length, state, length, wide=True),
        product("pairs read gradient", length, state, length, wide=True),
        product("decays gradient", length, half, wide),
        elementwise("scan decays backward", 4 * FP32 * steps),
        elementwise("scan skip backward", 3 * e * inner),
    ]
    parameters = [Parameter(f"scan {what}", heads) for what in ("step bias", "decay", "skip")]
    for parameter in parameters:
        backward += accumulate_gradient(s, parameter.name, parameter.size)
    # The matrix in keeps what it reads; its own result is kept with the gated norm's input.
    return Operator("scan", (*prepared, result), tuple(backward), tuple(parameters))


def _recomputed(step: Compute) -> Compute:
    return Compute(f"{step.name} again", step.kernel)


# --- gated delta rule ---------------------------------------------------------------------------


def _delta_rule(s: Shapes) -> Operator:
    """Convolved queries, keys and values, decays → results of the heads, by chunks of tokens.

    Queries and keys are normalised inside (``use_qk_l2norm_in_kernel``). Each head of keys serves
    several of values.
    """
    m, e, dtype = s.model, s.element_size, s.matmul_format
    heads = m.delta_value_heads // s.grid.tp
    length = min(DELTA_CHUNK, s.length)
    batch = max(1, s.tokens // length) * heads
    keys, values = m.delta_key_size, m.delta_value_size
    half = max(1, length // 2)
    states = max(1, s.tokens // length) * heads * keys * values
    pairs = s.tokens * heads * length
    numbers = s.tokens * heads
    key_width = s.tokens * heads * keys
    value_width = s.tokens * heads * values

    def product(what: str, rows: int, columns: int, inside: int) -> Compute:
        gemm = Gemm(rows, columns, inside, batch, dtype=dtype, output=s.storage_format)
        return Compute(f"delta {what}", gemm)

    normalisation = elementwise("delta key and query norms", 4 * e * key_width)
    prepared = (
        elementwise("delta decays", (2 * e + 3 * FP32) * numbers),
        product("pairs", length, half, keys),
        elementwise("delta inverse", (FP32 + e) * pairs),
        product("inverse keys", length, keys, half),
        product("inverse values", length, values, half),
    )
    states_forward = (
        product("state read", length, values, keys),
        product("state write", keys, values, length),
        elementwise("delta states", e * states),
    )
    results = (
        product("query pairs", length, half, keys),
        product("result", length, values, keys + half),
    )
    backward: list[Task] = [
        *(_recomputed(each) for each in (*prepared[3:], *states_forward)),
        product("query pairs again", length, half, keys),
        product("pair values gradient", length, values, half),
        product("state read gradient", length, values, keys),
        product("state write gradient", keys, values, length),
        product("state gradient", keys, values, length),
        elementwise("delta states gradient", 2 * e * states),
        product("query gradient", length, keys, values + half),
        product("key gradient", length, keys, values + half),
        product("pairs gradient", length, half, values),
        product("inverse key gradient", length, keys, values),
        product("inverse keys gradient", length, keys, half),
        product("inverse values gradient", length, values, half),
        product("inverse gradient", length, half, keys + values),
        product("inverse gradient twice", length, length, 2 * half),
        product("key pairs gradient", length, keys, 2 * half),
        elementwise("delta sums backward", 3 * e * (key_width + value_width)),
        elementwise("delta decays backward", 6 * FP32 * numbers),
        elementwise("delta key and query norms backward", 6 * e * key_width),
    ]
    parameters = [Parameter(f"delta {what}", heads) for what in ("step bias", "decay")]
    for parameter in parameters:
        backward += accumulate_gradient(s, parameter.name, parameter.size)
    saved = e * pairs + e * value_width
    return Operator(
        "delta rule",
        (normalisation, *prepared, *states_forward, *results),
        tuple(backward),
        tuple(parameters),
        saved,
    )

"""The calls of PyTorch that run the kernels of a sweep, and the clock that times them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from .sweep import Case

Call = Callable[[], Any]

TORCH = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}

AHEAD = 20_000_000
"""Clocks that the GPU waits while the CPU launches what is to be timed: about 10 ms, so that no
time holds a launch."""


class Times(NamedTuple):
    """Durations of one call, in microseconds."""

    median: float
    p10: float
    p90: float
    repeats: int


class Clock:
    """Times calls on the GPU with events, or on the CPU with its clock.

    The calls of a measurement follow each other with nothing between, as in training: what fits in
    the L2 cache is found there.
    """

    def __init__(self, device: str, budget_ms: float = 60.0) -> None:
        self.cuda = device == "cuda"
        self.budget_ms = budget_ms

    def __call__(self, call: Call, least: int = 10, most: int = 60) -> Times:
        """Return the median and the first and last tenth of the repeats."""
        for _ in range(3):
            call()
        if not self.cuda:
            return _summary([_wall(call) for _ in range(3)])
        torch.cuda.synchronize()
        (once,) = self._run(call, 1)
        repeats = int(max(least, min(most, self.budget_ms * 1e3 / max(once, 1.0))))
        return _summary(self._run(call, repeats))

    def _run(self, call: Call, repeats: int) -> list[float]:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        torch.cuda._sleep(AHEAD)
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in pairwise(marks)]


def _wall(call: Call) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def _summary(times: list[float]) -> Times:
    times = sorted(times)
    tenth = len(times) // 10
    return Times(statistics.median(times), times[tenth], times[-1 - tenth], len(times))


def _matmul(case: Case, device: str) -> Call:
    f, layout = case.fields, case.operation.removeprefix("matmul ")
    m, n, k, dtype = f["m"], f["n"], f["k"], f["dtype"]
    if dtype == "fp8":
        x = torch.randn(m, k, device=device).to(TORCH[dtype])
        w = torch.randn(n, k, device=device).to(TORCH[dtype])
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(
            x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16
        )
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    x = torch.randn(*((k, m) if layout == "tn" else (m, k)), device=device, dtype=TORCH[dtype])
    w = torch.randn(*((n, k) if layout == "nt" else (k, n)), device=device, dtype=TORCH[dtype])
    left = x.t() if layout == "tn" else x
    right = w.t() if layout == "nt" else w
    return lambda: left @ right


def _bmm(case: Case, device: str) -> Call:
    f = case.fields
    torch.backends.cuda.matmul.allow_tf32 = False
    x = torch.randn(f["batch"], f["m"], f["k"], device=device, dtype=TORCH[f["dtype"]])
    w = torch.randn(f["batch"], f["k"], f["n"], device=device, dtype=TORCH[f["dtype"]])
    return lambda: torch.bmm(x, w)


def _gradient(output: torch.Tensor, inputs: list[torch.Tensor], given: torch.Tensor) -> Call:
    return lambda: torch.autograd.grad(output, inputs, given, retain_graph=True)


def _forward(call: Call) -> Call:
    def quiet() -> Any:
        with torch.no_grad():
            return call()

    return quiet


def _either(case: Case, call: Call, inputs: list[torch.Tensor]) -> Call:
    """Return the call, or its gradient where the case is backward."""
    if not case.fields["backward"]:
        return _forward(call)
    output = call()
    return _gradient(output, inputs, torch.randn_like(output))


def _attention(case: Case, device: str) -> Call:
    f = case.fields

    def heads(count: int, tokens: int) -> torch.Tensor:
        shape = (f["batch"], count, tokens, f["head_size"])
        return torch.randn(*shape, device=device, dtype=TORCH[f["dtype"]], requires_grad=True)

    q = heads(f["heads"], f["queries"])
    k, v = heads(f["kv_heads"], f["keys"]), heads(f["kv_heads"], f["keys"])

    def call() -> torch.Tensor:
        # On a GPU, an error rather than another kernel than that of FlashAttention.
        backend = torch.nn.attention.SDPBackend.FLASH_ATTENTION
        grouped = f["heads"] != f["kv_heads"]
        if device != "cuda":
            return F.scaled_dot_product_attention(q, k, v, is_causal=f["causal"])
        with torch.nn.attention.sdpa_kernel(backend):
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=f["causal"], enable_gqa=grouped
            )

    return _either(case, call, [q, k, v])


def _rows(case: Case, device: str) -> torch.Tensor:
    f = case.fields
    shape = (f["rows"], f["columns"])
    return torch.randn(*shape, device=device, dtype=TORCH[f["dtype"]], requires_grad=True)


def _norm(case: Case, device: str) -> Call:
    x = _rows(case, device)
    width = x.shape[1]
    weight = torch.ones(width, device=device, dtype=x.dtype, requires_grad=True)
    if case.operation == "rms_norm":
        return _either(case, lambda: F.rms_norm(x, (width,), weight), [x, weight])
    bias = torch.zeros(width, device=device, dtype=x.dtype, requires_grad=True)
    return _either(case, lambda: F.layer_norm(x, (width,), weight, bias), [x, weight, bias])


def _softmax(case: Case, device: str) -> Call:
    x = _rows(case, device)
    return _either(case, lambda: torch.softmax(x, -1), [x])


def _cross_entropy(case: Case, device: str) -> Call:
    x = _rows(case, device)
    target = torch.randint(x.shape[1], (x.shape[0],), device=device)
    return _either(case, lambda: F.cross_entropy(x, target), [x])


def _elementwise(case: Case, device: str) -> Call:
    extra, name = case.extra, case.operation
    x = torch.randn(extra["count"], device=device, dtype=TORCH[extra["dtype"]])
    y = torch.randn_like(x)
    calls: dict[str, Call] = {
        "add": lambda: x + y,
        "mul": lambda: x * y,
        "gelu": lambda: F.gelu(x),
        "gelu backward": lambda: torch.ops.aten.gelu_backward(y, x),
        "silu": lambda: F.silu(x),
        "silu backward": lambda: torch.ops.aten.silu_backward(y, x),
        "dropout": lambda: torch.native_dropout(x, 0.1, True),
        "cast": lambda: x.to(TORCH[extra["other"]]),
    }
    return calls[name]


def _embedding(case: Case, device: str) -> Call:
    f = case.fields
    shape = (f["entries"], f["width"])
    table = torch.randn(*shape, device=device, dtype=TORCH[f["dtype"]], requires_grad=True)
    indices = torch.randint(f["entries"], (f["lookups"],), device=device)
    if case.operation == "embedding":
        return _either(case, lambda: F.embedding(indices, table), [table])
    offsets = torch.arange(0, f["lookups"], f["pooling"], device=device)
    return _forward(lambda: F.embedding_bag(indices, table, offsets, mode="sum"))


def _adamw(case: Case, device: str) -> Call:
    count = max(1, case.fields["parameters"] // 10)
    parameters = [torch.nn.Parameter(torch.randn(count, device=device)) for _ in range(10)]
    for each in parameters:
        each.grad = torch.randn_like(each)
    optimizer = torch.optim.AdamW(parameters, fused=True)
    return optimizer.step


def _convolution(case: Case, device: str) -> Call:
    f, side = case.fields, case.extra["side"]
    torch.backends.cudnn.allow_tf32 = f["dtype"] == "tf32"
    # Formats of 16 bits run best with the channels last; cuDNN's fp32 does not care.
    order = torch.channels_last if f["dtype"] == "bf16" else torch.contiguous_format

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=TORCH[f["dtype"]]).to(memory_format=order)

    x = tensor(f["batch"], f["inputs"], side, side)
    w = tensor(f["outputs"], f["inputs"], f["kernel"], f["kernel"])
    stride, padding = f["stride"], f["kernel"] // 2
    if f["direction"] == "forward":
        return lambda: F.conv2d(x, w, stride=stride, padding=padding)
    given = tensor(f["batch"], f["outputs"], f["height"], f["width"])
    mask = [f["direction"] == "input", f["direction"] == "weight", False]
    pair = [stride, stride], [padding, padding], [1, 1]
    return lambda: torch.ops.aten.convolution_backward(
        given, x, w, None, *pair, False, [0, 0], 1, mask
    )


def _copy(case: Case, device: str) -> Call:
    size, name = case.fields["bytes"], case.operation
    there = torch.empty(size, dtype=torch.uint8, device=device)
    if name == "fill":
        return there.zero_
    if name == "copy":
        other = torch.empty_like(there)
        return lambda: other.copy_(there)
    here = torch.empty(size, dtype=torch.uint8, pin_memory=device == "cuda")
    if name == "copy to device":
        return lambda: there.copy_(here, non_blocking=True)
    return lambda: here.copy_(there, non_blocking=True)


PREPARE: dict[str, Callable[[Case, str], Call]] = {
    "gemm": _matmul,
    "attention": _attention,
    "norm": _norm,
    "softmax": _softmax,
    "cross_entropy": _cross_entropy,
    "elementwise": _elementwise,
    "embedding": _embedding,
    "optimizer": _adamw,
    "convolution": _convolution,
    "copy": _copy,
}


def prepare(case: Case, device: str) -> Call:
    """Make the operands of a case and return the call to time.

    Raises
    ------
    RuntimeError
        If the memory does not suffice, or this PyTorch or GPU has no such kernel.
    """
    if case.operation == "bmm":
        return _bmm(case, device)
    return PREPARE[case.family](case, device)

"""How much slower kernels run beside communication.

A collective of NCCL is, to the rest of the GPU, a kernel that stays on a few multiprocessors and
moves data through memory. Here a copy that never leaves its multiprocessors stands for it; their
number is that of NCCL's channels, and the bytes that each has in flight set its bandwidth. Needs
Triton, which comes with PyTorch for CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
import triton
import triton.language as tl

from .operators import Clock

WORDS = 2**28
"""Of four bytes, in each of the two buffers: far beyond any cache."""

MULTIPROCESSORS = (1, 2, 4, 8, 16, 24, 32, 48)
BLOCKS = (512, 4096)
"""Words that a program moves at once: little bandwidth and much."""

LOOPS = 2000

COLUMNS = (
    *("gpu", "operation", "m", "n", "k", "heads", "tokens", "rows", "columns", "dtype"),
    *("sms", "words", "beside_gbps", "alone_us", "median_us", "p10_us", "p90_us", "repeats"),
)


@triton.jit
def _move(source, target, loops, words, block: tl.constexpr):  # type: ignore[no-untyped-def]
    begin = tl.program_id(0) * words
    for step in range(loops):
        at = begin + (step * block) % words + tl.arange(0, block)
        tl.store(target + at, tl.load(source + at))


def overlap() -> Iterator[dict[str, Any]]:
    """Yield rows of `COLUMNS`, without the GPU."""
    clock = Clock("cuda")
    side = torch.cuda.Stream()
    source = torch.empty(WORDS, dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    kernels = list(_kernels())

    for sms in MULTIPROCESSORS:
        for words in BLOCKS:

            def move(loops: int, sms: int = sms, words: int = words) -> None:
                each = WORDS // sms // words * words
                _move[(sms,)](source, target, loops, each, block=words, num_warps=16)

            pace = clock(lambda: move(LOOPS), least=3, most=3).median
            rate = 2 * LOOPS * words * 4 * sms / pace * 1e-3
            for shape, call in kernels:
                found = _beside(clock, side, call, move, pace / LOOPS)
                if found is not None:
                    beside = {"sms": sms, "words": words, "beside_gbps": round(rate, 1)}
                    yield shape | beside | found


def _beside(
    clock: Clock,
    side: torch.cuda.Stream,
    call: Callable[[], Any],
    move: Callable[[int], None],
    pace: float,
) -> dict[str, Any] | None:
    """Time a call alone and beside the copy; None if the copy ended first."""
    alone = clock(call).median
    repeats = max(5, min(60, int(20e3 / alone)))
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        move(int(3 * repeats * alone / pace) + LOOPS)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.current_stream().synchronize()
    covered = not side.query()
    torch.cuda.synchronize()
    if not covered:
        return None
    # The first call begins while the copy does.
    times = sorted(a.elapsed_time(b) * 1e3 for a, b in pairwise(marks[1:]))
    tenth = len(times) // 10
    return {
        "alone_us": round(alone, 2),
        "median_us": round(times[len(times) // 2], 2),
        "p10_us": round(times[tenth], 2),
        "p90_us": round(times[-1 - tenth], 2),
        "repeats": len(times),
    }


def _kernels() -> Iterator[tuple[dict[str, Any], Callable[[], Any]]]:
    """Yield kernels of a step: products, of whole waves and not, attention, and streams."""
    for m, n, k in (
        (4096, 4096, 4096),
        (8192, 8192, 8192),
        (2048, 14336, 4096),
        (2112, 7168, 2048),
        (16384, 1024, 8192),
        (1056, 2048, 2048),
    ):
        a, b = _random(m, k), _random(k, n)
        shape = {"operation": "matmul", "m": m, "n": n, "k": k, "dtype": "bf16"}
        yield shape, lambda a=a, b=b: a @ b
    for tokens in (2048, 8192):
        q = _random(1, 32, tokens, 128)
        shape = {"operation": "attention", "heads": 32, "tokens": tokens, "dtype": "bf16"}
        yield shape, lambda q=q: F.scaled_dot_product_attention(q, q, q, is_causal=True)
    for rows, columns in ((8192, 4096), (32768, 8192)):
        x, y = _random(rows, columns), _random(rows, columns)
        shape = {"rows": rows, "columns": columns, "dtype": "bf16"}
        yield {"operation": "add"} | shape, lambda x=x, y=y: x + y
        yield {"operation": "gelu"} | shape, lambda x=x: F.gelu(x)
        yield (
            {"operation": "layer_norm"} | shape,
            lambda x=x, columns=columns: F.layer_norm(x, (columns,)),
        )


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

"""Products in batches between two matrices: which of them are scans over states."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bench import extrapolate_closed_loop as loop

from mpisim.extrapolate import Target, TracedStep, extrapolate
from mpisim.extrapolate.scans import scans_of
from mpisim.extrapolate.step import TracedKernel, TracedOperator, TracedParameter
from mpisim.kernels.counted import COUNTED
from mpisim.kernels.operations import Gemm

SEQUENCE, SAMPLES = 2048, 2


def operator(number: int, *parameters: TracedParameter, products: list[Gemm]) -> TracedOperator:
    kernels = tuple(
        TracedKernel(f"gemm {i}", "aten::bmm", 10 * number + i, 1_000_000, (each,))
        for i, each in enumerate(products)
    )
    return TracedOperator(f"operator {number}", "Block", kernels, parameters=parameters)


def step_of(*batched: tuple[int, int, int, int], weights: tuple[int, ...] = ()) -> TracedStep:
    """A step of two matrices, and between them products of a batch, m, n, k."""
    matrix = TracedParameter((1024, 1024))
    rows = Gemm(SAMPLES * SEQUENCE, 1024, 1024)
    between = [Gemm(m, n, k, batch=batch) for batch, m, n, k in batched]
    own = (TracedParameter(weights),) if weights else ()
    operators = (
        operator(0, matrix, products=[rows]),
        *(operator(i, *own, products=[each]) for i, each in enumerate(between, 1)),
        operator(len(between) + 1, matrix, products=[rows]),
    )
    return TracedStep("here", "a100-sxm", SAMPLES, operators, (), 1, sequence=SEQUENCE)


MAMBA = [(256, 1024, 128, 128), (256, 128, 128, 128), (256, 128, 1024, 192)]
"""Two samples, 16 chunks of 128 tokens, 8 groups: states, pairs, result."""

DELTA = [
    *((1024, 64, 32, 128), (1024, 64, 128, 32), (1024, 64, 128, 128)),
    *((1024, 128, 128, 64), (1024, 64, 32, 128), (1024, 64, 128, 160)),
]
"""Two samples, 32 chunks of 64 tokens, 16 heads."""


@pytest.mark.parametrize("products", [MAMBA, DELTA])
def test_chunks_that_write_and_read_states_are_a_scan(
    products: list[tuple[int, int, int, int]],
) -> None:
    assert scans_of(step_of(*products)) == {0, len(products)}
    transposed = [(batch, n, m, k) for batch, m, n, k in products]
    assert scans_of(step_of(*transposed)) == {0, len(products)}


@pytest.mark.parametrize(
    "products",
    [
        [(256, 128, 128, 64), (256, 128, 64, 128)],  # attention in chunks of 128 tokens
        [(256, 128, 128, 128), (256, 128, 128, 128)],  # with heads as wide as chunks
        [(512, 64, 64, 128), (512, 64, 128, 64)],
        [(256, 128, 384, 64), (256, 128, 64, 384)],  # in windows over three chunks
        [(2048, 49, 49, 32), (2048, 49, 32, 49)],  # of seven by seven patches
        [(4, 1024, 16, 1024), (4, 1024, 1024, 16)],  # adapters of four users
        [(16, 4096, 128, 64)],  # an einsum with a matrix for each head
        [(255, m, n, k) for _, m, n, k in MAMBA],  # no whole chunks
        MAMBA[:2],  # states that nothing reads
        [MAMBA[0], MAMBA[2]],  # no pairs
    ],
)
def test_other_products_in_batches_are_none(products: list[tuple[int, int, int, int]]) -> None:
    assert not scans_of(step_of(*products))


def test_batches_of_experts_are_none() -> None:
    assert not scans_of(step_of(*MAMBA, weights=(8, 128, 1024)))


def test_lengths_must_be_known() -> None:
    assert not scans_of(replace(step_of(*MAMBA), sequence=None))


def test_what_is_no_scan_gets_no_exchange_and_is_said(tmp_path: Path) -> None:
    """Nemotron-H, with attention in chunks in place of its scans."""
    step = loop.traced(loop.MODELS["nemotron-h"], tmp_path / "trace")
    target = Target("dgx-a100", {"cp": 2})
    scan = extrapolate(step, target).program
    assert not any(
        "in batches" in each for each in json.loads(scan.attributes[COUNTED])["not_modelled"]
    )

    def in_chunks(each: TracedOperator) -> TracedOperator:
        kernels = tuple(
            replace(task, kernels=tuple(map(chunked, task.kernels)))
            if isinstance(task, TracedKernel)
            else task
            for task in each.forward
        )
        return replace(each, forward=kernels)

    def chunked(kernel: object) -> object:
        if not isinstance(kernel, Gemm) or kernel.batch == 1:
            return kernel
        return replace(kernel, m=128, n=128, k=128)

    changed = replace(step, operators=tuple(map(in_chunks, step.operators)))
    found = extrapolate(changed, target).program
    said = [
        each
        for each in json.loads(found.attributes[COUNTED])["not_modelled"]
        if "products in batches, if these work along the sequence" in each
    ]
    assert len(said) == 1
    assert loop.volumes(scan, 0)["ALL_TO_ALL"] > 0
    assert "ALL_TO_ALL" not in loop.volumes(found, 0)

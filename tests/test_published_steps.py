"""Published steps of `data/validation`: their times, their halves, and their experiments.

Times follow from what the sources print, halves from names alone; every row is an experiment.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from mpisim.validate.e2e import Mapped, Row, experiment_of, read
from mpisim.validate.e2e import settings as declared

VALIDATION = Path(__file__).parents[1] / "data/validation"

BY_ID = [
    row
    for name in ("steps.csv", "more_steps.csv", "third_steps.csv", "fourth_steps.csv")
    for row in read(VALIDATION / name)
]
"""Rows whose half is drawn by their own name."""

BY_SOURCE = list(read(VALIDATION / "seventh_steps.csv"))
"""Rows whose half is drawn by the name of their source."""

LANGUAGE_ROWS = 78
"""The first of these, of language models: drawn by the first byte of SHA-256, others by CRC-32."""

ROWS = [*BY_ID, *BY_SOURCE]


def _tokens(row: Row) -> int:
    return row.integers["global_batch"] * row.integers["seq_len"]


SECONDS: dict[str, Callable[[Row, float], float]] = {
    "ms": lambda _, value: value / 1e3,
    "ms/image": lambda row, value: row.integers["global_batch"] * value / 1e3,
    "s": lambda _, value: value,
    "s/it": lambda _, value: value,
    "it/s": lambda _, value: 1 / value,
    "minutes": lambda _, value: 60 * value,
    "images/s": lambda row, value: row.integers["global_batch"] / value,
    "samples/s": lambda row, value: row.integers["global_batch"] / value,
    "samples/s/GPU": lambda row, value: (
        row.integers["global_batch"] / row.integers["num_gpus"] / value
    ),
    "sequences/s": lambda row, value: row.integers["global_batch"] / value,
    "tokens/s": lambda row, value: _tokens(row) / value,
    "tokens/s/GPU": lambda row, value: _tokens(row) / row.integers["num_gpus"] / value,
    "minutes of 19,560 steps": lambda _, value: 60 * value / 19560,
    "hours of 32,000 steps": lambda _, value: 3600 * value / 32000,
    "hours of 93,900 steps": lambda _, value: 3600 * value / 93900,
    "hours of 71,680 steps": lambda _, value: 3600 * value / 71680,
    "days of 600,000 steps": lambda _, value: 86400 * value / 600000,
    "s of 1,024 samples": lambda row, value: value * row.integers["global_batch"] / 1024,
    "s of 250 steps": lambda _, value: value / 250,
}


def _flops_per_token(row: Row) -> float:
    """By the formula of the row's source."""
    if row.id.startswith("swiss-ai"):  # Megatron-LM's
        layers, hidden, length, vocabulary = 32, 4096, 4096, 131072
        parts = 1 + 8 / 32 + length / hidden + 1.5 * 14336 / hidden
        return 12 * layers * hidden**2 * (parts + vocabulary / (2 * layers * hidden))
    if row.id.startswith("maxtext"):  # all matrices but the embedding of words; Llama 2 7B
        layers, hidden, length = 32, 4096, 4096
        return 6 * (6.738e9 - 32000 * hidden) + 12 * layers * hidden * length
    if row.id.startswith("zoo-q235"):  # 6 × weights of products, causal attention; Qwen3-235B-A22B
        layers, hidden, inner, length = 94, 4096, 64 * 128, row.integers["seq_len"]
        layer = 2 * hidden * (inner + 4 * 128) + 8 * 3 * hidden * 1536
        return 6 * (layers * layer + hidden * 151936 + layers * inner * length)
    if row.id.startswith("nanogpt"):  # its estimate_mfu: no positions, no biases
        layers, hidden, vocabulary, length = 12, 768, 50304, 1024
        parameters = layers * (12 * hidden**2 + 2 * hidden) + vocabulary * hidden + hidden
        return 6 * parameters + 12 * layers * hidden * length
    # 6 N + 12 L H Q T, with embeddings of words and positions
    layers, hidden, vocabulary, length = 48, 1600, 50304, 1024  # GPT-2 XL
    if row.id.startswith("flash-attn-2"):
        layers, hidden, vocabulary, length = (
            row.integers[name] for name in ("layers", "hidden", "vocab", "seq_len")
        )
    block = 12 * hidden**2 + 13 * hidden
    parameters = layers * block + (vocabulary + length) * hidden + 2 * hidden
    return 6 * parameters + 12 * layers * hidden * length


@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_times_follow_from_what_the_source_prints(row: Row) -> None:
    value, unit = float(row.texts["measured_value"]), row.texts["unit"]
    if unit == "TFLOP/s/GPU":
        flops = _tokens(row) * _flops_per_token(row)
        seconds = flops / row.integers["num_gpus"] / (value * 1e12)
    elif unit == "% MFU of 312 TFLOP/s":
        seconds = _tokens(row) * _flops_per_token(row) / (value / 100 * 312e12)
    else:
        seconds = SECONDS[unit](row, value)
    assert row.numbers["step_time_ms"] == pytest.approx(1e3 * seconds, rel=1e-5)
    assert row.texts["source"]


def test_no_row_is_in_two_tables() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)


def test_halves_are_drawn_by_name() -> None:
    for row in BY_ID:
        even = int(hashlib.sha256(row.id.encode()).hexdigest(), 16) % 2 == 0
        assert row.texts["half"] == ("causes" if even else "held back")
    for i, row in enumerate(BY_SOURCE):
        source = row.texts["source"].encode()
        drawn = hashlib.sha256(source).digest()[0] if i < LANGUAGE_ROWS else zlib.crc32(source)
        assert row.texts["half"] == ("held back" if drawn % 2 else "causes")


@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_every_row_is_an_experiment(row: Row) -> None:
    found = experiment_of(row, declared())
    assert isinstance(found, Mapped), found.why
    gpus, experiment = row.integers["num_gpus"], found.experiment
    plan = experiment.plan
    stated = row.integers.get("dp")
    assert stated is None or gpus == stated * plan.tp * plan.cp * plan.pp
    assert plan.global_batch == row.integers["global_batch"]

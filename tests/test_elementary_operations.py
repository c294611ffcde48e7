"""Frameworks of 2020: biases, GELU, dropout and Adam an operation after the other."""

from __future__ import annotations

import pytest
from sharing import layer, stepped, told
from transformers import lines, model, network, operator, plan

# 8 tokens of 16 features, 64 inner ones.
BERT = model("bert", layers=1, hidden=16, heads=4, seq_len=8, vocab=256, dropout=True)
TOKENS = 8


def test_biases_by_kernels_of_their_own() -> None:
    keys = {"kernels": "eager", "fused": False, "dp_style": "ddp"}
    plain, apart = (network(BERT, plan(**keys, bias_kernels=on)) for on in (False, True))
    added = {"qkv": 48, "feed-forward gelu": 64, "attention dropout add": 16, "pooler": 16}
    for name, width in added.items():
        rows = 1 if name == "pooler" else TOKENS
        without = lines(operator(plain, name).forward)
        steps = set(lines(operator(apart, name).forward)) - set(without)
        assert steps == {f"{name} bias: {2 * 2 * rows * width} bytes"}
        assert operator(apart, name).backward == operator(plain, name).backward


def test_primitive_operations() -> None:
    keys = {"kernels": "eager", "fused": False, "primitive": ("gelu", "dropout")}
    found = network(BERT, plan(**keys))
    size = TOKENS * 64
    gelu = operator(found, "feed-forward gelu")
    # x³ and its sum with x, tanh, and what is around them: 18 tensors; 26 for the gradient.
    forward = [line for line in lines(gelu.forward) if "bias" not in line]
    assert len(forward) == 8
    assert sum(int(line.split(": ")[1].split()[0]) for line in forward) == 18 * 2 * size
    backward = [line for line in lines(gelu.backward) if "bias" not in line]
    assert sum(int(line.split(": ")[1].split()[0]) for line in backward) == 26 * 2 * size
    dropout = lines(operator(found, "attention dropout add").forward)
    hidden = TOKENS * 16
    assert [line.partition(": ")[2] for line in dropout[:5]] == [
        f"{2 * hidden} bytes",
        f"{(2 + 1) * hidden} bytes",
        f"{4 * hidden} bytes",
        f"{(1 + 2) * hidden} bytes",
        f"{6 * hidden} bytes",
    ]


@pytest.mark.parametrize(("clip", "precision"), [(None, "bf16"), (True, "bf16"), (True, "fp16")])
def test_who_clips_with_distributed_data_parallel(clip: bool | None, precision: str) -> None:
    net = (layer("a", 40, 6),)
    keys = {"dp_style": "ddp", "clip": clip, "precision": precision}
    rows = [row.partition(" <")[0] for row in told(stepped(net, 2, **keys).program)]
    assert ("clip gradients" in rows) == bool(clip)
    assert ("unscale gradients" in rows) == (precision == "fp16")


def test_adam_of_tensorflow() -> None:
    net = (layer("a", 40, 6),)
    keys = {"dp_style": "ddp", "fused": False, "primitive": ("adam",)}
    rows = [row for row in told(stepped(net, 1, **keys).program) if row.startswith("adam")]
    assert rows[-2:] == ["adam update", "adam assignments"]
    assert len(rows) == 15

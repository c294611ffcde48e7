"""Frameworks of 2020: biases, GELU, dropout and Adam an operation after the other."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from sharing import layer, stepped, told
from transformers import lines, model, network, operator, plan

from mpisim.kernels.operations import Elementwise, Norm, Softmax
from mpisim.workloads.operators import Compute, Task

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


def test_biases_whose_elements_are_counted() -> None:
    keys = {"kernels": "eager", "fused": False, "bias_kernels": True}
    plain, counted = (network(BERT, plan(**keys, broadcast_biases=on)) for on in (False, True))
    for name, width in {"qkv": 48, "feed-forward gelu": 64, "attention dropout add": 16}.items():
        for found, indexed in ((plain, None), (counted, TOKENS * width)):
            steps = operator(found, name).forward
            (bias,) = (each for each in steps if each.name == f"{name} bias")
            assert isinstance(bias, Compute)
            assert bias.kernel == Elementwise(2 * 2 * TOKENS * width, indexed=indexed)


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


def traffic(steps: Iterable[Task]) -> int:
    return sum(
        step.kernel.traffic
        for step in steps
        if isinstance(step, Compute) and isinstance(step.kernel, Elementwise)
    )


def test_layer_norm_of_tensorflow() -> None:
    """``nn.moments`` and ``nn.batch_normalization``, worked out operation by operation."""
    keys = {"kernels": "eager", "fused": False, "precision": "fp32", "dp_style": "ddp"}
    found = network(BERT, plan(**keys, primitive=("norm",)))
    norm, size = operator(found, "attention norm"), 4 * TOKENS * 16
    assert not any(isinstance(step.kernel, Norm) for step in norm.forward + norm.backward)  # type: ignore[union-attr]
    # Means of x and of squares read one, squares and two products with a broadcast one, inverse
    # times scale writes one, products of two tensors and their sum read two and write one.
    assert traffic(norm.forward) == (1 + 2 + 1 + 1 + 3 + 2 + 2 + 3) * size
    # The gradients of these, last to first, a sum of three, and the residual's.
    summed = [s for s in norm.backward if "accumulation" not in s.name]
    assert traffic(summed) == (3 + 4 + 2 + 3 + 3 + 3 + 3 + 3 + 3 + 7 + 3 + 4 + 3) * size


def test_what_mixed_precision_leaves_in_fp32() -> None:
    keys = {"kernels": "eager", "fused": False, "precision": "fp16"}
    wide = ("norm", "softmax", "activation")
    plain, found = (network(BERT, plan(**keys, widened=each)) for each in ((), wide))

    def more(name: str, phase: str) -> int:
        return traffic(getattr(operator(found, name), phase)) - traffic(
            getattr(operator(plain, name), phase)
        )

    hidden, inner, scores = TOKENS * 16, TOKENS * 64, 4 * TOKENS * 8
    # A cast each way; GELU reads one tensor and writes one, backward three in all.
    assert more("feed-forward gelu", "forward") == (2 * 6 + 2 * 2) * inner
    assert more("feed-forward gelu", "backward") == (2 * 6 + 3 * 2) * inner
    assert more("attention", "forward") == more("attention", "backward") == 2 * 6 * scores
    # The sum reads and writes fp32; its branch gets its gradient in 16 bits.
    assert more("attention dropout add", "forward") == 2 * 2 * hidden
    assert more("attention dropout add", "backward") == 6 * hidden
    softmax = [s.kernel for s in operator(found, "attention").forward if s.name[-7:] == "softmax"]  # type: ignore[union-attr]
    assert softmax == [Softmax(4 * TOKENS, 8, dtype="fp32")]
    norm = operator(found, "attention norm").forward
    assert [type(step.kernel) for step in norm] == [Norm, Elementwise]  # type: ignore[union-attr]
    assert norm[0].kernel.dtype == "fp32"  # type: ignore[union-attr]
    # One kernel each reads and writes whatever formats there are, and fp32 needs no casts.
    for other in ({**keys, "fused": True}, {**keys, "precision": "fp32"}):
        assert network(BERT, plan(**other, widened=wide)) == network(BERT, plan(**other))


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

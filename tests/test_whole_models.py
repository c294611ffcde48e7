"""Kernels of Hugging Face's eager transformers beside those of the generator."""

from __future__ import annotations

from collections import Counter

import pytest

from mpisim.kernels.operations import Elementwise, Gemm, Norm, Softmax
from mpisim.validate.whole_models import steps

LAYERS = {"gpt2_large": 36, "opt_13": 24, "bert_large": 24}


def counted(kernels, layers: int) -> Counter:
    """Count the kernels that every layer has."""
    found = Counter(kernels)
    return Counter({each: found[each] // layers for each in found if found[each] >= layers})


def tensors(kernels: Counter, size: int) -> float:
    """How many tensors of `size` bytes the elementwise kernels of these sizes move, at most 4 each.

    The kernels on other tensors are far smaller or larger than one of these.
    """
    moved = [
        each.traffic * count
        for each, count in kernels.items()
        if isinstance(each, Elementwise) and 0.9 * size <= each.traffic <= 4 * size
    ]
    return sum(moved) / size


@pytest.mark.parametrize(
    ("name", "batch", "forward", "backward"),
    [
        # Divided, chosen, dropped (and a mask of bytes); backward the same.
        ("gpt2_large", 4, 2 + 2 + 2.25, 2 + 2 + 2.25),
        # Added to, compared; backward the five kernels of the comparison: equal, half, chosen,
        # less, set to zero. No dropout.
        ("opt_13", 2, 2 + 2, 1.25 + 2 + 3.25 + 1.25 + 2.25),
        # Divided, added to, dropped; backward the addition has no kernel.
        ("bert_large", 8, 2 + 2 + 2.25, 2 + 2.25),
    ],
)
def test_kernels_on_the_scores(name, batch, forward, backward):
    heads, tokens = {"gpt2_large": (20, 1024), "opt_13": (32, 2048), "bert_large": (16, 1024)}[name]
    scores = 4 * batch * heads * tokens * tokens
    for kernels, expected in zip(steps(name, batch, tokens, training=True), (forward, backward)):
        layer = counted(kernels, LAYERS[name])
        # Activations of the feed-forward part are as large as the scores of none of these.
        wide = [each for each in layer if isinstance(each, Softmax)]
        assert len(wide) == 1
        assert tensors(layer, scores) == pytest.approx(expected)


def test_heads_are_copied_unless_the_batch_is_one():
    tensor = 4 * 1024 * 1280
    for batch, copies in ((1, 0), (4, 3)):
        forward, _ = steps("gpt2_large", batch, 1024, training=False)
        layer = counted(forward, 36)
        # And the context's, whose heads come together for the projection; GPT-2 has no other
        # kernel that reads and writes one tensor of this size.
        assert layer[Elementwise(2 * batch * tensor)] == copies + 1
    for batch in (1, 4):
        forward, _ = steps("opt_13", batch, 1024, training=False)
        layer = counted(forward, 24)
        # Queries, keys, values, context; and the queries' scaling.
        assert layer[Elementwise(2 * batch * 4 * 1024 * 2048)] == 5


def test_gelu_new_is_written_out():
    forward, backward = steps("gpt2_large", 2, 1024, training=True)
    wide = 4 * 2 * 1024 * 5120
    # x³, ·d, ·c, tanh, +1, ·1/2 read one tensor; x + …, and a × b, two.
    layer = counted(forward, 36)
    assert (layer[Elementwise(2 * wide)], layer[Elementwise(3 * wide)]) == (6, 2)
    # Back: a and b, tanh, the power, two sums; six scalings and the power of the power's.
    layer = counted(backward, 36)
    assert (layer[Elementwise(2 * wide)], layer[Elementwise(3 * wide)]) == (5, 6)


@pytest.mark.parametrize(("name", "batch"), [("opt_13", 2), ("bert_large", 3)])
def test_products_of_queries_keys_and_values_are_apart(name, batch):
    tokens = 512
    h = {"opt_13": 2048, "bert_large": 1024}[name]
    forward, backward = (counted(each, 24) for each in steps(name, batch, tokens, training=True))
    m = batch * tokens
    one = Gemm(m, h, h, dtype="fp32", output="fp32")
    assert forward[one] == 3 + 1  # and the projection
    gradients = Gemm(h, h, m, dtype="fp32", output="fp32")
    assert backward[one] + backward[gradients] == 2 * 4


def test_gradients_add_up_over_iterations():
    _, backward = steps("gpt2_large", 1, 1024, training=True)
    h = 1280
    layer = counted(backward, 36)
    # Three times four bytes for each weight of the two products of the feed-forward part.
    assert layer[Elementwise(12 * 4 * h * h)] == 2
    assert layer[Elementwise(12 * 3 * h * h)] == 1


def test_products_are_as_many_operations_as_the_generators():
    for name in LAYERS:
        fused, _ = steps(name, 2, 512, training=False, fused=True)
        eager, _ = steps(name, 2, 512, training=False)
        assert sum(each.flops for each in eager) == sum(each.flops for each in fused)
        norms = [sum(isinstance(each, Norm) for each in kernels) for kernels in (fused, eager)]
        assert norms[0] == norms[1]

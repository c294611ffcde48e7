"""``torch.autocast`` in generated steps, beside counts by hand and steps of PyTorch itself.

What PyTorch launches is captured from ``tests/captured/autocast_blocks.py``, which says nothing of
formats but ``torch.autocast``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from captures import SCRIPTS, alone, needs_torch, script
from transformers import model, network, operator, plan

from mpisim.base.errors import InputError
from mpisim.base.kinds import Phase
from mpisim.base.toml import toml_table
from mpisim.capture.memory import memory_of
from mpisim.capture.recording import ItemKind
from mpisim.experiment import Experiment, Transformer, load
from mpisim.kernels import find_gpu
from mpisim.kernels.operations import Elementwise, Embedding, Kernel, Norm, Softmax
from mpisim.operators.table import kernels_of
from mpisim.prediction.prepared import prepare
from mpisim.workloads.layout import networks_of
from mpisim.workloads.operators import Compute, LayerStack

TOKENS, HIDDEN, INNER, WORDS = 8, 16, 64, 256
GPT = model("gpt", layers=2, hidden=HIDDEN, heads=4, seq_len=TOKENS, vocab=WORDS)
KEYS = {"dp_style": "ddp", "fused": False}
CAST = 2 + 4
"""Bytes that a cast between fp32 and 16 bits reads and writes of an element."""


def kernels(found: LayerStack, way: str) -> Iterator[tuple[str, Kernel]]:
    """Yield names and kernels of one way."""
    for layer in found.layers:
        for each in layer.operators:
            for task in getattr(each, way):
                if isinstance(task, Compute):
                    yield task.name, task.kernel


def casts(found: LayerStack, way: str, of: str) -> list[int]:
    """Bytes of casts of parameters or their gradients, by the end of their names."""
    return [
        kernel.bytes
        for name, kernel in kernels(found, way)
        if isinstance(kernel, Elementwise) and name.endswith(f"{of} cast")
    ]


@pytest.mark.parametrize("fused", [False, True])
def test_parameters_of_products_are_copied_once_a_forward(fused: bool) -> None:
    found = network(GPT, plan(**KEYS | {"fused": fused}, precision_autocast=True))
    # Queries, keys and values, output, up, down; the head's matrix is the embedding's.
    weights = [3 * HIDDEN**2, HIDDEN**2, HIDDEN * INNER, HIDDEN * INNER] * 2 + [HIDDEN * WORDS]
    biases = [3 * HIDDEN, HIDDEN, INNER, HIDDEN] * 2
    for way, what in (("forward", ""), ("backward", " gradient")):
        assert sorted(casts(found, way, f"weight{what}")) == sorted(CAST * n for n in weights)
        assert sorted(casts(found, way, f"bias{what}")) == sorted(CAST * n for n in biases)


def test_norms_and_the_residual_stream_are_in_fp32() -> None:
    found = network(GPT, plan(**KEYS, precision_autocast=True))
    size = TOKENS * HIDDEN
    assert {k.dtype for _, k in kernels(found, "forward") if isinstance(k, Norm | Embedding)} == {
        "fp32"
    }
    norm = operator(found, "attention norm")
    assert [step.kernel for step in norm.forward] == [  # type: ignore[union-attr]
        Norm(TOKENS, HIDDEN, dtype="fp32"),
        Elementwise(CAST * size),
    ]
    assert norm.saved == 4 * size
    added = operator(found, "attention dropout add")
    assert [s.kernel for s in added.forward][-1] == Elementwise((2 + 4 + 4) * size)  # type: ignore[union-attr]
    # Its gradient is cast for the branch; that of the norm's result from 16 bits; both are added.
    assert added.backward[0].kernel == Elementwise(CAST * size)  # type: ignore[union-attr]
    assert norm.backward[0].kernel == Elementwise(CAST * size)  # type: ignore[union-attr]
    assert norm.backward[-1].kernel == Elementwise(3 * 4 * size)  # type: ignore[union-attr]
    # Activations stay in 16 bits, and what is kept for their gradients.
    activation = operator(found, "feed-forward gelu")
    assert activation.forward[-1].kernel == Elementwise(2 * 2 * TOKENS * INNER)  # type: ignore[union-attr]
    # A matrix keeps its input and its copy.
    inner = operator(found, "feed-forward out")
    assert inner.saved == 2 * (TOKENS * INNER + INNER * HIDDEN)


def test_the_loss_is_a_softmax_in_16_bits_with_a_copy() -> None:
    loss = operator(network(GPT, plan(**KEYS, precision_autocast=True)), "loss")
    size = TOKENS * WORDS
    assert [step.kernel for step in loss.forward][:2] == [  # type: ignore[union-attr]
        Softmax(TOKENS, WORDS, dtype="bf16"),
        Elementwise(CAST * size),
    ]
    assert loss.saved == CAST * size


def test_separate_matrices_cast_their_input_each() -> None:
    llama = model("llama", layers=1, hidden=HIDDEN, heads=4, seq_len=TOKENS, vocab=WORDS)
    keys = KEYS | {"separate_projections": True}
    found = network(llama, plan(**keys, precision_autocast=True))
    inputs = [k for name, k in kernels(found, "forward") if name.endswith("input cast")]
    norms = [k for name, k in kernels(found, "forward") if name.endswith("norm output cast")]
    # Two norms of the block and the last; two more for keys and values, one for the gate's twin.
    assert inputs == [Elementwise(CAST * TOKENS * HIDDEN)] * 3
    assert norms == [Elementwise(CAST * TOKENS * HIDDEN)] * 3
    # LlamaRMSNorm takes fp32 and gives fp32: square, mean, root, scale, weight.
    steps = operator(found, "attention norm").forward
    assert len(steps) == 5 + 1


@pytest.mark.parametrize(("precision", "copies"), [("fp16", 1), ("bf16", 2)])
def test_softmax_of_scores_in_memory(precision: str, copies: int) -> None:
    keys = KEYS | {"kernels": "eager", "precision": precision}
    steps = operator(network(GPT, plan(**keys, precision_autocast=True)), "attention").forward
    scores = 4 * TOKENS * TOKENS
    names = [step.name for step in steps if "softmax" in step.name]
    assert sum("cast" in name for name in names) == copies
    (kernel,) = (s.kernel for s in steps if s.name == "attention softmax")  # type: ignore[union-attr]
    assert kernel == Softmax(scores // TOKENS, TOKENS, dtype="fp32")


def written(path: Path, model: dict[str, object], **keys: object) -> Experiment:
    """Experiment of DDP on two GPUs, by a file."""
    batch = keys.pop("batch", 4)
    tables = {
        "model": model,
        "cluster": {"preset": "dgx-h100", "gpus": 2},
        "plan": {"micro_batch": batch, "global_batch": 2 * batch, "precision": keys},  # type: ignore[operator]
        "framework": {"name": "ddp"},
    }
    file = path / "experiment.toml"
    file.write_text(toml_table(tables))
    return load(str(file), [])[1]


def test_states_are_those_of_training_in_fp32(tmp_path: Path) -> None:
    vit = {"family": "vit", "layers": 2, "hidden": 64, "heads": 2}
    mixed = written(tmp_path, vit, products="fp16")
    assert mixed.plan.precision.autocast  # the profile says so
    single = written(tmp_path, vit, products="fp32")
    stages = [prepare(each).memory.stages[0] for each in (mixed, single)]
    for part in ("parameters", "gradients", "optimizer", "buckets"):
        assert len({getattr(stage, part) for stage in stages}) == 1, part


def test_images_do_not_read_the_key(tmp_path: Path) -> None:
    resnet = {"preset": "resnet50"}
    on, off = (written(tmp_path, resnet, products="fp16", autocast=on) for on in (True, False))
    assert networks_of(on, 2) == networks_of(off, 2)


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"precision": "fp8"}, "autocast is true, but products is 'fp8'"),
        ({"precision": "fp32"}, "for 'fp16' and 'bf16'"),
        ({"precision_main_parameters": "bf16"}, "main_parameters is 'bf16'"),
        ({"dp_style": "megatron"}, "allowed: 'ddp'"),
        ({"dp_style": "fsdp", "zero": 3}, "allowed: 'ddp'"),
    ],
)
def test_plans_that_have_no_autocast(keys: dict[str, object], what: str) -> None:
    with pytest.raises(InputError, match=what):
        network(GPT, plan(**KEYS | keys, precision_autocast=True))


def test_adapters_have_no_autocast() -> None:
    adapted = model("gpt", layers=1, hidden=16, heads=4, seq_len=8, vocab=256, lora_rank=2)
    assert isinstance(adapted, Transformer)
    with pytest.raises(InputError, match=r"model\.lora_rank = 2, where it is not modelled"):
        network(adapted, plan(**KEYS, precision_autocast=True))


# --- beside PyTorch -------------------------------------------------------------------------------

SIZES = {"layers": 4, "hidden": 384, "heads": 6, "dropout": False}
CAPTURED: dict[str, tuple[str, int, dict[str, object]]] = {
    "vit": ("fp16", 64, {"image": 224, "patch": 16, "classes": 1000}),
    "gpt": ("bf16", 16, {"vocab": 8192, "seq_len": 1024, "tied_embeddings": True}),
}


@pytest.mark.timeout(400)
@needs_torch
@pytest.mark.parametrize("family", CAPTURED)
def test_kernels_are_those_of_pytorch(family: str, tmp_path: Path) -> None:
    precision, batch, keys = CAPTURED[family]
    what = script(SCRIPTS / "autocast_blocks.py", family, precision, str(batch), world=2)
    (part,) = alone(what)
    counted, products = Counter[str](), Counter[str]()
    for item in part.recording.items:
        if item.kind is not ItemKind.CALL:
            continue
        call, way = part.recording.calls[item.number], Phase(item.phase).name.lower()
        for kernel in kernels_of(call).kernels:
            products[way] += kernel.flops
            # DDP averages gradients into its buckets, and data is made: no parts of the network.
            if call.name not in ("aten::mul", "aten::copy_", "aten::randn", "aten::randint"):
                counted[way] += kernel.traffic
    sizes = {"family": family, **SIZES, **keys}
    experiment = written(tmp_path, sizes, products=precision, batch=batch)
    (found,) = networks_of(experiment, 2)
    for way in ("forward", "backward"):
        those = [
            kernel
            for name, kernel in kernels(found, way)
            # PyTorch's rule has gradients of norms' weights in the norm, the generator apart.
            if not name.endswith("norm weight gradient")
        ]
        assert sum(each.flops for each in those) == pytest.approx(products[way], rel=0.01)
        assert sum(each.traffic for each in those) == pytest.approx(counted[way], rel=0.03), way
    held = memory_of([part], find_gpu("h100-sxm"))
    assert held is not None
    tensors = prepare(experiment).memory.stages[0].tensors
    assert held.chosen.usage.peak_allocated == pytest.approx(tensors, rel=0.05)

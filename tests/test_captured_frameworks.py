"""Frameworks without a GPU: ranks, bytes and operations of captured programs beside closed forms.

Each test needs the framework that it is about; `run_scripts/nightly.sh` installs them. Formulas are
of the model's matrices and of what each framework says that it communicates.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from captures import SCRIPTS, alone, flops, needs, script, sent

from mpisim.base.kinds import Kind, Operation, Phase
from mpisim.capture.lower import Part
from mpisim.capture.recording import ItemKind, Recording
from mpisim.operators import kernels_of

pytestmark = [pytest.mark.timeout(1800), pytest.mark.usefixtures("in_scripts")]

BF16, FP32 = 2, 4
SMALL = 10_000
"""Bytes of a message that is about the loss or the norm of the gradients."""


def everyone(parts: list[Part]) -> list[int]:
    """Ranks of all parts."""
    return sorted(rank for part in parts for rank in part.ranks)


def own_sizes(recording: Recording) -> set[int]:
    """Sizes of the groups that a rank communicates in."""
    return {len(recording.groups[item.group]) for item in recording.items if item.group >= 0}


def called(recording: Recording) -> set[str]:
    """Operators of a recording."""
    return {call.name for call in recording.calls}


def passes(recording: Recording, family: str = "gemm") -> list[int]:
    """Operations of matrices in the forward pass, computed again, and in the backward pass."""
    which = (Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD)
    return [flops(recording, phase)[family] for phase in which]


# --- torchtitan: Llama 3 8B with fewer layers -----------------------------------------------------

WIDTH, KV, INNER, WORDS, TOKENS, LAYERS = 4096, 1024, 14336, 128256, 8192, 2
ATTENTION = 2 * WIDTH * WIDTH + 2 * WIDTH * KV
BLOCK = ATTENTION + 3 * WIDTH * INNER + 2 * WIDTH
TABLE = WORDS * WIDTH
MATRICES = LAYERS * (BLOCK - 2 * WIDTH) + TABLE
AGAIN = LAYERS * (WIDTH * WIDTH + WIDTH * INNER)
"""Elements of wo and w3, which are computed again: every second of wqkv, wo, w1, w3, w2."""

# Forward and backward for the embedding and the blocks. The head's unit, with the norm, is gathered
# for the norm, for the loss, which is computed in chunks, and for the norm's gradient.
GATHERED = 2 * (TABLE + LAYERS * BLOCK) + 3 * (TABLE + WIDTH)
REDUCED = LAYERS * BLOCK + 2 * TABLE + WIDTH


def titan(world: int, *arguments: str) -> list[Part]:
    """Parts of torchtitan's trainer."""
    words = ("--module", "titan", "--config", "llama3_8b_of_2_layers", *arguments)
    return alone(script("torchtitan.train", *words, world=world, module=True))


@needs("torchtitan")
def test_torchtitan_fully_shard() -> None:
    (part,) = parts = titan(8)
    assert everyone(parts) == list(range(8))
    assert passes(part.recording) == [2 * TOKENS * n for n in (MATRICES, AGAIN, 2 * MATRICES)]
    assert sent(part.recording, size=8, least=SMALL) == {
        "ALL_GATHER": BF16 * GATHERED,
        "REDUCE_SCATTER": FP32 * REDUCED,
    }


@needs("torchtitan")
def test_torchtitan_fully_shard_and_tensor_parallelism() -> None:
    tp, dp = 4, 2
    settings = ("--training.disable_cuda_graphs", "--parallelism.tensor_parallel_degree", str(tp))
    parts = titan(8, *settings)
    assert everyone(parts) == list(range(8))
    for part in parts:
        found = part.recording
        assert passes(found) == [2 * TOKENS * n // tp for n in (MATRICES, AGAIN, 2 * MATRICES)]
        # Norms are whole on every rank, matrices are not.
        norms = 2 * LAYERS * WIDTH
        gathered = (GATHERED - 2 * norms - 3 * WIDTH) // tp + 2 * norms + 3 * WIDTH
        reduced = (REDUCED - norms - WIDTH) // tp + norms + WIDTH
        assert sent(found, size=dp, least=SMALL) == {
            "ALL_GATHER": BF16 * gathered,
            "REDUCE_SCATTER": FP32 * reduced,
        }
        # A block gathers twice and scatters twice, forward and backward; gathers again what it
        # computes again. The embedding scatters, the last norm's result is gathered.
        activation = BF16 * TOKENS * WIDTH
        assert sent(found, size=tp, least=SMALL) == {
            "ALL_GATHER": activation * (2 * LAYERS * 3 + 2),
            "REDUCE_SCATTER": activation * (2 * LAYERS * 2 + 2) + activation * 2 * LAYERS,
        }


@needs("torchtitan")
def test_torchtitan_on_8192() -> None:
    replicas, shards = 8, 1024
    parts = titan(8192, "--parallelism.data_parallel_replicate_degree", str(replicas))
    assert everyone(parts) == list(range(8192))
    for part in parts:
        found = part.recording
        assert own_sizes(found) >= {replicas, shards}
        assert passes(found) == [2 * TOKENS * n for n in (MATRICES, AGAIN, 2 * MATRICES)]
        # Rows are padded: those of the embedding and the head to a multiple of the shards.
        sums = sent(found, size=shards, least=SMALL)
        assert sums["ALL_GATHER"] == pytest.approx(BF16 * GATHERED, rel=1e-2)
        assert sums["REDUCE_SCATTER"] == pytest.approx(FP32 * REDUCED, rel=1e-2)
        sums = sent(found, size=replicas, least=SMALL)
        assert sums["ALL_REDUCE"] == pytest.approx(FP32 * REDUCED / shards, rel=1e-2)


# --- megatron-core: GPT ---------------------------------------------------------------------------


def generated(path: Path, rank: int) -> tuple[int, Counter[str]]:
    """Operations of products, and bytes of communications, of a rank of an experiment."""
    from mpisim.experiment import load
    from mpisim.prediction.prepared import prepare

    workload = prepare(load(str(path), [])[1]).workload
    program, pricing = workload.program, workload.pricings[0]
    table, products, messages = program.table_of(rank), 0, Counter[str]()
    for row in np.flatnonzero(table.kind == Kind.KERNEL).tolist():
        kernel = pricing.kernels[program.names[table.name[row]], int(table.duration[row])]
        products += kernel.flops if kernel.family == "gemm" else 0
    for row in np.flatnonzero(table.is_communication & (table.bytes >= SMALL)).tolist():
        messages[Operation(int(table.operation[row])).name] += int(table.bytes[row])
    return products, messages


@needs("megatron-core")
def test_megatron_core_interleaved(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "capture.md").read_text()
    block = page.split("<!-- test: file: local-layers.toml -->")[1].split("```")[1]
    experiment = tmp_path / "local-layers.toml"
    experiment.write_text(block.removeprefix("toml"))
    tp, chunks, layers, micro, hidden, words, tokens = 2, 2, 8, 8, 4096, 51200, 2048
    words_of_script = ("megatron_gpt.py", "2", "2", str(chunks), "8", str(micro))
    parts = alone(script(*words_of_script, world=8, without=("apex", "transformer_engine")))
    assert everyone(parts) == list(range(8))
    for part in parts:
        found, first = part.recording, part.recording.rank < 4
        here = layers // 2
        products = here * (2 * tokens * 12 * hidden**2 + 4 * tokens**2 * hidden) // tp
        products += 0 if first else 2 * tokens * hidden * words // tp
        assert passes(found) == [micro * products, 0, 2 * micro * products]
        # Biases of qkv and of the MLP's first matrix are cut, two others and the norms are not.
        block = (12 * hidden**2 + 7 * hidden) // tp + 6 * hidden
        ends = words * hidden // tp + (tokens * hidden if first else 2 * hidden)
        activation = BF16 * tokens * hidden
        sums = sent(found, size=2, least=SMALL)
        assert sums["REDUCE_SCATTER"] == FP32 * (here * block + ends)
        assert sums["ALL_GATHER"] == BF16 * (here * block + ends)
        assert sums["ALL_REDUCE"] == activation * micro * (4 * here + 1)
        # Of four chunks in a row three borders are crossed, forward and backward.
        crossed = micro * (2 * chunks - 1) * activation
        for kind in (ItemKind.SEND, ItemKind.RECV):
            assert sent(found, kind) == {"SEND_RECV": crossed}
        assert generated(experiment, found.rank) == (
            sum(passes(found)),
            sums + Counter({"SEND_RECV": 2 * crossed}),
        )


@needs("megatron-core")
def test_megatron_core_llama_3_70b() -> None:
    # A stage in the middle of four, as long as one of eight of all 80 layers, each computed again.
    tp, here, micro, tokens = 8, 10, 2, 8192
    hidden, kv, inner = 8192, 1024, 28672
    words = ("8", "4", "1", "40", str(micro), "llama3_70b")
    local = ("apex", "transformer_engine")
    parts = alone(script("megatron_gpt.py", *words, world=32, without=local), range(0, 32, tp))
    assert everyone(parts) == list(range(32))
    (found,) = (part.recording for part in parts if 2 * tp in part.ranks)
    matrices = 2 * hidden**2 + 2 * hidden * kv + 3 * hidden * inner
    forward = micro * here * (2 * tokens * matrices + 4 * tokens**2 * hidden) // tp
    assert passes(found) == [forward, forward, 2 * forward]
    activation = BF16 * tokens * hidden
    assert sent(found, size=tp, least=SMALL)["ALL_REDUCE"] == 6 * micro * here * activation
    for kind in (ItemKind.SEND, ItemKind.RECV):
        assert sent(found, kind) == {"SEND_RECV": 2 * micro * activation}


@needs("megatron-core")
@pytest.mark.parametrize("how", ["bf16", "delayed"])
def test_megatron_core_with_transformer_engine(tmp_path: Path, how: str) -> None:
    page = (Path(__file__).parents[1] / "docs" / "capture.md").read_text()
    block = page.split("<!-- test: file: te-layers.toml -->")[1].split("```")[1]
    text = block.removeprefix("toml").replace("layers = 8", "layers = 4")
    text = text.replace("global_batch = 16", "global_batch = 4")
    if how != "bf16":
        fp8 = f'precision = {{ products = "fp8", fp8_scaling = "{how}" }}'
        text = text.replace("zero = 1", f"zero = 1\n{fp8}")
    experiment = tmp_path / "te-layers.toml"
    experiment.write_text(text)
    parts = alone(script("megatron_te.py", "2", "2", "1", "4", "2", how, world=8), (0, 4))
    assert everyone(parts) == list(range(8))
    for part in parts:
        found = part.recording
        messages = sent(found, least=SMALL)
        for kind in (ItemKind.SEND, ItemKind.RECV):
            messages += sent(found, kind, least=SMALL)
        assert generated(experiment, found.rank) == (sum(passes(found)), messages)
        unknown = {call.name for call in found.calls if not kernels_of(call).known}
        assert unknown == set()


@needs("megatron-core")
def test_megatron_core_shares_a_context(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "capture.md").read_text()
    block = page.split("<!-- test: file: te-layers.toml -->")[1].split("```")[1]
    text = block.removeprefix("toml").replace("layers = 8", "layers = 2")
    text = text.replace("tp = 2\npp = 2\ndp = 2\nsp = true", "cp = 2\ndp = 4")
    text = text.replace("global_batch = 16", "global_batch = 8")
    experiment = tmp_path / "cp.toml"
    experiment.write_text(text)
    what = script("megatron_te.py", "1", "1", "1", "2", "2", "bf16", "2", world=8)
    for part in alone(what, (0, 1)):
        messages = sent(part.recording, least=SMALL)
        messages -= sent(part.recording, size=1, least=SMALL)  # of tensor parallelism
        for kind in (ItemKind.SEND, ItemKind.RECV):
            messages += sent(part.recording, kind, least=SMALL)
        rank = part.recording.rank
        assert generated(experiment, rank) == (sum(passes(part.recording)), messages)


@needs("megatron-core")
@pytest.mark.parametrize(("dispatcher", "nodes"), [("deepep", 1), ("deepep", 2), ("alltoall", 1)])
def test_megatron_core_mixture(tmp_path: Path, dispatcher: str, nodes: int) -> None:
    page = (Path(__file__).parents[1] / "docs" / "capture.md").read_text()
    block = page.split("<!-- test: file: experts.toml -->")[1].split("```")[1].removeprefix("toml")
    for key, value in (("dp", 8), ("ep", 8), ("global_batch", 16), ("gpus", 8)):
        assert f"\n{key} = {value}\n" in block
        block = block.replace(f"\n{key} = {value}\n", f"\n{key} = {nodes * value}\n")
    experiment = tmp_path / "experts.toml"
    if dispatcher == "alltoall":
        block = block.replace('"flex"', '"all-to-all"')
    experiment.write_text(block.replace("\ngpus = ", f"\nnodes = {nodes}\ngpus = "))
    arguments = (str(8 * nodes), "2", "2", dispatcher)
    (part,) = alone(script("megatron_moe.py", *arguments, world=8 * nodes), (0,))
    found = part.recording
    others = +(sent(found, least=SMALL) - sent(found, size=1, least=SMALL))
    even = "8 values of type int64, of an even spread, taken as 4096"
    assert (dispatcher == "alltoall") == any(line.endswith(even) for line in found.values)
    products, messages = generated(experiment, 0)
    assert others == messages
    tokens, choices, hidden, inner, layers, batches = 4096, 8, 2048, 1024, 2, 2
    experts = 3 * 2 * tokens * choices * 3 * hidden * inner * layers * batches
    assert sum(passes(found)) == products
    assert sum(passes(found, "grouped_gemm")) == experts
    assert {call.name for call in found.calls if not kernels_of(call).known} == set()


@needs("transformers")
@pytest.mark.parametrize("packed", [False, True])
def test_flash_attention_of_transformers(packed: bool) -> None:
    layers, width, kv, inner, words, tokens = 2, 1024, 256, 2816, 32000, 8192
    (part,) = alone(script("flash_llama.py", "packed" if packed else "batch"))
    found = part.recording
    matrices = layers * (2 * width**2 + 2 * width * kv + 3 * width * inner) + width * words
    assert passes(found) == [2 * tokens * n for n in (matrices, 0, 2 * matrices)]
    # Four sequences, of 2,048 tokens in the mean, half of whose scores a causal mask leaves.
    forward = layers * 4 * tokens * 2048 * width // 2
    assert flops(found)["attention"] == pytest.approx(3.5 * forward)
    names = {call.name for call in found.calls if "flash" in call.name}
    form = "varlen_" if packed else ""
    assert names == {f"flash_attn::_flash_attn_{form}{way}" for way in ("forward", "backward")}


# --- DeepSpeed, Accelerate, timm, diffusers, Mamba ------------------------------------------------


def gpt2(layers: int) -> tuple[int, int, int]:
    """Elements of GPT-2's matrices, of all its parameters, and of those of its table of words."""
    width, words, positions = 768, 50257, 1024
    block = 12 * width**2
    table = words * width
    everything = layers * (block + 13 * width) + table + positions * width + 2 * width
    return layers * block + table, everything, table


@needs("deepspeed", "transformers")
def test_deepspeed_zero_3() -> None:
    matrices, everything, _ = gpt2(2)
    parts = alone(script("deepspeed_gpt2.py", "2", "3", world=8))
    assert everyone(parts) == list(range(8))
    for part in parts:
        found = part.recording
        assert passes(found) == [2 * 4 * 1024 * n for n in (matrices, 0, 2 * matrices)]
        # What is used again within 10⁹ parameters stays, so each is gathered once a step.
        sums = sent(found, size=8)
        assert sums["ALL_GATHER"] == BF16 * everything
        assert sums["REDUCE_SCATTER"] == BF16 * everything
        reductions = {
            item.phase
            for item in found.items
            if item.kind is ItemKind.COLLECTIVE and item.bytes == BF16 * everything
        }
        assert reductions == {int(Phase.BACKWARD)}


@needs("deepspeed", "transformers")
def test_deepspeed_fused_adam() -> None:
    matrices, everything, _ = gpt2(2)
    (part, *_) = alone(script("deepspeed_gpt2.py", "2", "3", "fused", world=8))
    found = part.recording
    assert passes(found) == [2 * 4 * 1024 * n for n in (matrices, 0, 2 * matrices)]
    steps = [call for call in found.calls if call.name == "apex::multi_tensor_adam"]
    moved = sum(kernel.traffic for call in steps for kernel in kernels_of(call).kernels)
    # Of this rank's parameters: gradients read, parameters and two moments read and written.
    assert moved == pytest.approx(7 * FP32 * everything / 8, rel=1e-2)
    assert any("fused optimizers" in line for line in found.replaced)


@needs("accelerate", "transformers")
@pytest.mark.parametrize("version", [1, 2])
def test_accelerate_shards_llama(version: int) -> None:
    layers, width, inner, words = 2, 4096, 11008, 32000
    block, table = 4 * width**2 + 3 * width * inner + 2 * width, words * width
    matrices = layers * (block - 2 * width) + table
    (part,) = parts = alone(script("accelerate_llama.py", "llama", "2", f"fsdp{version}", world=8))
    assert everyone(parts) == list(range(8))
    assert passes(part.recording) == [2 * 2 * 1024 * n for n in (matrices, 0, 2 * matrices)]
    # FSDP1 keeps its root gathered. With fully_shard Accelerate has a unit of the last norm and the
    # head, which stays gathered, and one of the embedding, which does not.
    tables = {1: 2, 2: 3}[version]
    assert sent(part.recording, least=SMALL) == {
        "ALL_GATHER": BF16 * (2 * layers * block + tables * table + width),
        "REDUCE_SCATTER": BF16 * (layers * block + 2 * table + width),
    }
    # No sequence is packed or padded, so that there is no mask: half of the scores, forward.
    assert {name for name in called(part.recording) if "attention" in name} == {
        "aten::_scaled_dot_product_cudnn_attention",  # first on Hopper since PyTorch 2.11
        "aten::_scaled_dot_product_cudnn_attention_backward",
    }


@needs("accelerate", "transformers")
def test_accelerate_replicates_gpt2() -> None:
    matrices, everything, _ = gpt2(2)
    (part,) = parts = alone(script("accelerate_llama.py", "gpt2", "2", "ddp", world=8))
    assert everyone(parts) == list(range(8))
    assert passes(part.recording) == [2 * 2 * 1024 * n for n in (matrices, 0, 2 * matrices)]
    assert sent(part.recording)["ALL_REDUCE"] == FP32 * everything


@needs("accelerate", "transformers")
def test_accelerate_shards_a_mixture_of_experts() -> None:
    layers, width, words, experts, chosen, inner = 2, 2048, 151936, 128, 8, 768
    heads, kv, head = 32, 4, 64
    dense = 2 * width * heads * head + 2 * width * kv * head + width * experts
    block = dense + 3 * experts * width * inner + 2 * width + 2 * head
    matrices = layers * dense + words * width
    (part,) = parts = alone(script("accelerate_llama.py", "qwen3_moe", "2", "fsdp2", world=8))
    assert everyone(parts) == list(range(8))
    found = part.recording
    assert passes(found) == [2 * 2 * 1024 * n for n in (matrices, 0, 2 * matrices)]
    of_experts = 2 * 2 * 1024 * chosen * 3 * width * inner * layers
    assert passes(found, "grouped_gemm") == [of_experts, 0, 2 * of_experts]
    assert sent(found, least=SMALL) == {
        "ALL_GATHER": BF16 * (2 * layers * block + 3 * words * width + width),
        "REDUCE_SCATTER": BF16 * (layers * block + 2 * words * width + width),
    }
    assert any("_grouped_mm taken as equally many" in line for line in found.values)


@needs("timm")
def test_timm_resnet50() -> None:
    (part,) = parts = alone(script("resnet50.py", world=8))
    assert everyone(parts) == list(range(8))
    found = part.recording
    images, classes, first = 128, 2048 * 1000, 64 * 3 * 7 * 7 * 112 * 112
    # 4.089 billion of multiplications and additions an image (He et al. 2015, table 1, and what
    # version 1.5 adds by striding in the 3 × 3 convolutions).
    forward = 2 * images * (4_089_184_256 - classes)
    assert passes(found, "convolution") == [forward, 0, 2 * forward - 2 * images * first]
    assert passes(found) == [2 * images * classes, 0, 2 * 2 * images * classes]
    assert sent(found)["ALL_REDUCE"] == FP32 * 25_557_032  # its parameters


COUNTED = """
import torch
from diffusers import UNet2DConditionModel
from torch.utils.flop_counter import FlopCounterMode
with torch.device("meta"), FlopCounterMode(display=False) as counter:
    model = UNet2DConditionModel(sample_size=64, cross_attention_dim=768)
    text = torch.empty(4, 77, 768)
    model(torch.empty(4, 4, 64, 64), torch.empty(4), encoder_hidden_states=text)
found = {str(key): value for key, value in counter.get_flop_counts()["Global"].items()}
print(sum(n for key, n in found.items() if "convolution" in key))
print(found["aten.addmm"] + found["aten.mm"])
print(found["aten.bmm"])
print(sum(each.numel() for each in model.parameters()))
"""


@needs("diffusers")
def test_diffusion_unet() -> None:
    counted = subprocess.run(
        [sys.executable, "-c", COUNTED], capture_output=True, text=True, check=True
    )
    convolutions, products, attention, parameters = map(int, counted.stdout.split())
    (part,) = parts = alone(script("diffusion_unet.py", world=8))
    assert everyone(parts) == list(range(8))
    found = part.recording
    assert passes(found, "convolution")[0] == convolutions
    assert passes(found)[0] == products
    assert passes(found, "attention")[0] == attention
    assert sent(found)["ALL_REDUCE"] == FP32 * parameters


@needs("transformers")
def test_mamba() -> None:
    layers, tokens, width, words = 2, 256, 768, 50280
    inner, rank, states = 2 * width, width // 16, 16
    (part,) = alone(script("mamba.py", str(layers), str(tokens)))
    projections = width * 2 * inner + inner * (rank + 2 * states) + rank * inner + inner * width
    # Of each token, the product of states and C.
    block = projections + inner * states
    forward = 2 * tokens * (layers * block + width * words)
    assert passes(part.recording) == [forward, 0, 2 * forward]
    assert not sent(part.recording)


def test_every_script_is_tested() -> None:
    files = (
        Path(__file__).name,
        "test_capture.py",
        "test_capture_memory.py",
        "test_capture_ranks.py",
        "test_autocast.py",
        "test_capture_compiled.py",
        "test_extrapolate_captured.py",
        "test_transformer_expert_modules.py",
    )
    said = "".join((Path(__file__).parent / each).read_text() for each in files)
    # titan.py and megatron_training.py are imported by others; titan_of_2025.py runs an older
    # torchtitan, in run_scripts/bench/captured_rows.py.
    others = ("titan.py", "megatron_training.py", "titan_of_2025.py")
    scripts = [path.name for path in SCRIPTS.glob("*.py") if path.name not in others]
    assert scripts
    assert [name for name in scripts if f'"{name}"' not in said] == []

"""Stand-ins of kernel libraries in captures: what calls are recorded as, beside counts by hand.

Scripts are written for the libraries alone. Without PyTorch all of this is skipped but for the
rules of operators and the lines of the command.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from captures import captured, flops, kernels_in, needs_torch, operators_in

from mpisim.base.errors import InputError
from mpisim.base.kinds import Operation, Phase
from mpisim.capture.recording import ItemKind, Recording
from mpisim.cli import main
from mpisim.cli.capture import STOOD_IN_FOR
from mpisim.kernels.operations import Elementwise, Gemm, Kernel, Norm
from mpisim.operators import OperatorCall, TensorSpec, kernels_of

pytestmark = pytest.mark.timeout(400)  # each process that is captured loads PyTorch

# --- Transformer Engine ---------------------------------------------------------------------------

LAYER = """
import sys
import torch
import transformer_engine.pytorch as te
from transformer_engine.common.recipe import DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling

recipe = {"bf16": None, "delayed": DelayedScaling(), "current": Float8CurrentScaling(),
          "blocks": MXFP8BlockScaling()}[sys.argv[1]]
given = {"params_dtype": torch.bfloat16, "bias": False}
norm = te.LayerNormLinear(1024, 4096, normalization="RMSNorm", **given)
plain = te.Linear(4096, 1024, **given)
optimizer = te.optimizers.FusedAdam([*norm.parameters(), *plain.parameters()])
for step in range(3):
    x = torch.randn(512, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with te.fp8_autocast(enabled=recipe is not None, fp8_recipe=recipe):
        y = plain(norm(x, is_first_microbatch=True), is_first_microbatch=True)
    y.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@needs_torch
def test_transformer_engine_in_bf16(tmp_path: Path) -> None:
    found = captured(tmp_path, LAYER, "bf16")
    product = 2 * 512 * 1024 * 4096
    assert flops(found, Phase.FORWARD) == {"gemm": 2 * product}
    assert flops(found, Phase.BACKWARD) == {"gemm": 4 * product}
    counted = kernels_in(found)
    for backward in (False, True):
        norm = Norm(512, 1024, kind="rms", backward=backward, variant="persistent")
        assert counted[norm] == 1
    assert counted[Gemm(512, 4096, 1024)] == 2  # of the input of one, and the gradient of the other
    assert operators_in(found)["apex::multi_tensor_adam"] == 1
    assert any("transformer-engine 2.9.0" in line for line in found.replaced)
    assert not any("apex" in line for line in found.replaced)


@needs_torch
def test_transformer_engine_in_fp8(tmp_path: Path) -> None:
    found = captured(tmp_path, LAYER, "delayed")
    counted = kernels_in(found)
    fast = Gemm(512, 4096, 1024, dtype="fp8")
    split = Gemm(512, 4096, 1024, dtype="fp8", variant="split")
    assert counted[fast] == 1  # forward
    assert counted[split] == 1  # the gradient of the second's input
    assert not any(isinstance(each, Gemm) and each.dtype == "bf16" for each in counted)
    # The norm writes fp8. Weights, the second's input and both gradients are read once, and written
    # in two layouts; what the norm wrote is transposed.
    casts = {
        size: Elementwise(4 * size, transposes=True) for size in (4 << 20, 512 << 12, 512 << 10)
    }
    assert counted[casts[4 << 20]] == 2
    assert counted[casts[512 << 12]] == 2
    assert counted[casts[512 << 10]] == 1
    assert counted[Elementwise(2 * (512 << 10), transposes=True)] == 1
    scales = "transformer_engine::fused_amax_and_scale_update_after_reduction"
    assert operators_in(found)[scales] == 2  # forward and backward


@needs_torch
def test_scales_of_the_whole_operand_read_it_twice(tmp_path: Path) -> None:
    found = captured(tmp_path, LAYER, "current")
    # Bytes of the norm's output, in bf16: read for its largest number, read again, written twice.
    size = 512 << 10
    assert kernels_in(found)[Elementwise(2 * 2 * size + 2 * size, transposes=True)] == 2
    assert operators_in(found)["transformer_engine::fp8_transpose"] == 0


@needs_torch
def test_blocks_need_a_gpu_that_has_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"compute capability 10\.0 or higher .* this is 9\.0"):
        captured(tmp_path, LAYER, "blocks")


MICRO_BATCHES = """
import torch
import transformer_engine.pytorch as te

layer = te.Linear(1024, 2048, bias=True, params_dtype=torch.bfloat16, fuse_wgrad_accumulation=True)
layer.weight.main_grad = torch.zeros(2048, 1024, device="cuda")
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(3):
    with te.autocast(enabled=True):
        for batch in range(4):
            x = torch.randn(256, 1024, device="cuda", dtype=torch.bfloat16)
            layer(x, is_first_microbatch=batch == 0).sum().backward()
    optimizer.step()
"""


@needs_torch
def test_weights_are_cast_once_a_step_and_gradients_added_up(tmp_path: Path) -> None:
    counted = kernels_in(captured(tmp_path, MICRO_BATCHES))
    assert counted[Elementwise(4 * (2 << 20), transposes=True)] == 1
    shape = {"dtype": "fp8", "output": "fp32", "variant": "split"}
    assert counted[Gemm(2048, 1024, 256, accumulate=False, **shape)] == 1  # type: ignore[arg-type]
    assert counted[Gemm(2048, 1024, 256, accumulate=True, **shape)] == 3  # type: ignore[arg-type]
    assert counted[Gemm(256, 2048, 1024, dtype="fp8")] == 4


PARALLEL = """
import os
import sys
import torch
import torch.distributed as dist
import transformer_engine.pytorch as te

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
group = dist.new_group(range(4))
given = {"params_dtype": torch.bfloat16, "tp_group": group, "tp_size": 4, "bias": False,
         "sequence_parallel": sys.argv[1] == "shared"}
one = te.LayerNormLinear(1024, 4096, parallel_mode="column", **given)
two = te.Linear(4096, 1024, parallel_mode="row", **given)
optimizer = te.optimizers.FusedSGD([*one.parameters(), *two.parameters()], momentum=0.9)
for step in range(3):
    x = torch.randn(256, 2, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with te.fp8_autocast(enabled=sys.argv[2] == "fp8", fp8_group=group):
        y = two(one(x, is_first_microbatch=True), is_first_microbatch=True)
    y.sum().backward()
    optimizer.step()
"""


def sent_by(recording: Recording) -> Counter[tuple[str, int]]:
    """Communications of a recording, by operation and bytes."""
    return Counter(
        (Operation(item.number).name, item.bytes)
        for item in recording.items
        if item.kind is ItemKind.COLLECTIVE
    )


@needs_torch
def test_tensor_parallelism(tmp_path: Path) -> None:
    whole = 512 * 1024 * 2
    shared = captured(tmp_path, PARALLEL, "shared", "bf16", world=4)
    # Gathered are the input, forward and again for its product, and the gradient of the output.
    assert sent_by(shared) == {
        ("ALL_GATHER", 4 * whole): 3,
        ("REDUCE_SCATTER", 4 * whole): 2,
    }
    parted = captured(tmp_path, PARALLEL, "parted", "bf16", world=4)
    assert sent_by(parted) == {("ALL_REDUCE", whole): 2}
    in_fp8 = captured(tmp_path, PARALLEL, "shared", "fp8", world=4)
    # Operands are gathered in fp8; then the largest numbers of 2 × 3 operands, 2 × 2 gradients.
    assert sent_by(in_fp8) == {
        ("ALL_GATHER", 4 * whole // 2): 3,
        ("REDUCE_SCATTER", 4 * whole): 2,
        ("ALL_REDUCE", 4 * 2 * 3): 1,
        ("ALL_REDUCE", 4 * 2 * 2): 1,
    }


# --- Apex -----------------------------------------------------------------------------------------

APEX = """
import amp_C
import torch
from apex.contrib.layer_norm import FastLayerNorm
from apex.multi_tensor_apply import multi_tensor_applier
from apex.normalization import FusedLayerNorm, FusedRMSNorm
from apex.optimizers import FusedAdam

model = torch.nn.Sequential(
    FusedLayerNorm(1024), FusedRMSNorm(1024), FastLayerNorm(1024), torch.nn.Linear(1024, 256)
).cuda()
optimizer = FusedAdam(model.parameters(), lr=1e-3)
for step in range(3):
    model(torch.randn(512, 1024, device="cuda")).sum().backward()
    grads = [each.grad for each in model.parameters()]
    noop = torch.zeros(1, dtype=torch.int, device="cuda")
    norm, _ = multi_tensor_applier(amp_C.multi_tensor_l2norm, noop, [grads], False)
    optimizer.step()
    optimizer.zero_grad()
"""


@needs_torch
def test_apex(tmp_path: Path) -> None:
    found = captured(tmp_path, APEX)
    counted = kernels_in(found)
    for backward in (False, True):
        assert counted[Norm(512, 1024, kind="layer", backward=backward, dtype="fp32")] == 1
        assert counted[Norm(512, 1024, kind="rms", backward=backward, dtype="fp32")] == 1
        fast = Norm(512, 1024, backward=backward, dtype="fp32", variant="persistent")
        assert counted[fast] == 1
    elements = 5 * 1024 + 1024 * 256 + 256
    # Gradients are read, parameters and two moments read and written.
    steps = kernels_in(found, Phase.OPTIMIZER)
    moved = sum(each.traffic * count for each, count in steps.items())
    assert moved == pytest.approx(7 * 4 * elements, rel=1e-3)
    assert operators_in(found)["apex::multi_tensor_l2norm"] == 1


# --- what is there, and what is not ---------------------------------------------------------------


@needs_torch
def test_the_same_capture_twice(tmp_path: Path) -> None:
    first, second = (captured(tmp_path, LAYER, "delayed").digest() for _ in range(2))
    assert first == second


@needs_torch
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import transformer_engine.pytorch as te\nte.make_graphed_callables(None, ())",
            r"train.py:2: transformer_engine.pytorch.make_graphed_callables is not part of what",
        ),
        (
            "from flash_attn.modules.mha import MHA\nclass Own(MHA):\n    pass\nOwn(8)",
            r"train.py:4: flash_attn.modules.mha.MHA is not part of what stands in",
        ),
        (
            "import transformer_engine.pytorch as te\n"
            "from transformer_engine.common.recipe import NVFP4BlockScaling\n"
            "with te.fp8_model_init(recipe=NVFP4BlockScaling()):\n    te.Linear(32, 32)",
            r"train.py:4: fp8_model_init with NVFP4BlockScaling is not part of what",
        ),
        (
            "from flash_attn import flash_attn_fanc",
            r"train.py:1: ImportError: cannot import name 'flash_attn_fanc'",
        ),
        (
            "from apex.contrib.focal_loss import focal_loss",
            r"train.py:1: ModuleNotFoundError: apex.contrib.focal_loss is not part of what stands",
        ),
    ],
)
def test_what_a_stand_in_lacks_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        captured(tmp_path, text)


@needs_torch
def test_libraries_that_the_job_does_not_have(tmp_path: Path) -> None:
    text = "import importlib.util\nassert importlib.util.find_spec('apex') is None\nimport apex"
    with pytest.raises(InputError, match=r"train\.py:3: ModuleNotFoundError"):
        captured(tmp_path, text, without=("apex",))


@needs_torch
def test_a_module_of_the_user_comes_first(tmp_path: Path) -> None:
    (tmp_path / "apex.py").write_text("raise RuntimeError('mine')")
    with pytest.raises(InputError, match="mine"):
        captured(tmp_path, "import apex")


@needs_torch
def test_the_command_names_all_libraries() -> None:
    from mpisim.capture.stand_ins.deepspeed import NAME
    from mpisim.capture.stand_ins.install import LIBRARIES

    assert sorted(STOOD_IN_FOR) == sorted([NAME, *(each.name for each in LIBRARIES)])


def test_a_library_that_is_not_stood_in_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "--without", "flash-atn", "--", "python", __file__]) == 2
    said = capsys.readouterr().err
    assert "--without flash-atn: no stand-in of that name (did you mean 'flash_attn'?)" in said


# --- operators ------------------------------------------------------------------------------------


def test_operators_of_transformer_engine() -> None:
    x = TensorSpec("bfloat16", (4096, 1024))
    fp8 = [TensorSpec("float8_e4m3fn", shape) for shape in ((4096, 1024), (1024, 4096))]

    def of(name: str, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Kernel, ...]:
        launched = kernels_of(OperatorCall(f"transformer_engine::{name}", inputs, outputs))
        assert launched.known
        return launched.kernels

    size = 4096 * 1024
    assert of("quantize", (x, "delayed", False), (fp8[0],)) == (Elementwise(3 * size),)
    blocks = of("quantize", (x, "blocks", False), tuple(fp8))
    assert blocks == (Elementwise(4 * size, variant="block_scales"),)
    out = TensorSpec("float32", (1024, 512))
    gemm = of("generic_gemm", (fp8[0], fp8[1], 1024, 512, 4096, True, "blocks"), (out,))
    assert gemm == (
        Gemm(1024, 512, 4096, dtype="fp8", output="fp32", accumulate=True, variant="blocks"),
    )
    moved = of(
        "unpermute", (x, TensorSpec("int32", (1024, 8))), (TensorSpec("bfloat16", (1024, 1024)),)
    )
    assert moved == (Elementwise(2 * (size + 1024 * 1024), variant="row_sums"),)

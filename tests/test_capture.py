"""Scripts of PyTorch without a GPU: what is recorded, beside what is counted by hand or generated.

The scripts are in ``tests/captured``. Without PyTorch all of this is skipped but for the line that
says so.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from captures import (
    ONE_GPU,
    SCRIPTS,
    alone,
    flops,
    kernels_in,
    needs_torch,
    rank_processes,
    script,
    sent,
    written,
)

from mpisim.base.errors import InputError
from mpisim.base.kinds import Kind, Operation, Phase
from mpisim.capture.lower import Part, program_of
from mpisim.capture.recording import ItemKind
from mpisim.cli import main
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.operators import OperatorCall, TensorSpec
from mpisim.operators.measured import MeasuredOperators

pytestmark = pytest.mark.timeout(400)  # each process that is captured loads PyTorch


@needs_torch
def test_a_plain_script_of_one_gpu(tmp_path: Path) -> None:
    (part,) = alone(script(written(tmp_path, ONE_GPU), steps=2))
    recording = part.recording
    assert part.ranks == (0,)
    assert recording.steps == 2
    # Forward and the gradient of the weight; the input needs none.
    assert flops(recording) == {"gemm": 2 * 2 * (2 * 128 * 1024 * 4096)}
    copies = [item.bytes for item in recording.items if item.kind is ItemKind.COPY]
    assert copies == [128 * 1024 * 4] * 2
    phases = {item.phase for item in recording.items if item.kind is ItemKind.CALL}
    assert phases == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    assert any("without workers" in line for line in recording.replaced)


FUNCTION_AGAIN = """
import torch
from torch.utils.checkpoint import checkpoint
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w
    @staticmethod
    def backward(ctx, y):
        x, w = ctx.saved_tensors
        return y @ w.t(), x.t() @ y
w = torch.nn.Parameter(torch.empty(64, 64, device="cuda"))
optimizer = torch.optim.SGD([w], lr=0.1)
while True:
    x = torch.empty(32, 64, device="cuda", requires_grad=True)
    checkpoint(Product.apply, x, w, use_reentrant=REENTRANT).sum().backward()
    optimizer.step()
"""


@needs_torch
@pytest.mark.parametrize("reentrant", ["True", "False"])
def test_functions_are_computed_again_forward(tmp_path: Path, reentrant: str) -> None:
    text = FUNCTION_AGAIN.replace("REENTRANT", reentrant)
    (part,) = alone(script(written(tmp_path, text)))
    product = 2 * 32 * 64 * 64
    passes = (Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD)
    found = [flops(part.recording, phase)["gemm"] for phase in passes]
    assert found == [product, product, 2 * product]


BY_NUMBER = """
import torch
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, y):
        here = torch.cuda.current_device()
        return torch.zeros(y.shape, device=here) + y.new_ones(y.shape, device=here)
w = torch.nn.Parameter(torch.empty(64, 64, device="cuda"))
optimizer = torch.optim.SGD([w], lr=0.1)
while True:
    Doubled.apply(w).sum().backward()
    optimizer.step()
"""


@needs_torch
def test_backward_passes_name_devices_by_number(tmp_path: Path) -> None:
    (part,) = alone(script(written(tmp_path, BY_NUMBER)))
    backward = [
        part.recording.calls[item.number].name
        for item in part.recording.items
        if item.kind is ItemKind.CALL and item.phase == Phase.BACKWARD
    ]
    assert {"aten::zeros", "aten::new_ones", "aten::add"} <= set(backward)


@needs_torch
def test_sharded_llama_does_what_the_generator_says() -> None:
    from mpisim.experiment import load
    from mpisim.prediction.prepared import prepare

    what = script(SCRIPTS / "sharded_llama.py", "2", world=8)
    (part,) = alone(what)
    workload = prepare(load(None, ["model.layers=2"])[1]).workload
    program, pricing = workload.program, workload.pricings[0]
    table = program.table_of(0)
    kernels: Counter[str] = Counter()
    for row in np.flatnonzero(table.kind == Kind.KERNEL).tolist():
        key = (program.names[table.name[row]], int(table.duration[row]))
        kernels[pricing.kernels[key].family] += pricing.kernels[key].flops
    assert flops(part.recording) == +kernels
    messages: Counter[str] = Counter()
    for row in np.flatnonzero(table.is_communication).tolist():
        messages[Operation(int(table.operation[row])).name] += int(table.bytes[row])
    del messages["ALL_REDUCE"]  # of the gradient's norm, which the script does not look at
    assert sent(part.recording) == messages
    assert part.ranks == tuple(range(8))


@needs_torch
@pytest.mark.parametrize(("mode", "passes"), [("none", 3), ("full", 4)])
def test_mpt_does_what_is_counted_by_hand(mode: str, passes: int) -> None:
    layers, width, heads, words, tokens, batch, micro = 2, 512, 4, 4096, 256, 3, 2
    sizes = map(str, (layers, width, heads, words, tokens, batch, micro))
    (part,) = alone(script(SCRIPTS / "mpt.py", *sizes, "pure", mode, world=8))
    rows = tokens * batch * micro
    blocks = layers * 2 * rows * 12 * width**2
    causal = layers * 2 * 2 * (batch * micro) * heads * (tokens**2 / 2) * (width / heads)
    again = passes - 3  # blocks are computed again in whole, as PyTorch 1.13 does
    found = flops(part.recording)
    assert found["gemm"] == passes * blocks + 3 * 2 * rows * width * words
    assert found["attention"] == (1 + again + 2.5) * causal
    # Gathered before each pass of a micro-batch and shared out once: blocks, and the root once.
    block = 2 * (12 * width**2 + 13 * width)
    root = 2 * ((words + tokens) * width + 2 * width)
    messages = sent(part.recording)
    assert messages["ALL_GATHER"] == micro * (2 * layers * block + root)
    assert messages["REDUCE_SCATTER"] == micro * (layers * block + root)


@needs_torch
def test_measured_times_come_before_models(one_gpu: list[Part]) -> None:
    (part,) = one_gpu
    shapes = (128, 1024), (1024, 4096)
    call = OperatorCall("aten::mm", tuple(TensorSpec("float32", shape) for shape in shapes))
    model = Analytical(find_gpu("h100-sxm"))
    program = program_of([part], model, MeasuredOperators([(call, 50e-6)]))
    modelled = program_of([part], model)
    took, before = (each.tables[0].duration for each in (program, modelled))
    changed = np.flatnonzero(took != before)
    assert took[changed].tolist() == [50_000_000]
    share = 50_000_000 / took[took > 0].sum()
    assert 0 < share < 1
    assert "as measured, 0.0 % between" in program.attributes["counted"]
    assert "as measured" not in modelled.attributes["counted"]


@needs_torch
def test_a_million_samples_are_drawn_in_an_order_of_their_own(tmp_path: Path) -> None:
    """As ``DistributedSampler`` and ``shuffle=True`` do: a list of as many numbers."""
    many = """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000
    def __getitem__(self, i):
        assert isinstance(i, int) and 0 <= i < len(self)
        return torch.randn(1024)
rows = Rows()
"""
    text = ONE_GPU.replace("rows = torch.randn(512, 1024)\n", many)
    (part,) = alone(script(written(tmp_path, text)))
    assert flops(part.recording) == {"gemm": 2 * 2 * 128 * 1024 * 4096}


@needs_torch
def test_a_loss_is_checked_and_written_each_time_over_many_micro_batches(tmp_path: Path) -> None:
    """A line that asks in a loop over batches gets the same answer; numbers have formats."""
    text = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(36):
    loss = model(torch.randn(8, 64).cuda()).sum() / 12
    loss.backward()
    if not torch.isfinite(loss):
        raise SystemExit("not finite")
    if i % 12 == 11:
        optimizer.step()
        optimizer.zero_grad()
        print(f"{loss:.3f}", "{:7.2e}".format(loss), loss.new_ones(1 << 20).tolist()[-1])
"""
    (part,) = alone(script(written(tmp_path, text)))
    assert flops(part.recording) == {"gemm": 12 * 2 * 2 * 8 * 64 * 64}


@needs_torch
def test_the_same_script_is_the_same_recording(one_gpu: list[Part], tmp_path: Path) -> None:
    one, other = one_gpu[0].recording, alone(script(written(tmp_path, ONE_GPU)))[0].recording
    assert one.digest() == other.digest()
    assert one.items == other.items
    assert one.calls == other.calls
    assert one.allocations == other.allocations
    assert one.holders == other.holders


DRAWS = """
import torch
drawn = torch.Generator()
layer = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
def positive(x):
    return bool((x > 0).all())
while positive(layer.weight):
    pass
for _ in range(3):
    x = torch.empty(8, 64, device="cuda").uniform_(generator=drawn)
    if all([positive(x + i) for i in range(8)]):
        x = layer(x)
    layer(x).sum().backward()
    optimizer.step()
"""


@needs_torch
def test_nothing_depends_on_addresses(tmp_path: Path) -> None:
    (part,) = alone(script(written(tmp_path, DRAWS)))
    assert not [call for call in part.recording.calls if "0x" in repr(call)]
    assert flops(part.recording, Phase.FORWARD) == {"gemm": 2 * 2 * 8 * 64 * 64}
    # Eight calls, each its own, are told the same; a loop around calls ends all the same.
    assert part.recording.values["train.py:7: a value of type bool taken as False"] == 1


@needs_torch
def test_the_program_of_a_capture_runs_again(run_mpisim: Any, tmp_path: Path) -> None:
    path = SCRIPTS / "pipeline.py"
    command = ["capture", "--world-size", 4, "--save-program", "p.h5", "--ranks", "0,1"]
    command += ["--", "python", path, 2]
    first = run_mpisim(command, timeout=110)
    assert first.rc == 0, first.stderr
    again = run_mpisim(["run", "p.h5", "--set", "cluster.preset=dgx-h100"])
    both = run_mpisim([*command[:3], *command[5:]], nprocs=2, timeout=110)
    found = {
        line.split()[1]
        for done in (first, again, both)
        for line in done.stdout.splitlines()
        if line.startswith("digest")
    }
    assert len(found) == 1


SHOULD_SAY = {
    "crash": ("raise ValueError('no such data set')", "train.py:1: ValueError: no such data set"),
    "nothing": ("import torch", "no backward and without a step of an optimizer"),
    "no step": (
        "import torch; torch.ones(2, requires_grad=True, device='cuda').sum().backward()",
        "1 backward passes and without a step",
    ),
    "device": ("import torch; torch.cuda.set_device(9)", "device cuda:9 does not exist"),
    "rows": (
        "import torch\nx = torch.rand(4, device='cuda') * torch.randn(4, device='cuda')\nx[x > 0]",
        "train.py:3: the number of rows that a mask selects depends on values, which a capture "
        "does not have; give it: --value train.py:3=ROWS",
    ),
    "checks": (
        "import torch\nx = torch.randn(9, 99, device='cuda')\nif (x > 9).any():\n"
        "    raise ValueError('out of range')",
        "train.py:4: ValueError: out of range; at train.py:3 a value of type bool taken as True, "
        "and --value train.py:3=X gives another",
    ),
    "ended": ("raise SystemExit(3)", "train.py:1: ended with exit code 3"),
    "message": (
        "import sys\nsys.exit('no data\\nin /data')",
        "train.py:2: ended by sys.exit: no data in /data",
    ),
    "twice": (
        "import torch.distributed as dist\nfor _ in range(2): dist.init_process_group('nccl')",
        "train.py:2: ValueError: trying to initialize the default process group twice",
    ),
    "replicas": (
        "import torch\nlayer = torch.nn.DataParallel(torch.nn.Linear(4, 4).cuda())\n"
        "layer(torch.ones(8, 4).cuda())",
        "train.py:3: torch.nn.DataParallel drives 8 GPUs from one process",
    ),
    "rank": (
        "import torch.distributed as dist\ndist.init_process_group(rank=3, world_size=8)",
        "train.py:2: init_process_group has rank=3, but this is rank 0 of 1 (--world-size)",
    ),
}


@needs_torch
@pytest.mark.parametrize("case", SHOULD_SAY)
def test_what_cannot_be_captured(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, expected = SHOULD_SAY[case]
    rank_processes()  # has a folder elsewhere
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = written(tmp_path, text)
    with pytest.raises(InputError, match=re.escape(expected)) as raised:
        alone(script(path))
    assert "\n" not in str(raised.value)
    assert [each.name for each in tmp_path.iterdir()] == ["train.py"]


@needs_torch
def test_nothing_is_left_of_what_cannot_be_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text, expected = next(iter(SHOULD_SAY.values()))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = written(tmp_path, text)
    assert (
        main(["capture", "--save-program", str(tmp_path / "p.h5"), "--", "python", str(path)]) == 2
    )
    (line,) = capfd.readouterr().err.splitlines()
    assert expected in line
    assert [each.name for each in tmp_path.iterdir()] == ["train.py"]


@needs_torch
def test_an_error_inside_a_library_of_a_module(tmp_path: Path, monkeypatch: Any) -> None:
    written(tmp_path, "import torch\ntorch.nn.Linear(3, 4)(torch.ones(2, 5))")
    monkeypatch.chdir(tmp_path)
    message = r"train.py:2: RuntimeError: mat1 and mat2 .* \(in torch/_ops.py:\d+\)"
    with pytest.raises(InputError, match=message):
        alone(script("train", module=True))


GROUPED = """
import torch
weights = torch.randn(4, 64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.1)
ends = torch.arange(1, 5, device="cuda", dtype=torch.int32) * 32
for _ in range(3):
    x = torch.randn(128, 64, device="cuda", dtype=torch.bfloat16)
    torch._grouped_mm(x, weights, offs=ends).square().sum().backward()
    optimizer.step()
"""


@needs_torch
def test_even_rows_of_experts_are_listed(tmp_path: Path) -> None:
    (part,) = alone(script(written(tmp_path, GROUPED)))
    assert (
        "train.py:8: rows of each group of _grouped_mm taken as equally many"
        in part.recording.values
    )


SEQUENCES = """
import torch
wide = torch.nn.Conv1d(64, 32, 5, padding=2).cuda()
each = torch.nn.Conv1d(32, 32, 4, padding=3, groups=32).cuda()
optimizer = torch.optim.SGD([*wide.parameters(), *each.parameters()], lr=0.1)
for _ in range(3):
    each(wide(torch.randn(2, 64, 128, device="cuda"))).square().sum().backward()
    optimizer.step()
"""


@needs_torch
def test_convolutions_of_sequences_are_priced(tmp_path: Path) -> None:
    (part,) = parts = alone(script(written(tmp_path, SEQUENCES)))
    products = 2 * (2 * 128) * 32 * 5 * 64
    assert flops(part.recording, Phase.FORWARD) == {"gemm": products}
    assert flops(part.recording, Phase.BACKWARD) == {"gemm": products}  # of the weight alone
    assert len(program_of(parts, Analytical(find_gpu("h100-sxm"))).tables) == 1


ATTENTION = """
import torch
x = torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
optimizer = torch.optim.SGD([x], lr=0.1)
for _ in range(3):
    torch.nn.functional.scaled_dot_product_attention(x, x, x).sum().backward()
    optimizer.step()
"""


@needs_torch
def test_attention_that_is_not_causal(tmp_path: Path) -> None:
    (part,) = alone(script(written(tmp_path, ATTENTION)))
    forward = 2 * (2 * 2 * 4 * 256 * 256 * 64)
    assert flops(part.recording, Phase.FORWARD) == {"attention": forward}
    assert flops(part.recording, Phase.BACKWARD) == {"attention": forward * 5 // 2}


@needs_torch
def test_values_that_the_user_gives(tmp_path: Path) -> None:
    text = ONE_GPU + "    if loss.item() > 2: break\n"
    path = written(tmp_path, text)
    line = f"train.py:{len(text.splitlines())}"
    values = alone(script(path))[0].recording.values
    assert list(values) == [f"{line}: a value of type float32 taken as 1.0"]
    values = alone(script(path, values=((line, 1.5),)))[0].recording.values
    assert list(values) == [f"{line}: a value of type float32 taken as 1.5"]
    with pytest.raises(InputError, match=r"--value train.py:1: no value is read there"):
        alone(script(path, values=(("train.py:1", 1.5),)))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "no script is given"),
        (["--", "python"], "'nothing' is given in place of the script"),
        (["--", "torchrun", "train.py"], "'torchrun' is given in place of the script"),
        (["--", "python", "none.py"], "none.py: there is no such script"),
        (["--world-size", "0", "--", "python", __file__], "--world-size is 0; it must be 1 to"),
        (["--warm-up", "0", "--", "python", __file__], "--warm-up is 0; it must be 1 to"),
        (["--value", "x", "--", "python", __file__], "is not FILE:LINE=NUMBER"),
    ],
)
def test_bad_usage(words: list[str], expected: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", *words]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert expected in line


def test_without_pytorch(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else there(name)
    )
    assert main(["capture", "--", "python", __file__]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line == "mpisim: error: PyTorch is not installed: pip install 'mpisim[torch]'"


def test_torch_is_not_imported_by_the_simulator() -> None:
    code = (
        "import sys, mpisim.capture.lower, mpisim.capture.ranks; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@needs_torch
def test_parameters_keep_what_is_noted_at_them(tmp_path: Path) -> None:
    text = """
layer = torch.nn.Linear(8, 8)
layer.weight.mine = 1
layer.cuda().bfloat16()
assert layer.weight.mine == 1
"""
    alone(script(written(tmp_path, ONE_GPU + text)))


MOVED = """
import sys
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
first = sys.argv[1] == "moved first"
if first:
    model.bfloat16().cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
if not first:
    model.bfloat16().cuda()
for _ in range(3):
    model(torch.ones(8, 64, device="cuda", dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@needs_torch
def test_an_optimizer_made_before_the_model_is_moved(tmp_path: Path) -> None:
    path = written(tmp_path, MOVED)
    found = [alone(script(path, how))[0].recording for how in ("moved first", "moved last")]
    assert kernels_in(found[0]) == kernels_in(found[1])

"""The input pipeline: what the host prepares in a step, and what a step that waits for it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpisim
from mpisim.base.errors import InputError
from mpisim.base.presets import packaged
from mpisim.cli import main
from mpisim.experiment.choices import Loader
from mpisim.experiment.load import read
from mpisim.workloads.input_pipeline import InputPipeline, input_pipeline

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

FILE = """
[model]
preset = "resnet-50"

[plan]
micro_batch = 128
global_batch = 1024
precision = "fp16"

[cluster]
preset = "dgx-v100"

[framework]
name = "none"

[data]
images = "jpeg"
"""


def pipeline(*changes: str, gpus: int = 8) -> InputPipeline:
    found = input_pipeline(read(FILE, "test", changes), gpus)
    assert found is not None
    return found


def step(tmp_path: Path, *changes: str) -> dict[str, object]:
    """The report of a run, as JSON."""
    file, out = tmp_path / "a.toml", tmp_path / "a.json"
    file.write_text(FILE)
    sets = [word for change in changes for word in ("--set", change)]
    assert main(["run", str(file), *sets, "--json", str(out), "--force"]) == 0
    found: dict[str, object] = json.loads(out.read_text())
    return found


def test_a_dgx1_prepares_what_was_measured_on_one() -> None:
    """The loaders alone, without training beside them: github:tensorpack/benchmarks, ImageNet."""
    alone = 40 / (40 - 8 / 2)  # no process of a GPU keeps a hardware thread busy
    for loader, measured in (("opencv", 5600), ("tf-data", 10500)):
        found = pipeline(f"data.loader={loader}")
        assert found.rate * found.gpus * alone == pytest.approx(measured, rel=0.03)


def test_a_v100_takes_three_to_four_cores() -> None:
    """ "ResNet50 needs 3 to 4 cores per GPU" with DALI (arXiv:2007.06775, from memory).

    A V100 trains about 800 images a second with Apex's mixed precision (NVIDIA's
    DeepLearningExamples, PyTorch/Classification/ConvNets, 16 GB: 803).
    """
    found = pipeline("data.loader=dali-cpu", "data.clock=2.2")
    assert 3 <= 803 / (found.rate * found.gpus / found.cores) <= 4


@given(
    workers=st.none() | st.integers(1, 64),
    cores=st.integers(4, 256),
    gpus=st.sampled_from((1, 2, 4, 8)),
    clock=st.floats(1, 4),
    megapixels=st.floats(0.01, 10),
)
@settings(max_examples=60, deadline=None)
def test_rates(workers: int | None, cores: int, gpus: int, clock: float, megapixels: float) -> None:
    """In closed form: cores at work times what one prepares, shared by the GPUs."""
    changes = [f"data.cores={cores}", f"data.clock={clock}", f"data.megapixels={megapixels}"]
    changes += [] if workers is None else [f"data.workers={workers}"]
    found = pipeline(*changes, gpus=gpus)
    free = cores - min(gpus, cores) / 2
    at_work = free if workers is None else min(free, workers * gpus)
    figures = packaged("input.toml")
    each = figures["loaders"]["pillow"]["rate"]["value"] * clock / 2.2
    each *= figures["image"]["pixels"]["value"] / (1e6 * megapixels)
    assert found.rate == pytest.approx(at_work * each / gpus)
    assert found.duration(3) == pytest.approx(3e12 / found.rate, abs=1)
    assert ("cores of a node" in found.numbers) == (at_work == free)


def test_loaders_have_figures() -> None:
    assert set(packaged("input.toml")["loaders"]) == set(get_args(Loader))


def test_colours_take_longer() -> None:
    plain, jitter = pipeline(), pipeline("data.augmentation=colour")
    assert plain.rate * 0.7 == pytest.approx(jitter.rate)


def test_what_is_copied_to_a_gpu() -> None:
    """fp32 of a crop of 224 x 224, bytes of it, or the file itself."""
    assert pipeline().upload == 4 * 3 * 224**2
    assert pipeline("data.loader=dali-cpu").upload == 3 * 224**2
    assert pipeline("data.loader=dali-gpu").upload == 114_000


def test_models_without_images_wait_for_nothing() -> None:
    text = FILE.replace("resnet-50", "gpt2-small")
    assert input_pipeline(read(text, "test"), 8) is None
    assert input_pipeline(read(FILE, "test", ["data.images=synthetic"]), 8) is None


def test_a_step_takes_as_long_as_the_slower_of_host_and_gpu(
    comm: Intracomm, tmp_path: Path
) -> None:
    if comm.size > 1:
        pytest.skip("in one process")
    alone = mpisim.simulate(read(FILE, "test", ["data.images=synthetic"]))
    assert alone is not None
    for cores in (16, 40, 4000):
        change = f"data.cores={cores}"
        found = mpisim.simulate(read(FILE, "test", [change]))
        assert found is not None
        host = pipeline(change).duration(128)
        slower = max(host, alone.step_time_ps)
        assert found.step_time_ps == pytest.approx(slower, rel=1e-3)
        assert found.parts is not None
        times = dict(zip(found.parts.names, found.parts.times[0].tolist(), strict=True))
        waits = max(host - alone.step_time_ps, 0)
        assert times.get("input", 0) == pytest.approx(waits, abs=1e-3 * slower)


def test_the_report_says_what_would_help(
    comm: Intracomm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if comm.size > 1:
        pytest.skip("in one process")
    file = tmp_path / "a.toml"
    file.write_text(FILE)
    assert main(["run", str(file)]) == 0
    text = capsys.readouterr().out
    assert "waiting for input" in text
    assert "10 % more rate of data loading would make the step about 9.1 % shorter" in text
    assert main(["run", str(file), "--details"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "input: PyTorch's DataLoader with Pillow prepares" in text
    assert "reading of files from storage" in text
    assert "± 35 %" in text  # of the loader's rate


def test_more_loading_is_first_order(comm: Intracomm) -> None:
    """`scale.data_loading` as the derivative along the critical path says."""
    if comm.size > 1:
        pytest.skip("in one process")
    one, other = (
        mpisim.simulate(read(FILE, "test", [f"scale.data_loading={factor}"]))
        for factor in (1.0, 1.25)
    )
    assert one is not None
    assert other is not None
    assert other.step_time_ps == pytest.approx(one.step_time_ps / 1.25, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (["data.images=synthetic", "data.workers=3"], "data.workers: no effect, data.images is"),
        (["model.preset=gpt2-small"], "data.images: no effect, the model takes no images"),
        (["data.images=synthetic", "scale.data_loading=2.0"], "no effect, no images are prepared"),
    ],
)
def test_keys_without_effect(
    comm: Intracomm,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    changes: list[str],
    line: str,
) -> None:
    if comm.size > 1:
        pytest.skip("in one process")
    file = tmp_path / "a.toml"
    file.write_text(FILE.replace("micro_batch = 128", "micro_batch = 8"))
    sets = [word for change in changes for word in ("--set", change)]
    assert main(["run", str(file), *sets, "--details"]) == 0
    assert line in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.loader=turbo", "data.loader"),
        ("data.cores=0", "data.cores"),
        ("data.image=jpeg", "did you mean"),
    ],
)
def test_wrong_values(change: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(FILE, "test", [change])

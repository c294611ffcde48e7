"""``mpisim shard``, ``mpisim tables``, ``plan.tables.sharder = "auto"``, ``torch.save``'s files."""

from __future__ import annotations

import io
import json
import pickle
import sys
import tomllib
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mpisim import simulate
from mpisim.base.errors import InputError
from mpisim.cli import main
from mpisim.experiment import Dlrm, load
from mpisim.formats.dlrm_datasets import read_dataset_tables
from mpisim.formats.torch_file import read_torch_file
from mpisim.workloads.dlrm import reuse_factors

EXPERIMENT = """\
[model]
family = "dlrm"
table_entries = [900000, 40000, 2000000, 300000, 70000, 500000]
embedding = 64
pooling = [60, 20, 40, 30, 80, 25]
skew = [1.0]
dense_features = 64
bottom_mlp = [128, 64]
top_mlp = [128, 1]

[plan]
dp = 4
micro_batch = 512
global_batch = 2048
precision = "fp32"
optimizer = "sgd"

[cluster]
preset = "gv100-4gpu"
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(EXPERIMENT)
    return path


def test_the_best_placement_is_written_and_runs(
    mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    placed, figures = tmp_path / "placed.toml", tmp_path / "found.json"
    assert main(["shard", str(mine), "-o", str(placed), "--json", str(figures)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Placements of 6 tables on 4 ranks: ")
    assert "x.index mod ranks" in shown
    assert "random(ranks)" in shown
    found = json.loads(figures.read_text())
    best = found["placements"][0]
    assert [each["step_time"] for each in found["placements"]] == sorted(
        each["step_time"] for each in found["placements"]
    )
    assert best["as_fast"]
    written = tomllib.loads(placed.read_text())
    assert written["plan"]["tables"]["placement"] == best["placement"]
    assert "sharder" not in written["plan"]["tables"]
    # The written experiment is the step that was shown, to the last digit.
    _, experiment = load(str(placed))
    results = simulate(experiment)
    assert results is not None
    assert results.digest == best["digest"]
    assert results.step_time == pytest.approx(best["step_time"])
    # It is a starting point of a further search by itself.
    assert main(["shard", str(placed), "--sharders", "naive", "--kinds", "table_wise"]) == 0
    assert "plan.tables.placement" in capsys.readouterr().out
    assert main(["shard", str(mine), "-o", str(placed)]) == 2
    assert "placed.toml" in capsys.readouterr().err


def test_sharders_alone(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shard", str(mine), "--no-search", "--sharders", "naive,size-greedy"]) == 0
    shown = capsys.readouterr().out
    assert "moves, swaps" not in shown
    assert "x.index mod ranks" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sharders", ""], "--sharders is empty; allowed: naive, "),
        (["--sharders", "naiv"], "--sharders has 'naiv' (did you mean 'naive'?)"),
        (["--kinds", "row_wize"], "--kinds has 'row_wize' (did you mean 'row_wise'?)"),
        (["--overwrite"], "--overwrite needs a file to write: -o FILE"),
        (["--set", "framework.fused=false"], "framework.fused is false"),
        (
            ["--set", "plan.tables.placement=['row_wise','row_wise']"],
            "plan.tables.placement has 2 entries",
        ),
    ],
)
def test_bad_input(
    mine: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shard", str(mine), *words]) == 2
    assert message in capsys.readouterr().err


def test_other_models_have_no_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shard", "llama3-8b-8-h100"]) == 2
    assert (
        "model.family is 'llama'; embedding tables are those of a 'dlrm'" in capsys.readouterr().err
    )


def test_searches_vary_the_sharder(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", str(mine), "--vary", "plan.tables.sharder=auto"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("9 candidates")
    assert "tables size-lookup-greedy" in shown
    assert main(["search", "llama3-8b-8-h100", "--vary", "plan.tables.sharder=auto"]) == 2
    assert "that is for recommendation models" in capsys.readouterr().err


# --- data sets ------------------------------------------------------------------------------------

Writer = Any


class _Storage:
    """A tensor's elements, as ``torch.save`` refers to them."""

    def __init__(self, key: str, array: NDArray[Any]) -> None:
        self.key, self.array = key, array


@pytest.fixture
def torch_save() -> Iterator[Writer]:
    """Write a file as torch.save does, with modules of its names that hold nothing."""
    torch, utils = ModuleType("torch"), ModuleType("torch._utils")

    def _rebuild_tensor_v2(*_: Any) -> None: ...

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = (
        "torch._utils",
        "_rebuild_tensor_v2",
    )
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2  # type: ignore[attr-defined]
    kinds = {"int32": "IntStorage", "int64": "LongStorage", "float32": "FloatStorage"}
    for name in kinds.values():
        setattr(torch, name, type(name, (), {"__module__": "torch"}))

    class Tensor:
        def __init__(self, storage: _Storage, size: tuple[int, ...]) -> None:
            self.storage, self.size = storage, size

        def __reduce__(self) -> Any:
            stride = tuple(int(np.prod(self.size[i + 1 :])) for i in range(len(self.size)))
            state = (self.storage, 0, self.size, stride, False, OrderedDict())
            return _rebuild_tensor_v2, state

    class Pickler(pickle.Pickler):
        def persistent_id(self, found: Any) -> Any:
            if not isinstance(found, _Storage):
                return None
            kind = getattr(torch, kinds[str(found.array.dtype)])
            return "storage", kind, found.key, "cpu", found.array.size

    def save(path: Path, *arrays: NDArray[Any], extra: Any = None) -> Path:
        storages = [_Storage(str(i), each) for i, each in enumerate(arrays)]
        value: Any = tuple(
            Tensor(storage, each.shape) for storage, each in zip(storages, arrays, strict=True)
        )
        if extra is not None:
            value = extra
        data = io.BytesIO()
        Pickler(data, protocol=2).dump(value)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{path.stem}/data.pkl", data.getvalue())
            for each in storages:
                archive.writestr(f"{path.stem}/data/{each.key}", each.array.tobytes())
        return path

    with pytest.MonkeyPatch.context() as patch:  # a torch that is loaded comes back
        patch.setitem(sys.modules, "torch", torch)
        patch.setitem(sys.modules, "torch._utils", utils)
        yield save


SAMPLES = 64


def lookups() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Indices, offsets and lengths of 4 tables; the last is never looked up."""
    generator = np.random.default_rng(4)
    lengths = generator.integers(0, 60, (4, SAMPLES))
    lengths[-1] = 0
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.minimum(generator.zipf(1.3, offsets[-1]), 5000) - 1
    return indices.astype(np.int64), offsets, lengths.astype(np.int32)


def test_a_file_of_tensors(torch_save: Writer, tmp_path: Path) -> None:
    arrays = lookups()
    found = read_torch_file(torch_save(tmp_path / "data.pt", *arrays))
    assert isinstance(found, tuple)
    for one, other in zip(found, arrays, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


def test_tables_of_a_data_set(torch_save: Writer, tmp_path: Path) -> None:
    indices, offsets, lengths = arrays = lookups()
    path = torch_save(tmp_path / "data.pt", *arrays)
    found = read_dataset_tables(path, 16)
    assert [each.number for each in found] == [0, 1, 2]
    for each in found:
        whole = indices[offsets[each.number * SAMPLES] : offsets[(each.number + 1) * SAMPLES]]
        batch = whole[: lengths[each.number, :16].sum()]
        assert each.entries == max(100, whole.max() + 1)
        assert each.pooling == pytest.approx(lengths[each.number].mean())
        assert (each.lookups, each.distinct) == (len(batch), len(set(batch.tolist())))
        assert each.reuse == pytest.approx(reuse_factors(batch))
    assert [each.number for each in read_dataset_tables(path, 16, (2, 3))] == [2]


def test_a_data_set_becomes_an_experiment(
    torch_save: Writer, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = torch_save(tmp_path / "data.pt", *lookups())
    theirs = tmp_path / "theirs.toml"
    words = ["--set", "plan.global_batch=32", "--set", "plan.micro_batch=8"]
    assert main(["tables", str(path), str(mine), "-o", str(theirs), *words]) == 0
    assert "3 tables, 3 of them heavy" in capsys.readouterr().out
    _, experiment = load(str(theirs))
    model = experiment.model
    assert isinstance(model, Dlrm)
    found = read_dataset_tables(path, 32)
    assert model.table_entries == tuple(each.entries for each in found)
    assert model.pooling == tuple(round(each.pooling) for each in found)
    assert np.array(model.reuse) == pytest.approx(
        np.array([each.reuse for each in found]), abs=1e-6
    )
    assert model.widths == (64, 64, 64)
    assert main(["shard", str(theirs), "--no-search"]) == 0
    assert main(["tables", str(path), str(mine), "--tables", "7", *words]) == 2
    assert "has tables 0 to 3; 7 was asked for" in capsys.readouterr().err
    assert main(["tables", str(path), str(mine)]) == 2
    assert "has 64 samples; a batch of 2,048 was asked for" in capsys.readouterr().err


class _Calls:
    """Runs a function where it is loaded."""

    def __reduce__(self) -> Any:
        return print, ("run by a file",)


def test_files_that_would_run_something(
    torch_save: Writer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=r"builtin(s|__)\.print, which is no tensor"):
        read_torch_file(torch_save(tmp_path / "bad.pt", extra=_Calls()))
    assert "run by a file" not in capsys.readouterr().out


def test_damaged_files(torch_save: Writer, tmp_path: Path) -> None:
    path = torch_save(tmp_path / "data.pt", *lookups())
    packed = tmp_path / "data.pt.gz"
    packed.write_bytes(b"\x1f\x8b" + bytes(40))
    for name, content, message in (
        (packed, None, "unpack it first: gunzip"),
        (tmp_path / "cut.pt", path.read_bytes()[:2000], "which is a zip archive"),
        (tmp_path / "none.pt", None, "No such file"),
    ):
        if content is not None:
            name.write_bytes(content)
        with pytest.raises(InputError, match=message):
            read_torch_file(name)
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("a.txt", "a")
    with pytest.raises(InputError, match=r"holds no data\.pkl"):
        read_torch_file(tmp_path / "other.pt")
    indices, offsets, lengths = lookups()
    for arrays, message in (
        ((indices, offsets), "does not hold three tensors"),
        ((indices.astype(np.float32), offsets, lengths), "indices is no tensor of integers"),
        ((indices, offsets[:-1], lengths), "offsets has 256 entries; 4 tables of 64 samples"),
        ((indices[:-1], offsets, lengths), "offsets do not rise from 0"),
    ):
        with pytest.raises(InputError, match=message):
            read_dataset_tables(torch_save(tmp_path / "odd.pt", *arrays), 8)

"""Damaged files of every format: one line and exit code 2, or understood; nothing else, ever.

``MPISIM_FUZZ_EXAMPLES`` says how many damages of each file are tried (25 by default, the same ones
every time; other numbers draw new ones): 600 take about ten minutes.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import hypothesis
import pytest
from fuzzing import Child, complaint
from hypothesis import given, settings
from mutations import Mutation, mutate, mutations
from seeds import SEEDS, Seed

EXAMPLES = int(os.environ.get("MPISIM_FUZZ_EXAMPLES", "25"))

QUICK = settings(
    max_examples=EXAMPLES,
    derandomize=EXAMPLES == 25,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    """The process that runs the commands."""
    child = Child()
    yield child
    child.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder for damaged files."""
    return tmp_path_factory.mktemp("seeds")


def tried(child: Child, seed: Seed, made: Path, damages: list[Mutation]) -> str:
    """Damage a copy of a format's file and read it."""
    with tempfile.TemporaryDirectory(dir=made) as place:
        folder = Path(place) / "in"
        seed.write(folder)
        mutate(folder / seed.file, damages)
        return complaint(child, seed, folder)


# --- damages that once ended in a traceback, in a hang, or without the file's name ----------------

DEEP = "[" * 5000
DIGITS = "9" * 5000
ENDLESS = "A100-80GB,m,op,1,8,8,8,1e999,0"


def replaced(name: str, old: str, new: str) -> tuple[str, Callable[[Path], None]]:
    """Replace a text of a format's file."""

    def change(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return name, change


def executed(statement: str) -> tuple[str, Callable[[Path], None]]:
    """Run a statement on the Nsight Systems export."""

    def change(path: Path) -> None:
        with contextlib.closing(sqlite3.connect(path)) as file:
            file.execute(statement)
            file.commit()

    return "Nsight Systems export", change


def never_written(name: str, dataset: str) -> tuple[str, Callable[[Path], None]]:
    """Put a column of 10^12 entries, none of them written, in the place of one."""

    def change(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            old = file[dataset]
            attributes, dtype = dict(old.attrs), old.dtype
            del file[dataset]
            new = file.create_dataset(dataset, (10**12,), dtype, chunks=(1 << 16,))
            new.attrs.update(attributes)

    return name, change


def bomb(path: Path) -> None:
    """A trace of 1 GB of blanks in 1 MB."""
    packer = zlib.compressobj(9, wbits=31)
    blank = b" " * (1 << 20)
    parts = [packer.compress(b'{"traceEvents": ['), *(packer.compress(blank) for _ in range(1000))]
    path.write_bytes(b"".join([*parts, packer.flush()]))


FOUND: dict[str, tuple[str, Callable[[Path], None]]] = {
    "5,000 digits of TOML": replaced("experiment", "layers = 2", f"layers = {DIGITS}"),
    "a trace nested deeply": replaced("Kineto trace", '"args": {', f'"x": {DEEP}, "args": {{'),
    "ranks of a group nested deeply": replaced(
        "Kineto trace", '"stream": 13', f'"stream": 13, "Process Group Ranks": "{DEEP}"'
    ),
    "dimensions nested deeply": replaced(
        "Kineto trace", '"args": {}', '"args": {"Input Dims": "' + DEEP + '"}'
    ),
    "a time that is text": executed("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'x'"),
    "a name that is bytes": executed("UPDATE StringIds SET value = x'ff00'"),
    "a number of a name that is text": executed("UPDATE StringIds SET id = 'x' WHERE id = 1"),
    "a host of nccl-tests that is a list": replaced(
        "nccl-tests, JSON", '"hostname":', '"hostname":[1],"was":'
    ),
    "a type of nccl-tests that is a list": replaced(
        "nccl-tests, JSON", '"type":', '"type":[1],"was":'
    ),
    "a time of nccl-tests that is no number": replaced(
        "nccl-tests, JSON", '"time":', '"time":NaN,"was":'
    ),
    "5,000 digits of nccl-tests": replaced("nccl-tests, printed", "Rank ", f"Rank {DIGITS}"),
    "5,000 digits of NICs": replaced("measured collectives", "8x200G", f"{DIGITS}x200G"),
    "a number that calibrations do not have": replaced(
        "collective calibration", "bandwidth_inside", "bandwidth_outside"
    ),
    "a batch of 0": replaced("whole models", ",8,,", ",0,,"),
    "a measured time of 0": replaced("whole models", "69.8,", "0,"),
    "a row of whole models cut short": replaced("whole models", ",69.8,69.8,0,fp32", ""),
    "a kernel without end": replaced("kernel measurements", "min_ms", f"min_ms\n{ENDLESS}"),
    "more stages than layers": replaced("measured steps", ",8,8,2,2,1,", ",8,8,2,99999999,1,"),
    "a graph that is no file": replaced("cluster with a graph", '"ring.toml"', '"null"'),
    "a change that is no number": replaced("cluster with a graph", '"50 %"', '"NaN %"'),
    "a column of a program never written": never_written("program", "rows/duration"),
    "a column of results never written": never_written("results", "wall/simulate"),
}


@pytest.mark.parametrize("what", FOUND)
def test_once_found(child, made, what):
    name, change = FOUND[what]
    seed = next(each for each in SEEDS if each.name == name)
    with tempfile.TemporaryDirectory(dir=made) as place:
        folder = Path(place) / "in"
        seed.write(folder)
        change(folder / seed.file)
        wrong = complaint(child, seed, folder)
        assert not wrong, wrong


@pytest.mark.parametrize("name", ["Kineto trace, compressed", "execution trace", "SimAI"])
def test_a_small_file_that_unpacks_to_a_gigabyte(child, made, name):
    """Refused, or read within the memory of the unpacked text: never a traceback."""
    seed = next(each for each in SEEDS if each.name == name)
    with tempfile.TemporaryDirectory(dir=made) as place:
        folder = Path(place) / "in"
        seed.write(folder)
        bomb(folder / seed.file)
        wrong = complaint(child, seed, folder)
        assert not wrong, wrong


# --- damages that are drawn -----------------------------------------------------------------------


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
def test_damaged_files(child, made, seed):
    assert not tried(child, seed, made, [])
    folder = made / "valid" / str(SEEDS.index(seed))
    seed.write(folder)

    @QUICK
    @given(mutations(folder / seed.file))
    def check(damages: list[Mutation]) -> None:
        wrong = tried(child, seed, made, damages)
        assert not wrong, wrong

    check()

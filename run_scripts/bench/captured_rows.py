"""Published steps of torchtitan and llm-foundry, by capture alone → errors of steps and memory.

    source run_scripts/env.sh
    .venv/bin/python run_scripts/bench/captured_rows.py all.csv [--eager] [--only X] [--keep DIR]

Each row of the table (docs/accuracy.md) becomes the arguments of a script, which `mpisim capture`
runs for the ranks that differ, on the cluster that `mpisim validate e2e` takes for the row:

torchtitan
    torchtitan 0.1.0, of June 2025, by its own `torchtitan.train` and
    tests/captured/titan_of_2025.py. Rows with torch.compile are captured on rank 0 alone; those in
    fp8 convert linear layers by torchao, with all-gathers in fp8 and scales worked out beforehand,
    which the tables do not say. The head stays in bf16, as in torchtitan of 2024
    (torchtitan/float8.py, `fqn != "output"`) and configurations of 2025 (`filter_fqns`).
llm-foundry
    tests/captured/mpt.py on rank 0; the others differ by the borders of their shards. Rows of 2,048
    tokens, MPT's length, with two micro-batches at most.

Rows are of trust A, llm-foundry's in bf16. Needs PyTorch and, for torchtitan's rows, torchtitan
0.1.0 (pip install --no-deps --target DIR torchtitan==0.1.0 torchao, with DIR on PYTHONPATH before a
newer one), tiktoken, tyro, torchdata and tensorboard. A row takes half a minute to five of CPU
time. With --keep what was captured lies in a folder, and later calls price it with the kernels of
that day.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from kept_captures import Command, Prediction, captured, predicted

from mpisim.base.errors import InputError
from mpisim.base.presets import packaged
from mpisim.base.text import percentage
from mpisim.validate.e2e.clusters import choose
from mpisim.validate.e2e.rows import Row, read
from mpisim.validate.e2e.settings import Settings
from mpisim.validate.e2e.settings import settings as read_settings

PEAKS = {
    "tt-l8b-8g-eager-bf16": "torchtitan-8b-8-eager",
    "tt-l8b-128g-eager-bf16": "torchtitan-8b-128-eager",
    "tt-l8b-8g-torchcompile-fp8": "torchtitan-8b-8-float8",
    "tt-l8b-128g-torchcompile-bf16": "torchtitan-8b-128-compiled",
    "tt-l8b-128g-torchcompile-fp8": "torchtitan-8b-128-float8",
    "tt-l8b-8g-cp1-s32768": "torchtitan-8b-cp1",
    "tt-l8b-8g-cp2-s65536": "torchtitan-8b-cp2",
    "tt-l8b-8g-cp4-s131072": "torchtitan-8b-cp4",
    "tt-l8b-8g-cp8-s262144": "torchtitan-8b-cp8",
    "tt-l8b-32g-h200-fp8": "torchtitan-8b-h200-32",
}
"""Rows whose memory is published, too: their tables in data/validation/memory.toml."""

LONGEST = 2048
MOST_MICRO_BATCHES = 2


def command(row: Row) -> list[str] | None:
    """Row → the command that capture runs; None for rows that are left out."""
    numbers, texts = row.integers, row.texts
    if texts["trust"] != "A":
        return None
    if "torchtitan" in texts["source"]:
        return _torchtitan(row)
    if texts["precision"] != "bf16":
        return None
    batches = numbers["global_batch"] // (numbers["micro_batch"] * numbers["dp"])
    if "llm-foundry" not in texts["source"] or numbers["seq_len"] != LONGEST:
        return None
    if batches > MOST_MICRO_BATCHES:
        return None
    sizes = (*(numbers[key] for key in ("layers", "hidden", "heads", "vocab")), LONGEST)
    sizes = (*sizes, numbers["micro_batch"], batches)
    pure = "pure" if "PURE" in texts["precision_as_printed"] else "amp"
    return ["mpt.py", *map(str, sizes), pure, texts["activation_recompute"]]


def _torchtitan(row: Row) -> list[str] | None:
    texts, numbers = row.texts, row.integers
    compiled = "torch.compile" in texts["notes"]
    if not compiled and "eager;" not in texts["notes"] and "2024-04" not in texts["source"]:
        return None
    family, size = texts["model"].lower().split("-")[1:]
    model = f"drawn_llama{family[0]}" + "_of_2024" * (compiled and "202412" in texts["source"])
    recompute = texts["activation_recompute"]
    layers = texts["activation_recompute_as_printed"] == "selective layer"
    words = [
        *("-m", "torchtitan.train", "--experimental.custom_import", "titan_of_2025"),
        *("--model.name", model, "--model.flavor", size.upper()),
        *("--training.seq_len", str(numbers["seq_len"])),
        *("--training.local_batch_size", str(numbers["micro_batch"])),
        *("--activation_checkpoint.mode", recompute),
        *("--activation_checkpoint.selective_ac_option", "2" if layers else "op"),
    ]
    if compiled:
        words += ["--training.compile"]
    if texts["precision"] == "fp8":
        words += ["--model.converters", "float8", "--float8.enable_fsdp_float8_all_gather"]
        words += ["--float8.precompute_float8_dynamic_scale_for_fsdp"]
        words += ["--float8.filter_fqns", "output"]
    for key, option in (("tp", "tensor"), ("cp", "context")):
        if numbers[key] > 1:
            words += [f"--parallelism.{option}_parallel_degree", str(numbers[key])]
    if texts["tp_overlap"] == "True":
        words += ["--parallelism.enable_async_tensor_parallel"]
    return words


class Found(NamedTuple):
    """A row beside its capture: seconds published, GiB published, what was predicted."""

    measured: float
    peak: float | None
    predicted: Prediction

    @property
    def error(self) -> float:
        """Of the step, signed, as a share."""
        return self.predicted.seconds / self.measured - 1


def found(row: Row, script: list[str], settings: Settings, keep: Path | None) -> Found:
    """Row and its command → what was published, and what capture alone says."""
    whole = script[0] == "-m" and "--training.compile" not in script
    cluster = choose(row, settings.source(row), settings).keys["cluster.preset"]
    job = Command(tuple(script), row.integers["num_gpus"], cluster, "auto" if whole else "0")
    peak = PEAKS.get(row.id)
    assert row.seconds is not None
    return Found(
        row.seconds,
        None if peak is None else packaged("validation/memory.toml")[peak]["reserved"],
        predicted(captured(job, row.id, keep)),
    )


def main() -> None:
    """Capture the rows, and print the table."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", type=Path, help="measured steps (.csv)")
    parser.add_argument("--only", default="", help="rows whose names have this in them")
    parser.add_argument("--eager", action="store_true", help="rows without torch.compile alone")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder of what was captured")
    args = parser.parse_args()
    settings = read_settings()
    rows: dict[str, Found] = {}
    for row in read(args.table):
        script = command(row)
        if script is None or args.only not in row.id:
            continue
        if args.eager and "--training.compile" in script:
            continue
        try:
            rows[row.id] = found(row, script, settings, args.keep)
        except InputError as error:
            print(f"{row.id}: {error}", file=sys.stderr)
            continue
        _show(row.id, rows[row.id])
    for source in ("tt-", "mpt-", ""):
        own = [each for name, each in rows.items() if name.startswith(source)]
        if own:
            errors = np.array([each.error for each in own])
            within = sum(abs(each.error) <= each.predicted.uncertainty for each in own)
            print(
                f"{source or 'all':5} {len(own):3} rows: "
                f"mean |error| {percentage(np.abs(errors).mean(), 1)}, "
                f"median {percentage(np.median(np.abs(errors)), 1)}, "
                f"bias {percentage(errors.mean(), 1, signed=True)}, "
                f"{within} within the stated error"
            )


def _show(name: str, row: Found) -> None:
    said = row.predicted
    memory = f"{said.reserved:6.1f} GiB"
    if row.peak is not None:
        off = percentage(said.reserved / row.peak - 1, 1, signed=True)
        memory += f" (published {row.peak}, {off})"
    print(
        f"{name:45} {row.measured * 1e3:9.1f} ms {said.seconds * 1e3:9.1f} ms "
        f"± {percentage(said.uncertainty)} {percentage(row.error, 1, signed=True):>6} "
        f"{said.cpu:5.0f} s {memory}" + (" (captured by other sources)" if said.stale else ""),
        flush=True,
    )


if __name__ == "__main__":
    main()

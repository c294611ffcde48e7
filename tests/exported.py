"""Small runs and their exports, for the tests of `mpisim.export`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpisim.experiment import load
from mpisim.export import ResimulatedRun, export_run, read_kept, resimulate
from mpisim.export.ranks import ALL, named_ranks, some_ranks
from mpisim.simulate import simulate

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["DENSE", "PIPELINE", "exported_run", "kineto_events", "saved_run"]

DENSE = ("model.layers=4",)
"""Llama-3-8B's shapes on 8 GPUs, sharded over all."""
PIPELINE = (
    "model.layers=8",
    "plan.pp=4",
    "plan.tp=2",
    "plan.dp=1",
    "plan.zero=1",
    "plan.global_batch=8",
    "framework.name=megatron-lm",
)
"""The same as Megatron-LM's pipeline of 4 stages of 2 GPUs."""


def saved_run(comm: Intracomm, path: Path, *changes: str) -> Path:
    """Simulate the default experiment with some changes, and save its result."""
    text, experiment = load(changes=changes)
    simulate(experiment, comm, output=path, text=text)
    return path


def exported_run(
    comm: Intracomm, saved: Path, format_: str, output: Path, ranks: str | None = ALL
) -> ResimulatedRun:
    """Export a saved run; without `ranks` the ranks that the command chooses."""
    kept = read_kept(saved, comm)
    again = resimulate(kept, comm)
    chosen = some_ranks(again.program) if ranks is None else named_ranks(ranks, kept.numbers)
    export_run(again, format_, output, comm, chosen)
    return again


def kineto_events(path: Path) -> list[dict[str, Any]]:
    """The events of a Kineto file."""
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return events

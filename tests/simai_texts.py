"""Texts of SimAI for tests: layers, files, programs, and how long these take."""

from __future__ import annotations

from pathlib import Path

from mpisim import engine
from mpisim.formats import (
    simai_program,
)
from mpisim.program import Program
from mpisim.topo import AlphaBeta

__all__ = ["ALL", "COST", "HYBRID", "NS", "layer", "priced", "program", "took", "written"]

NS = 1000
COST = 10_000
"""Of every communication, in ns: latency only."""


def priced(ns: int = COST) -> AlphaBeta:
    return AlphaBeta(latency=ns * 1e-9, bandwidth=1e30)


def took(program: Program, ns: int = COST) -> float:
    """Simulated time in ns."""
    run = engine.simulate(program, network=priced(ns))
    return max(int(run.rows(i).end.max()) for i in range(len(run.hosted))) / NS


def layer(
    name: str = "layer",
    fwd: tuple[int, str, int] = (1, "NONE", 0),
    ig: tuple[int, str, int] = (1, "NONE", 0),
    wg: tuple[int, str, int] = (1, "NONE", 0),
    update: int = 0,
    more: str = "",
) -> str:
    parts = "\t".join(f"{time} {kind} {size}" for time, kind, size in (fwd, ig, wg))
    return f"{name} -1 {parts} {update} {more}"


def written(folder: Path, header: str, *layers: str) -> Path:
    path = folder / "workload.txt"
    path.write_text("\n".join([header, str(len(layers)), *layers]))
    return path


def program(folder: Path, header: str, *layers: str, ranks: int = 0) -> Program:
    return simai_program(written(folder, header, *layers), ranks)


HYBRID = "HYBRID_TRANSFORMER model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 1 ga: 1 all_gpus: 4"
ALL = (300, "ALLREDUCE", 8)

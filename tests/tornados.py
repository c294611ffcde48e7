"""Programs of one all-reduce, elasticities and bars by quantity, for tests of sensitivities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpisim import simulate
from mpisim.program import Operation, Program, ProgramBuilder, save
from mpisim.results.tornado import Bar, Tornado

__all__ = ["US", "bars", "elasticities", "reducing", "saved"]

US = 1_000_000
"""In ps."""


def elasticities(experiment: Any, **keys: Any) -> dict[str, float]:
    """Elasticity by quantity."""
    found = simulate(experiment, **keys)
    assert found is not None
    assert found.sensitivities is not None
    names = [key.rpartition(".")[2] for key in found.sensitivities.keys]
    return dict(zip(names, found.sensitivities.elasticity.tolist(), strict=True))


def bars(found: Tornado | None) -> dict[str, Bar]:
    """Bars by quantity."""
    assert found is not None
    return {bar.quantity: bar for bar in found.bars}


def reducing(ranks: int, bytes: int, compute: int = 0) -> Program:
    """A step that is one kernel and one all-reduce."""
    builder = ProgramBuilder()
    group = builder.communicator(tuple(range(ranks)), "dp")
    rows = builder.table("step")
    kernel = rows.kernel("gemm", stream=0, duration=compute, host=3 * US, launch=2 * US)
    rows.collective(
        Operation.ALL_REDUCE, slot=0, stream=1, bytes=bytes, waits=[kernel], name="gradients"
    )
    table = builder.add_table(rows.build())
    for _ in range(ranks):
        builder.add_rank(table, slots=[group])
    return builder.build({"source": "by hand"})


def saved(folder: Path, program: Program) -> Path:
    """A program in a file."""
    path = folder / "step.h5"
    save(program, path, overwrite=True)
    return path

"""A recorded pipeline → the same model on another number of stages.

rows of each stage ─► passes (`parallel_passes`) ─► layers of the new stages
(`parallel_partition`) ─► rows of the new ranks (`parallel_rank_rows`) ─► program
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..program import Communicators, Program, check_matching
from .parallel_copies import DIRECTIONS
from .parallel_overlap import KernelsByName
from .parallel_partition import StagePartition
from .parallel_rank_rows import RankRows
from .parallel_structure import ParallelStructure, find_structure

__all__ = ["repartitioned", "with_stages"]

REPARTITIONED = ("tp", "cp", "ep", "dp", "pp")
"""Axes of jobs whose layers can be dealt anew."""


def with_stages(
    program: Program,
    structure: ParallelStructure,
    stages: int | None,
    node: int,
    floor: int,
    kernels: KernelsByName,
    *,
    schedule: str | None = None,
    chunks: int | None = None,
) -> tuple[Program, ParallelStructure, str]:
    """Deal the layers of a recorded pipeline to so many stages, or in another order. Local.

    Parameters
    ----------
    program : Program
        Whole, as recorded.
    structure : ParallelStructure
        Of this program.
    stages : int, optional
        By default as recorded.
    node : int
        Ranks of a node.
    floor : int
        Of each kernel's time, what it takes besides its work, in ps.
    kernels : mapping of str to sequence of (int, Kernel)
        What kernels compute, by name and time, where shapes are on record.
    schedule : str, optional
        One of `SCHEDULES`; by default the recorded one.
    chunks : int, optional
        Of each stage, of an interleaved schedule; by default as recorded.

    Returns
    -------
    Program
        Communications that the recording did not measure have no duration.
    ParallelStructure
        Of the new program.
    str
        What was assumed; empty if nothing is changed.

    Raises
    ------
    InputError
        If passes or layers cannot be told apart, or layers do not divide.
    """
    pp = structure.axis("pp")
    options = {"--pp": stages, "--schedule": schedule, "--vpp": chunks}
    said = " ".join(f"{name} {value}" for name, value in options.items() if value is not None)
    if pp is None:
        raise InputError(
            f"{said}: the grid {structure.text} has no pipeline, whose messages would tell "
            "where a stage begins"
        )
    recorded = structure.axes[pp].size
    if stages in (None, recorded) and schedule is None and chunks is None:
        return program, structure, ""
    others = [axis.name for axis in structure.axes if axis.name not in REPARTITIONED]
    if others:
        raise InputError(
            f"{said}: the grid {structure.text} has {', '.join(others)}; layers are dealt "
            f"anew in grids of {', '.join(REPARTITIONED)} alone"
        )
    unseen = [axis.name for axis in structure.axes if axis.unseen]
    if unseen:
        raise InputError(f"{said}: ranks are missing along {', '.join(unseen)}")
    partition = StagePartition(
        *(program, structure, recorded if stages is None else stages, node, floor, kernels),
        schedule=schedule,
        chunks=chunks,
    )
    if partition.order == partition.before:
        return program, structure, ""
    found = repartitioned(partition)
    check_matching(found)
    layout = [(axis.name, axis.size) for axis in partition.axes]
    after = find_structure(found, range(found.n_ranks), found.n_ranks, named=True, layout=layout)
    return found, after, partition.said


def repartitioned(partition: StagePartition) -> Program:
    """Layers of each new pipeline stage → program of all ranks of the new job. Local.

    Parameters
    ----------
    partition : StagePartition
        The recorded job, its axes with their new sizes, and the layers of each new stage.

    Returns
    -------
    Program
        A table for every rank; its speed and start are those of the recorded rank it is made from.
    """
    recorded = partition.recorded
    groups: dict[tuple[Any, ...], list[int]] = {}
    world = math.prod(axis.size for axis in partition.axes)
    written, sources = [], []
    for rank in range(world):
        place = [rank // axis.stride % axis.size for axis in partition.axes]
        rows = RankRows(partition, rank, place, groups)
        rows.write()
        written.append(rows)
        sources.append(partition.rank_at[tuple(rows.recorded_place())])
    number = {key: i for i, key in enumerate(groups)}
    slots = [[number[key] for key in rows.copies.slots] for rows in written]
    return Program(
        names=recorded.names,
        tables=tuple(rows.table() for rows in written),
        communicators=Communicators.of(
            [_ordered(key, members) for key, members in groups.items()],
            [f"{key[0]} {i}" for i, key in enumerate(groups)],
        ),
        table=np.arange(world, dtype=np.int32),
        slot_index=np.concatenate([[0], np.cumsum([len(own) for own in slots])]),
        slots=np.array([c for own in slots for c in own], np.int32),
        speed=recorded.speed[sources],
        start=recorded.start[sources],
        attributes={
            **recorded.attributes,
            "ranks": " ".join(map(str, range(world))),
            "world_size": str(world),
        },
    )


def _ordered(key: tuple[Any, ...], members: Sequence[int]) -> list[int]:
    """Members of a communicator, the sender of a message first."""
    backwards = key[0] in DIRECTIONS and key[1] > key[2]
    return sorted(members, reverse=backwards)

"""Ranks of Chakra traces that are recognised as equal: the same program as when each is read."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chakra_oracle import chakra, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_chakra_foreign import kernel, reduce

from mpisim import engine
from mpisim.base.errors import InputError, MpisimError
from mpisim.formats import read_chakra
from mpisim.formats.chakra_likeness import TraceNodes
from mpisim.kernels import find_gpu
from mpisim.kernels.counted import RooflinePricer
from mpisim.program import COLUMNS, Program
from mpisim.topo import AlphaBeta

__all__ = ["chakra"]

GPU = find_gpu("h100-sxm")
N_RANKS = 6
GROUPS = {"low": [0, 1, 2], "high": [5, 4, 3], "even": [0, 2, 4], "odd": [1, 3, 5], "1": [0, 3]}
STEPS = (
    "kernel",
    "counted",
    "timed reduce",
    "reduce in a half",
    "gather in a half",
    "reduce by parity",
    "reduce",
    "group 1",
    "ring",
    "wrong ring",
    "unknown group",
)
USUAL = STEPS[:7]


def nodes_of(
    rank: int, steps: list[str], first: int, order: int, us: int, chained: bool = True
) -> list[dict[str, Any]]:
    """The nodes of one rank, a chain or not, numbered from `first` on, upwards or downwards."""
    half = "low" if rank < N_RANKS // 2 else "high"
    parity = ("even", "odd")[rank % 2]
    found: list[dict[str, Any]] = []
    number = count(first, order)

    def message(kind: str, **pair: int) -> dict[str, Any]:
        return {
            "id": next(number),
            "type": f"COMM_{kind}_NODE",
            "name": kind,
            "attr": {"comm_size": 8, **pair},
        }

    for step in steps:
        deps = [found[-1]["id"]] if found and chained else []
        made: list[dict[str, Any]]
        match step:
            case "kernel":
                made = [kernel(next(number)) | {"name": "kernel"}]
            case "counted":
                made = [kernel(next(number), us=0, attr={"num_ops": 10**9}) | {"name": "counted"}]
            case "timed reduce":
                made = [reduce(next(number), pg_name=half) | {"duration_micros": us}]
            case "reduce in a half":
                made = [reduce(next(number), pg_name=half)]
            case "gather in a half":
                made = [reduce(next(number), pg_name=half, comm_type=2)]
            case "reduce by parity":
                made = [reduce(next(number), pg_name=parity)]
            case "reduce":
                made = [reduce(next(number))]
            case "group 1":
                made = [reduce(next(number), pg_name="1")] if rank in GROUPS["1"] else []
            case "ring":
                after, before = (rank + 1) % N_RANKS, (rank - 1) % N_RANKS
                said = {"comm_src": rank} if us % 2 else {}  # a sender need not name itself
                made = [message("SEND", comm_dst=after, **said), message("RECV", comm_src=before)]
            case "wrong ring":
                made = [message("SEND", comm_src=0, comm_dst=(rank + 1) % N_RANKS)]
            case _:
                made = [reduce(next(number), pg_name="none")]
        if made:
            made[0]["data_deps"] = deps
        found += made
    return found


JOBS = st.tuples(
    st.lists(st.sampled_from(USUAL) | st.sampled_from(STEPS), min_size=1, max_size=6),
    st.lists(
        st.tuples(
            st.integers(0, 300),
            st.sampled_from([1, 1, -1]),
            st.integers(4, 6),
            st.sampled_from([True, True, False]),
        ),
        min_size=N_RANKS,
        max_size=N_RANKS,
    ),
    st.booleans(),
)


def read(folder: Path) -> Program | str:
    try:
        return read_chakra([folder], RooflinePricer(GPU))
    except InputError as error:
        return str(error)


def outcome(program: Program) -> object:
    """The digest of a run, or the kind of its error: messages in a ring can wait for each other."""
    try:
        return engine.simulate(program, network=AlphaBeta(1e-6, 1e9)).digest
    except MpisimError as error:
        return type(error)


def assert_alike(one: Program, other: Program) -> None:
    """Every rank does the same in two programs, whatever tables it shares."""
    assert one.names == other.names
    assert one.attributes == other.attributes
    for column in ("index", "members", "names"):
        np.testing.assert_array_equal(
            getattr(one.communicators, column), getattr(other.communicators, column)
        )
    np.testing.assert_array_equal(one.slots, other.slots)
    np.testing.assert_array_equal(one.slot_index, other.slot_index)
    for rank in range(one.n_ranks):
        for column in (*COLUMNS, "wait_index", "wait_row"):
            np.testing.assert_array_equal(
                getattr(one.table_of(rank), column), getattr(other.table_of(rank), column)
            )


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None
)
@given(job=JOBS)
def test_equal_ranks_are_as_if_each_were_read(
    job: tuple[list[str], list[tuple[int, int, int, bool]], bool],
    chakra: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, ranks, init = job
    described = [{"pg_name": name, "ranks": members} for name, members in GROUPS.items()]
    text = chakra.IOInfo(values=repr([json.dumps(described)]))
    head = {"id": 9999, "type": "METADATA_NODE", "name": "process_group:init", "inputs": text}
    for rank, (first, order, us, chained) in enumerate(ranks):
        nodes = nodes_of(rank, steps, 1000 + first, order, us, chained)
        write(chakra, tmp_path / f"a.{rank}.et", *([head] if init else []), *nodes)
    (tmp_path / "groups.json").write_text("{}" if init else json.dumps(GROUPS))
    found = read(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(TraceNodes, "likeness", lambda *_: None)
        expected = read(tmp_path)
    if isinstance(found, str) or isinstance(expected, str):
        assert found == expected
        return
    assert_alike(found, expected)
    assert outcome(found) == outcome(expected)


@pytest.mark.parametrize("first", [0, 7])
def test_a_job_of_equal_ranks_has_one_table(chakra: Any, tmp_path: Path, first: int) -> None:
    for rank in range(N_RANKS):
        nodes = nodes_of(rank, ["kernel", "reduce in a half", "reduce"], 1 + first * rank, 1, 0)
        write(chakra, tmp_path / f"a.{rank}.et", *nodes)
    (tmp_path / "groups.json").write_text(json.dumps(GROUPS))
    program = read_chakra([tmp_path])
    assert (len(program.tables), program.n_ranks) == (1, N_RANKS)
    assert program.communicators.names == ("group low", "world", "group high")
    assert program.slots.tolist() == [0, 1] * 3 + [2, 1] * 3


def test_what_differs_makes_tables_of_its_own(chakra: Any, tmp_path: Path) -> None:
    for rank in range(4):
        name = "other" if rank == 3 else "kernel"
        timed = reduce(2, 1, pg_name="low" if rank < 2 else "high")
        timed["duration_micros"] = (5, 7, 9, 9)[rank]
        write(chakra, tmp_path / f"a.{rank}.et", kernel(1) | {"name": name}, timed)
    (tmp_path / "groups.json").write_text('{"low": [0, 1], "high": [2, 3]}')
    program = read_chakra([tmp_path])
    # The recorded times of the first two become one; the last has another name.
    assert [program.table_of(rank).duration[1] for rank in range(4)] == [5 * 10**6] * 2 + [
        9 * 10**6
    ] * 2
    assert len({*program.table.tolist()}) == len(program.tables)
    assert program.table[3] not in program.table[:3]

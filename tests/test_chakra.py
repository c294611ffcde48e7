"""Chakra files of our own: the published schema, what ASTRA-sim needs, and nothing lost."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chakra_oracle import COMM_TYPES, LISTS, NODE_TYPES, chakra, parse, proto
from hypothesis import given, settings
from programs import partial, programs, random_program

from mpisim.base.errors import InputError, OutputError, UsageError
from mpisim.formats import import_program, read_chakra, write_chakra
from mpisim.formats.chakra_schema import CollectiveType, NodeType, attributes, messages
from mpisim.program import (
    COLUMNS,
    Flag,
    Kind,
    Operation,
    Program,
    ProgramBuilder,
)

__all__ = ["chakra"]

SETTINGS = settings(max_examples=40)


def assert_equal(a: Program, b: Program) -> None:
    assert a.names == b.names
    assert a.communicators.names == b.communicators.names
    for column in ("index", "members"):
        assert np.array_equal(getattr(a.communicators, column), getattr(b.communicators, column))
    for column in ("table", "slot_index", "slots", "speed", "start"):
        assert np.array_equal(getattr(a, column), getattr(b, column)), column
    assert dict(a.attributes) == dict(b.attributes)
    assert len(a.tables) == len(b.tables)
    for one, other in zip(a.tables, b.tables, strict=True):
        assert one is not None
        assert other is not None
        assert (one.queue_depth, one.label) == (other.queue_depth, other.label)
        for column in (*COLUMNS, "wait_index", "wait_row"):
            assert np.array_equal(getattr(one, column), getattr(other, column)), column


def pair() -> Program:
    """Two ranks: a kernel, an all-gather, an exchange in one batch, CPU work and a wait."""
    builder = ProgramBuilder()
    both = builder.communicator((0, 1), "all")
    ways = [builder.communicator((0, 1), "way"), builder.communicator((1, 0), "way")]
    for rank in range(2):
        rows = builder.table(f"rank {rank}").tags(step=3, layer=7)
        first = rows.kernel("gemm", 0, 2_500_000, host=300_000, launch_cost=400_000)
        rows.collective(Operation.ALL_GATHER, 0, 1, 4096, waits=[first], launch_cost=400_000)
        rows.point_to_point(Kind.SEND, 1, 2, 512, waits=[first], duration=1)
        last = rows.point_to_point(Kind.RECV, 2, 2, 512, duration=1, flags=Flag.JOINED)
        rows.kernel("gelu", 2, 1_000_000)
        rows.host(1_000_000, "loader")
        rows.host_wait([last], tail=200_000)
        builder.add_table(rows.build(queue_depth=rank))
        builder.add_rank(rank, [both, ways[rank], ways[1 - rank]], speed=1 + rank, start=rank)
    return builder.build({"source": "test"})


# --- the schema ---------------------------------------------------------------------------------


def test_the_schema_is_the_published_one(chakra: Any) -> None:
    """Numbers and types of all fields, against what protoc makes of the published ones."""
    own = messages()
    for mine in (own.GlobalMetadata.DESCRIPTOR, own.Node.DESCRIPTOR):
        published = chakra.DESCRIPTOR.message_types_by_name[mine.name]
        pending, seen = [(mine, published)], set()
        while pending:
            a, b = pending.pop()
            seen.add(a.name)
            assert [(f.name, f.number, f.type) for f in a.fields] == [
                (f.name, f.number, f.type) for f in b.fields
            ]
            for f, g in zip(a.fields, b.fields, strict=True):
                if f.message_type is not None and f.message_type.name not in seen:
                    pending.append((f.message_type, g.message_type))
    assert [kind.name for kind in NodeType] == NODE_TYPES
    assert [kind.name for kind in CollectiveType] == COMM_TYPES
    assert len(LISTS) == 15
    assert "ChakraProtoMsg" in proto()


def test_files_pass_the_published_schema(chakra: Any, tmp_path: Path) -> None:
    files = write_chakra(pair(), tmp_path / "et", "step")
    assert [path.name for path in files] == ["step.0.et", "step.1.et", "step.json"]
    metadata, nodes = parse(chakra, files[0])
    assert metadata.version == "0.0.4"
    from google.protobuf.unknown_fields import UnknownFieldSet

    assert not any(len(UnknownFieldSet(node)) for node in [metadata, *nodes])
    ids = [node.id for node in nodes]
    assert ids == sorted(set(ids))
    for node in nodes:
        assert set(node.data_deps) | set(node.ctrl_deps) <= set(range(1, node.id))


# --- what others read ---------------------------------------------------------------------------


def test_astra_sim_finds_what_it_needs(chakra: Any, tmp_path: Path) -> None:
    write_chakra(pair(), tmp_path / "et", "step")
    _, nodes = parse(chakra, tmp_path / "et" / "step.1.et")
    by_name: dict[str, list[Any]] = {}
    for node in nodes:
        by_name.setdefault(node.name, []).append(node)
    gemm, gather, send, recv = (by_name[name][0] for name in ("gemm", "all_gather", "send", "recv"))
    kinds = [NODE_TYPES[node.type] for node in (gemm, gather, send, recv)]
    assert kinds == ["COMP_NODE", "COMM_COLL_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE"]
    assert gemm.duration_micros == 2  # 2.5 µs at twice the speed, rounded up
    said = attributes(gather)
    assert (COMM_TYPES[said["comm_type"]], said["comm_size"]) == ("ALL_GATHER", 2048)
    assert said["is_cpu_op"] is False
    assert gemm.id in gather.data_deps
    groups = json.loads((tmp_path / "et" / "step.json").read_text())
    assert groups[said["pg_name"]] == [0, 1]
    assert all(int(name) > 0 for name in groups)  # 0 is the whole world to ASTRA-sim
    out, into = attributes(send), attributes(recv)
    assert (out["comm_src"], out["comm_dst"], out["comm_size"]) == (1, 0, 512)
    assert (into["comm_src"], into["comm_dst"]) == (0, 1)
    _, others = parse(chakra, tmp_path / "et" / "step.0.et")
    partner = attributes(next(node for node in others if node.name == "recv"))
    assert partner["comm_tag"] == out["comm_tag"]


def test_order_is_in_the_dependencies(chakra: Any, tmp_path: Path) -> None:
    write_chakra(pair(), tmp_path / "et", "step")
    _, nodes = parse(chakra, tmp_path / "et" / "step.0.et")
    named = {node.name: node for node in nodes if node.name != "cpu"}
    assert named["send"].id not in named["recv"].data_deps  # one kernel: both start together
    assert {named["send"].id, named["recv"].id} <= set(named["gelu"].data_deps)
    assert named["recv"].id in named["wait"].data_deps
    on_cpu = [node for node in nodes if attributes(node)["is_cpu_op"]]
    for before, node in itertools.pairwise(on_cpu):
        assert list(node.ctrl_deps) == [before.id]
    # 0.3 + 0.4 + 0.4 + 1 + 0.2 µs on the CPU: rounded up once, not five times.
    assert sum(node.duration_micros for node in on_cpu) == 3


def test_unknown_communications_become_compute(chakra: Any, tmp_path: Path) -> None:
    builder = ProgramBuilder()
    rows = builder.table("only")
    rows.collective(Operation.UNKNOWN, 0, 0, -1, duration=5_000_000, name="ncclGeneric")
    builder.add_table(rows.build())
    builder.add_rank(0, [builder.communicator((0,))])
    program = builder.build()
    _, (node,) = parse(chakra, write_chakra(program, tmp_path / "et")[0])
    assert (NODE_TYPES[node.type], node.duration_micros) == ("COMP_NODE", 5)
    assert_equal(read_chakra([tmp_path / "et"]), program)


# --- nothing lost -------------------------------------------------------------------------------


@SETTINGS
@given(program=programs(unpriced=True))
def test_a_program_comes_back_as_it_was(program: Program) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_chakra(program, Path(folder) / "et")
        assert_equal(read_chakra([Path(folder) / "et"]), program)


def test_a_generated_step_comes_back_as_it_was(tmp_path: Path) -> None:
    from mpisim.experiment import load
    from mpisim.prediction.prepared import prepare

    program = prepare(load(changes=["model.layers=8", "plan.global_batch=8"])[1]).program
    write_chakra(program, tmp_path / "et", "gpt")
    assert_equal(import_program([tmp_path / "et"]), program)


def test_two_names_of_one_text(tmp_path: Path) -> None:
    program = random_program(3)
    names = ("twice",) * len(program.names)
    program = program.replace(names=names)
    write_chakra(program, tmp_path / "et")
    assert_equal(read_chakra([tmp_path / "et"]), program)


def test_files_may_be_named_one_by_one_and_compressed(tmp_path: Path) -> None:
    import gzip

    program = random_program(5)
    files = write_chakra(program, tmp_path / "et")[:-1]
    packed = []
    for path in files:
        packed.append(tmp_path / f"{path.name}.gz")
        packed[-1].write_bytes(gzip.compress(path.read_bytes()))
    assert_equal(import_program(packed[::-1]), program)


# --- writing ------------------------------------------------------------------------------------


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    small, large = random_program(1, n_tables=1, n_replicas=1), random_program(1)
    write_chakra(large, tmp_path / "et")
    with pytest.raises(OutputError, match=r"holds program\.0\.et already"):
        write_chakra(small, tmp_path / "et")
    write_chakra(small, tmp_path / "et", overwrite=True)
    assert sorted(p.name for p in tmp_path.rglob("*.*")) == ["program.0.et", "program.json"]
    (tmp_path / "et" / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputError, match=r"thesis.tex, which is no Chakra file"):
        write_chakra(small, tmp_path / "et", overwrite=True)
    with pytest.raises(OutputError, match="is not a folder"):
        write_chakra(small, tmp_path / "et" / "thesis.tex", overwrite=True)
    with pytest.raises(OutputError, match="there is no folder"):
        write_chakra(small, tmp_path / "nowhere" / "et")


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mpisim.formats import chakra_write

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    program = random_program(2)
    write_chakra(program, tmp_path / "et")
    before = sorted(p.read_bytes() for p in (tmp_path / "et").iterdir())
    monkeypatch.setattr(chakra_write, "_write_groups", fails)
    for folder in ("et", "new"):
        with pytest.raises(OutputError, match="No space left"):
            write_chakra(program, tmp_path / folder, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["et"]
    assert sorted(p.read_bytes() for p in (tmp_path / "et").iterdir()) == before


def test_a_partial_program_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="spread over processes"):
        write_chakra(partial(random_program(1), {0}), tmp_path / "et")
    with pytest.raises(UsageError, match="no name for files"):
        write_chakra(random_program(1), tmp_path / "et", "a/b")


# --- damaged files ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: (d / "program.1.et").unlink(), "3 of 4 ranks are here; rank 1 is missing"),
        (lambda d: _cut(d / "program.2.et", 3), "program.2.et: truncated"),
        (lambda d: _cut_nodes(d / "program.2.et"), "rows are here"),
        (lambda d: (d / "program.2.et").write_bytes(b""), "program.2.et: the file is empty"),
        (
            lambda d: (d / "program.2.et").write_bytes((d / "program.1.et").read_bytes()),
            "rank 1 is already given",
        ),
        (lambda d: (d / "program.3.et").write_bytes(b"\x03abc"), "cannot be decoded|unknown field"),
        (
            lambda d: _change(d / "program.1.et", "kind", 77),
            "program.1.et: table 'table .', row 0: kind must be|its nodes differ",
        ),
        (lambda d: _change(d / "program.1.et", "slot", 2**40), "node .*: slot is 1099511627776"),
        (lambda d: _change(d / "program.1.et", "duration", "long"), "node .*: duration is 'long'"),
    ],
)
def test_damaged_files_are_one_line(tmp_path: Path, change: Any, says: str) -> None:
    write_chakra(random_program(11), tmp_path / "et")
    change(tmp_path / "et")
    with pytest.raises(InputError, match=says) as caught:
        read_chakra([tmp_path / "et"])
    assert "\n" not in str(caught.value)


def _cut(path: Path, n: int) -> None:
    path.write_bytes(path.read_bytes()[:-n])


def _rewrite(path: Path, metadata: Any, nodes: list[Any]) -> None:
    from mpisim.formats.chakra_schema import write_delimited

    with path.open("wb") as file:
        write_delimited(file, [metadata, *nodes])


def _cut_nodes(path: Path) -> None:
    from mpisim.formats.chakra_schema import read_nodes

    metadata, nodes = read_nodes(path)
    _rewrite(path, metadata, nodes[:2])


def _change(path: Path, column: str, value: int | str) -> None:
    from mpisim.formats.chakra_schema import read_nodes

    metadata, nodes = read_nodes(path)
    for node in nodes:
        for attribute in node.attr:
            if attribute.name == f"mpisim.{column}":
                if isinstance(value, str):
                    attribute.string_val = value
                else:
                    attribute.int64_val = value
                _rewrite(path, metadata, nodes)
                return
    raise AssertionError(f"no {column}")

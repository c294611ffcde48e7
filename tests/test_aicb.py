"""AICB's tables: what every rank does in turn, read into programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simai_texts import COST, layer, took

from mpisim.base.errors import InputError
from mpisim.formats import aicb_program, import_program, read_aicb
from mpisim.formats.recognise import recognise
from mpisim.kernels import find_gpu
from mpisim.kernels.counted import RooflinePricer
from mpisim.program import Kind, Operation, Phase, Program

COLUMNS = (
    "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,"
    "busbw,count"
)


def comm(kind: str, group: str, members: int, size: object, stage: str = "forward") -> str:
    group = group if group == "None" else f"CommGroup.{group}"
    return f"CommType.{kind},{group},{members},{size},{stage},None,None,,None,None,None,1"


def product(stage: str, time: object = "None", shapes: str = "((2, 8, 64), (64, 32))") -> str:
    return f"CommType.computation,None,None,{shapes},{stage}.x,None,None,,{time},None,None,1"


END = comm("epoch_end", "None", 0, 0, "")

ZERO3 = [
    comm("broadcast", "dp_group", 4, 1 << 20, "init"),
    comm("barrier", "all", 4, 0, "init"),
    END,
    comm("all_gather", "dp_group", 4, 1000, "forward"),
    END,
    comm("all_gather", "dp_group", 4, 4096, "forward.allgather_fn"),
    product("forward", 3000),
    comm("all_gather", "dp_group", 4, 4096, "backward.allgather_fn"),
    product("backward", 7000),
    comm("reduce_scatter", "dp_group", 4, 4096, "backward.reduce_scatter_fn"),
    comm("all_reduce", "dp_group", 4, 8, "step.get_grad_norm_direct"),
    comm("barrier", "all", 4, 0, "step"),
    comm("all_reduce", "tp_group", 1, 64, "step"),
    END,
]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def written(*lines: str, head: str = "") -> Path:
        path = tmp_path / "w.csv"
        path.write_text("\n".join([*([head] if head else []), COLUMNS, *lines]) + "\n")
        return path

    return written


def test_the_last_step_runs_line_by_line(write: Callable[..., Path]) -> None:
    path = write(*ZERO3, head="[rank0 ~ rank3]")
    read = read_aicb(path)
    assert (read.n_ranks, len(read.setup), [len(step) for step in read.steps]) == (4, 2, [1, 8])
    assert recognise([path]) == "aicb"
    program = import_program([path])
    table = program.tables[0]
    assert program.n_ranks == 4
    assert [Operation(each) for each in table.operation.tolist()] == [
        Operation.ALL_GATHER,
        Operation.NONE,
        Operation.ALL_GATHER,
        Operation.NONE,
        Operation.REDUCE_SCATTER,
        Operation.ALL_REDUCE,
        Operation.BARRIER,
    ]
    assert table.bytes[table.operation == Operation.REDUCE_SCATTER].tolist() == [4096]
    phases = [Phase.FORWARD] * 2 + [Phase.BACKWARD] * 3 + [Phase.OPTIMIZER] * 2
    assert [Phase(each) for each in table.phase.tolist()] == phases
    # Every line waits for the one before, and nothing else takes time.
    assert took(program) == 5 * COST + 3000 + 7000
    assert program.attributes["set-up"] == "2 lines before the first step are left out"
    assert program.attributes["step"] == "the last of 2"


def members(program: Program, rank: int) -> dict[str, list[int]]:
    """Communicators of a rank, by name."""
    found = {}
    for number in program.slots_of(rank):
        name = program.communicators.names[number]
        found[name] = list(program.communicators.group(number))
    return found


def test_groups_stand_as_megatrons(write: Callable[..., Path]) -> None:
    lines = [
        comm("all_reduce", "tp_group", 2, 64),
        comm("all_to_all", "ep_group", 2, 64),
        comm("reduce_scatter", "ep_dp_group", 2, 64, "step"),
        comm("all_gather_into_tensor", "ep_tp_group", 4, 64),
        comm("reduce_scatter_tensor", "dp_group", 4, 64, "step"),
    ]
    program = aicb_program(write(*lines))
    assert program.n_ranks == 8  # tp × dp, as no line says
    found = members(program, 3)
    assert found == {
        "tp": [2, 3],
        "ep": [1, 3],
        "ep_dp": [3, 7],
        "ep_tp": [0, 1, 2, 3],
        "dp": [1, 3, 5, 7],
    }


def test_products_without_a_time_are_priced_by_a_gpu(write: Callable[..., Path]) -> None:
    path = write(product("forward"), comm("all_reduce", "dp_group", 2, 8))
    with pytest.raises(InputError, match=r"w.csv: line 2: a computation without _elapsed_time; na"):
        aicb_program(path)
    gpu = find_gpu("h100-sxm")
    program = import_program([path], counts=RooflinePricer(gpu))
    table = program.tables[0]
    (length,) = table.duration[table.kind == Kind.KERNEL].tolist()
    alone = RooflinePricer(gpu)
    elements = 16 * 64 + 64 * 32 + 16 * 32
    assert length == alone.duration("x", 2 * 16 * 64 * 32, 2 * elements)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([comm("all_reduse", "dp_group", 2, 8)], "line 2: unknown comm_type 'all_reduse' (did you"),
        ([comm("all_reduce", "dp", 2, 8)], "line 2: unknown comm_group 'dp'"),
        ([comm("all_reduce", "dp_group", 2, "nan")], "line 2: msg_size is 'nan'; it must be a wh"),
        ([comm("all_reduce", "dp_group", 2, -8)], "line 2: msg_size is '-8'; it must be a whole"),
        ([comm("all_reduce", "dp_group", 2, "1e400")], "line 2: msg_size is '1e400'"),
        ([comm("all_reduce", "dp_group", 2, 8) + ",1"], "line 2: 13 fields; there are 12 columns"),
        (
            [comm("all_reduce", "dp_group", 2, 8), comm("all_reduce", "dp_group", 4, 8)],
            "line 3: comm_group_size of dp_group is 4; in line 2 it is 2",
        ),
        ([comm("isend", "pp_group", 2, 8)], "line 2: a table of one pipeline stage does not say"),
        ([comm("barrier", "all", 0, 0)], "the file does not say for how many ranks; give --ranks"),
        (
            [comm("all_reduce", "dp_group", 4, 8), comm("all_to_all", "ep_group", 3, 8)],
            "4 ranks cannot be divided into groups of 1 (tp_group) × 3 (ep_group)",
        ),
        (
            [product("forward", shapes="7"), comm("all_reduce", "dp_group", 4, 8)],
            "line 2: a computation without _elapsed_time, whose msg_size is not the shapes",
        ),
        (
            [product("forward", shapes="((2, 3), (4, 5))"), comm("all_reduce", "dp_group", 4, 8)],
            "line 2: a product of (2, 3) and (4, 5): 3 columns and 4 rows",
        ),
        ([END], "no line of a step"),
    ],
)
def test_what_is_wrong_is_said(write: Callable[..., Path], lines: list[str], says: str) -> None:
    counts = RooflinePricer(find_gpu("h100-sxm"))
    path = write(*lines)
    with pytest.raises(InputError) as caught:
        aicb_program(path, counts=counts)
    assert says in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_ranks_are_those_that_the_file_says(write: Callable[..., Path]) -> None:
    path = write(comm("all_reduce", "dp_group", 2, 8), head="[rank0 ~ rank1]")
    with pytest.raises(InputError, match="line 1 says 2 ranks, but 4 are asked for"):
        aicb_program(path, 4)
    with pytest.raises(InputError, match="comm_group_size of dp_group is 2; of 4 ranks it would"):
        aicb_program(write(comm("all_reduce", "dp_group", 2, 8)), 4)
    with pytest.raises(InputError, match=r"it would be 4; --ranks set their number$"):
        aicb_program(write(comm("all_reduce", "dp_group", 2, 8)), 4)
    with pytest.raises(InputError, match=r"× 1 \(ep_group\); --ranks set their number$"):
        aicb_program(write(comm("all_reduce", "tp_group", 2, 8)), 3)


CONTEXT = "; context parallelism (cp), of which no line says the size, is not read"


@pytest.mark.parametrize(
    ("groups", "head", "says"),
    [
        # 8 ranks are 2 × 4 by context parallelism, but not 3 times anything, nor of 5 a part.
        ({"dp_group": 2}, "[rank0 ~ rank7]", "of 8 ranks it would be 8" + CONTEXT),
        ({"dp_group": 3}, "[rank0 ~ rank7]", "of 8 ranks it would be 8"),
        ({"dp_group": 16}, "[rank0 ~ rank7]", "of 8 ranks it would be 8"),
        ({"tp_group": 3}, "[rank0 ~ rank7]", "groups of 3 (tp_group) × 1 (ep_group)"),
        # dp_group is without context parallelism, the ranks with an expert are with it.
        ({"dp_group": 4, "ep_group": 2, "ep_dp_group": 4}, "", "it would be 2" + CONTEXT),
        ({"dp_group": 4, "ep_group": 2, "ep_dp_group": 3}, "", "of 4 ranks it would be 2"),
        ({"dp_group": 2, "ep_group": 4}, "", "groups of 1 (tp_group) × 4 (ep_group)" + CONTEXT),
        (
            {"dp_group": 4, "tp_group": 2, "ep_group": 2, "ep_tp_group": 8},
            "",
            "ep_tp_group is 8; of 2 (tp_group) × 2 (ep_group) it would be 4",
        ),
    ],
)
def test_context_parallelism_is_named_where_it_can_be_the_reason(
    write: Callable[..., Path], groups: dict[str, int], head: str, says: str
) -> None:
    path = write(*(comm("all_reduce", name, size, 8) for name, size in groups.items()), head=head)
    with pytest.raises(InputError) as caught:
        aicb_program(path)
    assert str(caught.value).endswith(says)


@pytest.mark.parametrize(
    ("lines", "head", "says"),
    [
        (
            [comm("all_reduce", "dp_group", 2, 8)],
            "[rank0 ~ rank99999999999]",
            "line 1: the last rank is '99999999999'; it must be a whole number from 0 to 262143",
        ),
        (
            [comm("all_reduce", "dp_group", 2, 8)],
            f"[rank0 ~ rank{'9' * 300}]",
            "line 1: the last rank is '9999",
        ),
        ([comm("all_reduce", "dp_group", 1 << 24, 8)], "", "line 2: comm_group_size is '16777216'"),
        (
            [comm("all_reduce", "dp_group", 1 << 17, 8), comm("all_reduce", "tp_group", 8, 8)],
            "",
            "1,048,576 ranks; at most 262,144 are read",
        ),
        (
            [comm("all_reduce", "dp_group", 2, 8)],
            "[rank0 ~ rank7]",
            "of 8 ranks it would be 8; context parallelism (cp), of which no line says",
        ),
        (
            [comm("all_reduce", "dp_group", 2, 8).replace("None,None,None,1", "0.087,0.1,0.2,1")],
            "",
            "line 2: all_reduce has a time, 0.087: this is the log of a run of AICB (…_log.csv)",
        ),
    ],
)
def test_what_cannot_be_is_said_before_ranks_are_listed(
    write: Callable[..., Path],
    call_mpisim: Callable[..., Any],
    lines: list[str],
    head: str,
    says: str,
) -> None:
    path = write(*lines, head=head)
    done = call_mpisim(["program", "import", path, "-o", path.with_suffix(".h5")])
    assert done.rc == 2
    (line,) = done.errors
    assert says in line
    assert str(path) in line


def test_too_many_ranks_for_option_and_text_workload(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="999,999,999 ranks; at most 262,144 are read"):
        aicb_program(write(comm("barrier", "all", 0, 0)), 999_999_999)
    text = tmp_path / "w.txt"
    text.write_text(f"DATA\n1\n{layer()}\n")
    with pytest.raises(InputError, match=r"w\.txt: 262,145 ranks; at most 262,144 are read"):
        import_program([text], 262_145)
    text.write_text(f"DATA all_gpus: 262145\n1\n{layer()}\n")
    with pytest.raises(InputError, match="all_gpus is '262145'; it must be a whole number from 0"):
        import_program([text])


def test_tables_that_do_not_say_the_sizes_of_groups(tmp_path: Path) -> None:
    """As workload/physical/micro_test/all_reduce_workload.csv of github:aliyun/aicb."""
    path = tmp_path / "all_reduce_workload.csv"
    header = COLUMNS.replace("comm_group_size,", "")
    path.write_text(f"{header}\nCommType.all_reduce,CommGroup.dp_group,4096,x,None,None,,,,,1\n")
    with pytest.raises(InputError, match="line 1: no column comm_group_size, as in tables of AI"):
        import_program([path])


def test_large_groups_are_listed_once(write: Callable[..., Path]) -> None:
    n = 1 << 15
    lines = [comm("barrier", "all", n, 0), comm("all_reduce", "tp_group", 2, 8)]
    program = aicb_program(write(*lines, head=f"[rank0 ~ rank{n - 1}]"))
    assert program.n_ranks == n
    assert len(program.communicators.names) == 1 + n // 2
    assert members(program, 5) == {"all": list(range(n)), "tp": [4, 5]}

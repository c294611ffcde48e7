"""Workloads of AICB, SimAI's benchmark: a table of what every rank does, one thing after another.

AICB (aliyun/aicb) writes such a table for DeepSpeed (ZeRO 1 to 3) and Megatron-LM, and runs it on
GPUs. A line is a communication of a group, or a product of two matrices. What its columns mean is
fixed by ``LogItem`` of log_analyzer/log.py, in which order ranks stand in groups by
``RankGenerator`` of utils/utils.py (tp-cp-ep-dp-pp), and sizes by workload_applyer.py: bytes of the
whole buffer, that of one rank for an all-to-all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ..base.errors import InputError, nearest
from ..base.frozen import frozen
from ..kernels.counted import RooflinePricer
from ..program import Operation, Phase, Program, ProgramBuilder
from ..traces.raw import open_text
from .rank_limit import MOST_RANKS, bounded_ranks

__all__ = ["HEADER", "AicbLine", "AicbWorkload", "aicb_program", "is_aicb", "read_aicb"]

HEADER = "comm_type,comm_group,comm_group_size,msg_size,stage"
"""How the line with the names of the columns begins."""

_HEADER_WITHOUT_SIZES = "comm_type,comm_group,msg_size,stage"
"""The same in tables of AICB 1.0, as those of workload/physical/micro_test."""

OPERATIONS: Mapping[str, Operation] = {
    "barrier": Operation.BARRIER,
    "broadcast": Operation.BROADCAST,
    "reduce": Operation.REDUCE,
    "all_reduce": Operation.ALL_REDUCE,
    "all_gather": Operation.ALL_GATHER,
    "all_gather_into_tensor": Operation.ALL_GATHER,
    "reduce_scatter": Operation.REDUCE_SCATTER,
    "reduce_scatter_tensor": Operation.REDUCE_SCATTER,
    "all_to_all": Operation.ALL_TO_ALL,
}
COMPUTATION, STEP_END, MESSAGES = "computation", "epoch_end", ("isend", "irecv")
GROUPS = ("tp_group", "dp_group", "ep_group", "ep_dp_group", "ep_tp_group", "pp_group", "all")
PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "step": Phase.OPTIMIZER}
"""Of lines, by the word with which their stage begins."""

BYTES = 2
"""Of an element: AICB computes and communicates in bf16 (workload_applyer.py)."""

_NO_CONTEXT = "context parallelism (cp), of which no line says the size, is not read"
_RANKS = re.compile(r"\[rank0 ~ rank(\d+)\]")
_SHAPES = re.compile(r"\(\([^()]*\), ?\([^()]*\)\)")
_STREAM = 0
_MOST_BYTES, _MOST_NS = 2**53, 10**15


class AicbLine(NamedTuple):
    """One line of the table.

    `number` is that of the line in the file, `kind` as in its first column, `group` as in the
    second, `members` the size of the group (0: not said). `shapes` are those of two matrices of a
    computation; `time` is what it takes in ns, if somebody measured it.
    """

    number: int
    kind: str
    group: str
    members: int
    bytes: int
    shapes: tuple[tuple[int, ...], ...]
    stage: str
    time: int | None


@frozen
class AicbWorkload:
    """A table.

    Attributes
    ----------
    path : Path
    n_ranks : int
        0 where the file does not say.
    setup : tuple of AicbLine
        What comes before the first step.
    steps : tuple of tuple of AicbLine
        The lines of each step.
    """

    path: Path
    n_ranks: int
    setup: tuple[AicbLine, ...]
    steps: tuple[tuple[AicbLine, ...], ...]


def is_aicb(head: bytes) -> bool:
    """Begin of a file → whether it is such a table."""
    lines = head[:400].decode("ascii", "replace").lstrip("\ufeff").splitlines()
    return any(line.startswith((HEADER, _HEADER_WITHOUT_SIZES)) for line in lines[:2])


def read_aicb(path: Path | str) -> AicbWorkload:
    """Read a table (``.csv``, plain or gzip).

    Raises
    ------
    InputError
        If it cannot be read or understood; the message names the line.
    """
    path = Path(path)
    try:
        lines = open_text(path).decode().splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{path}: no AICB workload: not a text file") from None
    ranks = _RANKS.match(lines[0])
    at = 1 if lines[0].startswith("[") else 0
    if len(lines) > at and lines[at].startswith(_HEADER_WITHOUT_SIZES):
        raise InputError(
            f"{path}: line {at + 1}: no column comm_group_size, as in tables of AICB 1.0 "
            "(micro_test): it does not say how many ranks communicate; generate it anew"
        )
    if len(lines) <= at or not lines[at].startswith(HEADER):
        raise InputError(f"{path}: line {at + 1}: no AICB workload: it must begin with {HEADER!r}")
    n_ranks = 0
    if ranks:
        last = _whole(path, 1, "the last rank", ranks[1], MOST_RANKS - 1)
        n_ranks = last + 1
    names = lines[at].split(",")
    parts: list[list[AicbLine]] = [[]]
    for number, text in enumerate(lines[at + 1 :], at + 2):
        if not text.strip():
            continue
        line = _line(path, number, text, names)
        if line.kind == STEP_END:
            parts.append([])
        else:
            parts[-1].append(line)
    filled = [tuple(part) for part in parts[1:] if part]
    # As AICB's own analysis has it: what comes before the first end of an epoch sets up.
    setup, steps = (tuple(parts[0]), tuple(filled)) if filled else ((), (tuple(parts[0]),))
    if not steps[0]:
        raise InputError(f"{path}: no line of a step")
    return AicbWorkload(path, n_ranks, setup, steps)


def _line(path: Path, number: int, text: str, names: list[str]) -> AicbLine:
    """Text of a line → the line; shapes hold commas that separate no columns."""
    shapes = _SHAPES.search(text)
    fields = _SHAPES.sub("0", text).split(",")
    if len(fields) != len(names):
        raise InputError(
            f"{path}: line {number}: {len(fields)} fields; there are {len(names)} columns"
        )
    row = dict(zip(names, fields, strict=True))
    kind = row["comm_type"].removeprefix("CommType.")
    known = (*OPERATIONS, COMPUTATION, STEP_END, *MESSAGES)
    if kind not in known:
        raise InputError(
            f"{path}: line {number}: unknown comm_type {kind!r}{nearest(kind, known)}; "
            f"allowed: {', '.join(known)}"
        )
    group = row["comm_group"].removeprefix("CommGroup.")
    if kind not in (COMPUTATION, STEP_END) and group not in GROUPS:
        raise InputError(
            f"{path}: line {number}: unknown comm_group {group!r}{nearest(group, GROUPS)}; "
            f"allowed: {', '.join(GROUPS)}"
        )
    time = row.get("_elapsed_time", "None")
    if kind != COMPUTATION and time not in ("", "None"):
        raise InputError(
            f"{path}: line {number}: {kind} has a time, {time}: this is the log of a run of AICB "
            "(…_log.csv), in ms; import the workload that it ran (…_workload.csv)"
        )
    return AicbLine(
        number,
        kind,
        group,
        _whole(path, number, "comm_group_size", row["comm_group_size"], MOST_RANKS),
        _whole(path, number, "msg_size", row["msg_size"], _MOST_BYTES),
        () if shapes is None else tuple(_sizes(path, number, shapes[0])),
        row["stage"],
        None
        if kind != COMPUTATION or time in ("", "None")
        else _whole(path, number, "_elapsed_time (ns)", time, _MOST_NS),
    )


def _sizes(path: Path, number: int, text: str) -> Iterator[tuple[int, ...]]:
    """Text of two shapes → the two."""
    for each in re.findall(r"\(([^()]*)\)", text):
        sizes = [size.strip() for size in each.split(",") if size.strip()]
        yield tuple(_whole(path, number, "a size in msg_size", size, 2**40) for size in sizes)


def _whole(path: Path, number: int, what: str, text: str, most: int) -> int:
    if text in ("", "None"):
        return 0
    try:
        value = float(text)
        whole = int(value)
    except (ValueError, OverflowError):
        value, whole = math.nan, -1
    if not 0 <= whole <= most or value != whole:
        raise InputError(
            f"{path}: line {number}: {what} is {text!r}; it must be a whole number from 0 to {most}"
        )
    return whole


# --- ranks ----------------------------------------------------------------------------------------


class _Groups:
    """Which ranks communicate: tensor-parallel ones side by side, then `expert`, then the rest.

    Parameters
    ----------
    workload : AicbWorkload
    lines : sequence of AicbLine
        Of the step that is made a program of.
    n_ranks : int
        0 where the user does not say.
    """

    def __init__(self, workload: AicbWorkload, lines: tuple[AicbLine, ...], n_ranks: int) -> None:
        path = workload.path
        said: dict[str, tuple[int, int]] = {}
        for line in (*workload.setup, *lines):
            if line.kind in (COMPUTATION, STEP_END) or line.group == "all" or not line.members:
                continue
            size, first = said.setdefault(line.group, (line.members, line.number))
            if size != line.members:
                raise InputError(
                    f"{path}: line {line.number}: comm_group_size of {line.group} is "
                    f"{line.members}; in line {first} it is {size}"
                )
        sizes = {group: size for group, (size, _) in said.items()}
        pipeline = sizes.get("pp_group", 1)
        messages = next((line.number for line in lines if line.kind in MESSAGES), None)
        if pipeline > 1 or messages is not None:
            at = messages or said["pp_group"][1]
            raise InputError(
                f"{path}: line {at}: a table of one pipeline stage does not say what the others "
                "do; AICB's text workload of the same job does (mpisim program import FILE.txt)"
            )
        self.tensor = sizes.get("tp_group", 1)
        if workload.n_ranks and n_ranks and workload.n_ranks != n_ranks:
            raise InputError(
                f"{path}: line 1 says {workload.n_ranks} ranks, but {n_ranks} are asked for"
            )
        self.n_ranks = bounded_ranks(
            workload.n_ranks or n_ranks or self.tensor * sizes.get("dp_group", 0), f"{path}"
        )
        if not self.n_ranks:
            raise InputError(f"{path}: the file does not say for how many ranks; give --ranks")
        by_option = n_ranks > 0 and not workload.n_ranks
        by_groups = not workload.n_ranks and not by_option
        self.data = max(1, self.n_ranks // self.tensor)
        self.expert = sizes.get("ep_group", 1)
        expected = {
            "dp_group": self.data,
            "ep_dp_group": self.data // self.expert,
            "ep_tp_group": self.tensor * self.expert,
        }
        divided = f"{self.tensor} (tp_group) × {self.expert} (ep_group)"
        if self.data * self.tensor != self.n_ranks or self.data % self.expert:
            raise InputError(
                f"{path}: {self.n_ranks} ranks cannot be divided into groups of {divided}"
                + _reason(by_option, by_groups)
            )
        for group, size in expected.items():
            found = sizes.get(group, size)
            if found == size:
                continue
            what = f"{path}: line {said[group][1]}: comm_group_size of {group} is {found}"
            if group == "ep_tp_group":
                raise InputError(f"{what}; of {divided} it would be {size}")
            # Context-parallel ranks are among all ranks and those with an expert, not in dp_group.
            times = found % size if by_groups else size % found
            raise InputError(
                f"{what}; of {self.n_ranks} ranks it would be {size}"
                + _reason(by_option, times == 0)
            )

    def members(self, group: str, rank: int) -> range:
        """Return the ranks of a group that a rank is in, in ascending order."""
        tensor, expert = self.tensor, self.expert
        tp, dp = rank % tensor, rank // tensor
        block = dp - dp % expert  # the first that shares experts with it
        if group == "all":
            return range(self.n_ranks)
        if group == "tp_group":
            return range(dp * tensor, (dp + 1) * tensor)
        if group == "ep_tp_group":
            return range(block * tensor, (block + expert) * tensor)
        if group == "ep_dp_group":
            return range(dp % expert * tensor + tp, self.n_ranks, expert * tensor)
        if group == "dp_group":
            return range(tp, self.n_ranks, tensor)
        return range(block * tensor + tp, (block + expert) * tensor, tensor)


def _reason(by_option: bool, by_context: bool) -> str:
    """Whether --ranks set the number of ranks, or context parallelism can → end of a message."""
    if by_option:
        return "; --ranks set their number"
    return f"; {_NO_CONTEXT}" if by_context else ""


# --- program --------------------------------------------------------------------------------------


def aicb_program(
    workload: AicbWorkload | Path | str, n_ranks: int = 0, counts: RooflinePricer | None = None
) -> Program:
    """AICB's table → program of its last step, communications unpriced. Local.

    As AICB runs it: every line waits for the one before.

    Parameters
    ----------
    workload : AicbWorkload or path
    n_ranks : int
        Where the file does not say.
    counts : RooflinePricer, optional
        Prices products that have no time.

    Raises
    ------
    InputError
        If the file cannot be read, or its sizes do not fit together.
    """
    if not isinstance(workload, AicbWorkload):
        workload = read_aicb(workload)
    lines = workload.steps[-1]
    groups = _Groups(workload, lines, n_ranks)
    builder = ProgramBuilder()
    rows = builder.table("rank")
    slots: dict[str, int] = {}
    before: list[int] = []
    for line in lines:
        word = line.stage.partition(".")[0]
        phase = next((of for begin, of in PHASES.items() if word.startswith(begin)), Phase.NONE)
        rows.tags(phase=phase)
        if line.kind == COMPUTATION:
            name = line.stage or COMPUTATION
            before = [rows.kernel(name, _STREAM, _lasts(workload.path, line, counts), waits=before)]
        elif len(groups.members(line.group, 0)) > 1 and (line.bytes or line.kind == "barrier"):
            slot = slots.setdefault(line.group, len(slots))
            name = f"{line.stage or line.kind} {line.group.removesuffix('_group')}"
            operation = OPERATIONS[line.kind]
            before = [
                rows.collective(operation, slot, 1 + slot, line.bytes, name=name, waits=before)
            ]
    builder.add_table(rows.build())
    for rank in range(groups.n_ranks):
        own = [
            builder.communicator(groups.members(group, rank), group.removesuffix("_group"))
            for group in slots
        ]
        builder.add_rank(0, own)
    attributes = {"source": "AICB"}
    if workload.setup:
        attributes["set-up"] = f"{len(workload.setup):,} lines before the first step are left out"
    if len(workload.steps) > 1:
        attributes["step"] = f"the last of {len(workload.steps):,}"
    return builder.build(
        attributes | ({} if counts is None else counts.attributes("the shapes of products"))
    )


def _lasts(path: Path, line: AicbLine, counts: RooflinePricer | None) -> int:
    """Return how long a product takes, in ps."""
    if line.time is not None:
        return line.time * 1000
    if len(line.shapes) != 2 or not all(line.shapes):
        raise InputError(
            f"{path}: line {line.number}: a computation without _elapsed_time, whose msg_size is "
            "not the shapes of two matrices"
        )
    left, right = line.shapes
    if counts is None:
        raise InputError(
            f"{path}: line {line.number}: a computation without _elapsed_time; name a GPU (--gpu) "
            "whose roofline prices the product"
        )
    if left[-1] != right[0]:
        raise InputError(
            f"{path}: line {line.number}: a product of {left} and {right}: {left[-1]} columns and "
            f"{right[0]} rows"
        )
    height, width = math.prod(left[:-1]), math.prod(right[1:])
    elements = height * left[-1] + math.prod(right) + height * width
    return counts.duration(
        line.stage or COMPUTATION, 2 * height * left[-1] * width, BYTES * elements
    )

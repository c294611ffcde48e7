"""Outputs of nccl-tests and rccl-tests, printed or in JSON (option ``-J``) → runs.

A printed file may hold several runs, what a launcher prints before each line, messages of NCCL's,
and anything else around them. A run is a table, which starts at its header ::

    #       size         count      type   redop    root     time   algbw   busbw #wrong   …

and the lines before it since the table before: the program's name, in its own words or in the
command that starts it; the list of devices; the version of the library; variables of NCCL's. The
columns are read by their names: older versions have no root, or no reduction, and ``error`` for
``#wrong``; there may be no times in place, or columns after them. Times are those out of place,
which come first.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mpisim.base.errors import InputError

from .runs import ELEMENT_BYTES, ListedRank, ResultRow, Run, settings_of

__all__ = ["is_json", "is_output", "read_json", "read_output", "version_text"]

TABLE_HEADER = re.compile(r"(?:^|[#\s:>|)])size\s+count\s+type\b(.*)$")

RANK_LINE = re.compile(
    r"#\s*Rank\s+(?P<rank>\d+)\s+(?:Group\s+(?P<group>\d+)\s+)?Pid\s+\d+\s+on\s+(?P<host>\S+)\s+"
    r"device\s+(?P<device>\d+\s+\[[^\]]*\])\s*(?P<gpu>.*?)\s*$"
)

PROGRAM_NAME = re.compile(
    r"(?<![A-Za-z0-9_])(all_reduce|all_gather|reduce_scatter|alltoallv?|sendrecv|broadcast|reduce|"
    r"gather|scatter|hypercube)_perf(?:_mpi)?\b"
)

TEST_STARTS = "# Collective test starting:"

TEST_CONCLUDED = "Collective test concluded"

PARAMETERS_LINE = re.compile(r"# nThread \d+ nGpus \d+ ")

AGGREGATED_ITERATIONS = re.compile(r"\bagg iters: (\d+)")

LIBRARY_VERSION = re.compile(r"\b[nr]ccl-library=(\d+)")

PRINTED_VERSION = re.compile(r"\b[NR]CCL version\s*:?\s*(\d+\.\d+(?:\.\d+)?)")

NCCL_VARIABLE = re.compile(
    r"\b(NCCL_[A-Z0-9_]+)(?:=| set by environment to )"
    r"(\"[^\"]*\"|'[^']*'|(?:(?!\\?,[A-Z_]+=)[^\s\"';])+)"
)

ROW_LINE = re.compile(rf"(?:^|[\s:>|)])(\d+)\s+(\d+)\s+({'|'.join(ELEMENT_BYTES)})\b(.*)$")

NETWORK_MESSAGES = (
    (re.compile(r"provider is efa|NET/OFI.*\befa\b", re.IGNORECASE), "EFA"),
    (re.compile(r"NET/(?:GPUDirect)?TCPXO?\b|NET/FasTrak|Using network FasTrak"), "GPUDirect-TCPX"),
    (re.compile(r"NET/OFI.*\bcxi\b", re.IGNORECASE), "Slingshot"),
    (re.compile(r"NET/IB\b.*?:\d+/RoCE"), "RoCE"),
    (re.compile(r"NET/IB\b.*?:\d+/IB"), "InfiniBand"),
    (re.compile(r"Using network Socket"), "TCP sockets"),
)
"""Messages of NCCL's (``NCCL_DEBUG=INFO``) that tell the network, in words of `fabric_of`."""


def is_output(text: str) -> bool:
    """Whether a text has a table of nccl-tests, or at least the lines before one."""
    return any(
        TABLE_HEADER.search(line) or RANK_LINE.search(line) or PARAMETERS_LINE.search(line)
        for line in text.split("\n")
    )


def read_output(text: str, file: str) -> list[Run]:
    """Read the runs of an output.

    Parameters
    ----------
    text : str
    file : str
        Its path.

    Raises
    ------
    InputError
        If it has no table, a table has other columns, or no row can be read.
    """
    runs = list(_runs(text, file))
    if not runs:
        last = text.count("\n") + 1
        raise InputError(
            f"{file}, line {last}: the output ends before a table of nccl-tests "
            "('#  size  count  type  …  time  algbw  busbw') starts"
        )
    if not any(each.rows for each in runs):
        raise InputError(
            f"{runs[0].where}: the table of nccl-tests that starts here has no row of size, count, "
            "type, time, algbw and busbw"
        )
    return runs


class _Preamble:
    """Facts from the lines before a table."""

    def __init__(self) -> None:
        self.programs: set[str] = set()
        self.started = ""
        self.ranks: list[ListedRank] = []
        self.version = ""
        self.library = "nccl"
        self.network = ""
        self.aggregated = 1
        self.variables: list[tuple[str, str]] = []

    def read(self, line: str) -> None:
        """Take the facts of a line."""
        rank = RANK_LINE.search(line)
        if rank:
            number, group = int(rank["rank"]), int(rank["group"] or 0)
            self.ranks.append(ListedRank(number, group, rank["host"], rank["device"], rank["gpu"]))
            return
        if "rccl" in line.casefold():
            self.library = "rccl"
        version, linked = PRINTED_VERSION.search(line), LIBRARY_VERSION.search(line)
        if version:
            self.version = version[1]
        elif linked and not self.version:
            self.version = version_text(int(linked[1]))
        if PARAMETERS_LINE.search(line):
            aggregated = AGGREGATED_ITERATIONS.search(line)
            self.aggregated = int(aggregated[1]) if aggregated else 1
        if not self.network:
            self.network = next(
                (name for words, name in NETWORK_MESSAGES if words.search(line)), ""
            )
        self.variables += [
            (name, value.strip("\"'.").replace("\\", ""))
            for name, value in NCCL_VARIABLE.findall(line)
        ]
        names = set(PROGRAM_NAME.findall(line))
        if TEST_STARTS in line and names:
            self.started = names.pop()
        elif TEST_CONCLUDED not in line:
            self.programs |= names

    @property
    def program(self) -> str:
        """The program that ran, if the lines name exactly one."""
        return self.started or (min(self.programs) if len(self.programs) == 1 else "")

    def run(self, file: str, line: int, rows: list[ResultRow], cut: int) -> Run:
        """Return the run with the rows of its table."""
        return Run(
            file=file,
            line=line,
            program=self.program,
            ranks=tuple(self.ranks),
            version=self.version,
            library=self.library,
            settings=settings_of(self.variables),
            network=self.network,
            aggregated=self.aggregated,
            rows=tuple(rows),
            cut=cut,
        )


def _starts_next_run(line: str) -> bool:
    """Whether a line after a table belongs to the next run."""
    if TEST_CONCLUDED in line:
        return False
    return any(
        each.search(line) for each in (PARAMETERS_LINE, RANK_LINE, LIBRARY_VERSION, PROGRAM_NAME)
    )


def _runs(text: str, file: str) -> Iterator[Run]:
    before = _Preamble()
    start = 0  # the line of the header of the table that is open
    columns: tuple[str, ...] = ()
    rows: list[ResultRow] = []
    cut = 0
    for number, line in enumerate(text.splitlines(), 1):
        header = TABLE_HEADER.search(line)
        if start and (rows or cut) and (header or _starts_next_run(line)):
            yield before.run(file, start, rows, cut)
            after = _Preamble()
            if header:  # the same program once more, or unstated
                after.ranks, after.version = before.ranks, before.version
            before, start, rows, cut = after, 0, [], 0
        if header:
            start, columns = number, _columns(header[1], file, number)
            continue
        found = ROW_LINE.search(line) if start else None
        if found:
            row = _row(number, found, columns)
            cut += row is None
            rows += [] if row is None else [row]
        elif not rows:
            try:
                before.read(line)
            except ValueError as error:  # a number of thousands of digits
                raise InputError(f"{file}, line {number}: {error}") from error
    if start:
        yield before.run(file, start, rows, cut)


def _columns(text: str, file: str, line: int) -> tuple[str, ...]:
    """Return the names of the columns after the type, up to those out of place."""
    names = text.split()
    if "cputime" in names:
        raise InputError(
            f"{file}, line {line}: the table has times of the CPU (option -C); times of the "
            "communications are needed"
        )
    end = names.index("time") if "time" in names else len(names)
    unknown = [each for each in names[:end] if each not in ("redop", "root")]
    if unknown or names[end : end + 3] != ["time", "algbw", "busbw"]:
        raise InputError(
            f"{file}, line {line}: no known table of nccl-tests: its columns are size count type "
            f"{' '.join(names)}; known: size count type [redop] [root] time algbw busbw [#wrong]"
        )
    return tuple(names[: end + 4])


def _row(line: int, found: re.Match[str], columns: Sequence[str]) -> ResultRow | None:
    """Return a row, or None where it has no time."""
    words = found[4].split()
    values: dict[str, str] = {}
    for name in columns:
        if name == "redop" and words and re.fullmatch(r"[-+\d.eE]+", words[0]):
            continue  # left blank where the operation has none
        if words:
            values[name] = words.pop(0)
    reduction, root = values.get("redop"), values.get("root")
    if "redop" in columns and "redop" not in values:
        reduction = "none"
    try:
        wrong = float(values.get("#wrong", "0").replace("N/A", "0"))
        return ResultRow(
            line=line,
            size=int(found[1]),
            count=int(found[2]),
            kind=found[3],
            reduction=reduction,
            root=None if root is None else int(root),
            seconds=float(values["time"]) * 1e-6,
            bandwidth=float(values["algbw"]) * 1e9,
            bus=float(values["busbw"]) * 1e9,
            wrong=wrong,
        )
    except (KeyError, ValueError):
        return None


def version_text(number: int) -> str:
    """NCCL's number of a version → the version.

    Examples
    --------
    >>> version_text(22707), version_text(2708)
    ('2.27.7', '2.7.8')
    """
    unit = 10000 if number >= 10000 else 1000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"


ENVIRONMENT_ENTRY = re.compile(r"NCCL_[A-Z0-9_]+=")


def is_json(text: str) -> bool:
    """Whether a text starts as a JSON object does."""
    return text.lstrip().startswith("{")


def read_json(text: str, file: str) -> list[Run]:
    """Read a file of nccl-tests' option ``-J``; several may follow one another.

    Parameters
    ----------
    text : str
    file : str
        Its path.

    Raises
    ------
    InputError
        If it is not JSON, or not what nccl-tests writes.
    """
    decoder = json.JSONDecoder()
    runs: list[Run] = []
    at = 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        line = text.count("\n", 0, at) + 1
        try:
            contents, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{file}, line {line}: not valid JSON: {error}") from error
        try:
            runs.append(_json_run(contents, file, line))
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            why = f"no {error} where it should be" if isinstance(error, KeyError) else str(error)
            raise InputError(
                f"{file}, line {line}: not a JSON file of nccl-tests (option -J): {why}"
            ) from error
    return runs


def _json_run(contents: Mapping[str, Any], file: str, line: int) -> Run:
    config, results = contents["config"], contents["results"]
    programs = PROGRAM_NAME.findall(" ".join(map(str, contents.get("args", [])[:1])))
    variables = [
        tuple(each.split("=", 1))
        for each in contents.get("env", [])
        if ENVIRONMENT_ENTRY.match(str(each))
    ]
    ranks = tuple(
        ListedRank(
            number=int(each["rank"]),
            group=int(each["group"]),
            host=str(each["hostname"]),
            device=f"{each['device']} [{each['device_hex']}]",
            gpu=str(each["device_info"] or ""),
        )
        for each in config["devices"]
    )
    found = [_json_row(each, line, i) for i, each in enumerate(results, 1)]
    return Run(
        file=file,
        line=line,
        program=programs[0] if programs else "",
        ranks=ranks,
        devices=_json_gpus(config, ranks),
        version=version_text(int(contents["nccl_version"])),
        settings=settings_of((name, value) for name, value in variables),
        aggregated=int(config.get("aggregated_iterations", 1)),
        rows=tuple(each for each in found if each is not None),
        cut=found.count(None),
    )


def _json_gpus(config: Mapping[str, Any], ranks: tuple[ListedRank, ...]) -> int:
    """Return the GPUs of the group of rank 0.

    The file lists the first device of every process; each has as many as threads times GPUs.
    """
    first = min(ranks, key=lambda each: each.number)
    processes = sum(each.group == first.group for each in ranks)
    return processes * int(config["nthreads"]) * int(config["ngpus"])


def _json_row(entry: Mapping[str, Any], line: int, number: int) -> ResultRow | None:
    """Return a row, or None where it has no time out of place."""
    times = entry["out_of_place"]
    if times is None:
        return None
    if "time" not in times:
        raise ValueError(
            "its times are of the CPU (option -C); times of the communications are needed"
        )
    seconds = float(times["time"]) * 1e-6
    if not 0 <= seconds < math.inf or int(entry["size"]) < 0:
        raise ValueError(f"row {number} has {entry['size']} bytes in {times['time']} us")
    return ResultRow(
        line=line + number,
        size=int(entry["size"]),
        count=int(entry["count"]),
        kind=str(entry["type"]),
        reduction=str(entry["redop"]),
        root=int(entry["root"]),
        seconds=seconds,
        bandwidth=float(times["alg_bw"]) * 1e9,
        bus=float(times["bus_bw"]) * 1e9,
        wrong=float(times.get("nwrong") or 0),
    )

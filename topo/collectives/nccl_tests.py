"""Outputs of nccl-tests and rccl-tests as they are printed, to runs (`run.Run`).

A file may hold several runs, what a launcher prints before each line, messages of NCCL's, and
anything else around them. A run is a table, which starts at its header ::

    #       size         count      type   redop    root     time   algbw   busbw #wrong   …

and what stands before it since the table before: the program's name, in its own words or in the
command that starts it; the list of devices; the version of the library; variables of NCCL's. The
columns are read by their names: older versions have no root, or no reduction, and ``error`` for
``#wrong``; there may be no times in place, or columns after them. Times are those out of place,
which stand first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mpisim.base.errors import InputError

from .run import WIDTHS, Rank, Row, Run, settings_of

__all__ = ["is_output", "read_output", "version_text"]

HEADER = re.compile(r"(?:^|[#\s:>|)])size\s+count\s+type\b(.*)$")
RANK = re.compile(
    r"#\s*Rank\s+(?P<rank>\d+)\s+(?:Group\s+(?P<group>\d+)\s+)?Pid\s+\d+\s+on\s+(?P<host>\S+)\s+"
    r"device\s+(?P<device>\d+\s+\[[^\]]*\])\s*(?P<gpu>.*?)\s*$"
)
PROGRAM = re.compile(
    r"(?<![A-Za-z0-9_])(all_reduce|all_gather|reduce_scatter|alltoallv?|sendrecv|broadcast|reduce|"
    r"gather|scatter|hypercube)_perf(?:_mpi)?\b"
)
STARTING = "# Collective test starting:"
CONCLUDED = "Collective test concluded"
CALLED = re.compile(r"# nThread \d+ nGpus \d+ ")
AGGREGATED = re.compile(r"\bagg iters: (\d+)")
LIBRARY = re.compile(r"\b[nr]ccl-library=(\d+)")
VERSION = re.compile(r"\b[NR]CCL version\s*:?\s*(\d+\.\d+(?:\.\d+)?)")
VARIABLE = re.compile(
    r"\b(NCCL_[A-Z0-9_]+)(?:=| set by environment to )"
    r"(\"[^\"]*\"|'[^']*'|(?:(?!\\?,[A-Z_]+=)[^\s\"';])+)"
)
ROW = re.compile(rf"(?:^|[\s:>|)])(\d+)\s+(\d+)\s+({'|'.join(WIDTHS)})\b(.*)$")

NETWORKS = (
    (re.compile(r"provider is efa|NET/OFI.*\befa\b", re.IGNORECASE), "EFA"),
    (re.compile(r"NET/(?:GPUDirect)?TCPXO?\b|NET/FasTrak|Using network FasTrak"), "GPUDirect-TCPX"),
    (re.compile(r"NET/OFI.*\bcxi\b", re.IGNORECASE), "Slingshot"),
    (re.compile(r"NET/IB\b.*?:\d+/RoCE"), "RoCE"),
    (re.compile(r"NET/IB\b.*?:\d+/IB"), "InfiniBand"),
    (re.compile(r"Using network Socket"), "TCP sockets"),
)
"""Messages of NCCL's (``NCCL_DEBUG=INFO``) that tell the network, in words of `fabric_of`."""


def is_output(text: str) -> bool:
    """Whether a text has a table of nccl-tests, or at least what stands before one."""
    return any(
        HEADER.search(line) or RANK.search(line) or CALLED.search(line) for line in text.split("\n")
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


class _Before:
    """What is said before a table."""

    def __init__(self) -> None:
        self.programs: set[str] = set()
        self.started = ""
        self.ranks: list[Rank] = []
        self.version = ""
        self.library = "nccl"
        self.network = ""
        self.aggregated = 1
        self.variables: list[tuple[str, str]] = []

    def read(self, line: str) -> None:
        """Take what a line says."""
        rank = RANK.search(line)
        if rank:
            number, group = int(rank["rank"]), int(rank["group"] or 0)
            self.ranks.append(Rank(number, group, rank["host"], rank["device"], rank["gpu"]))
            return
        if "rccl" in line.casefold():
            self.library = "rccl"
        version, linked = VERSION.search(line), LIBRARY.search(line)
        if version:
            self.version = version[1]
        elif linked and not self.version:
            self.version = version_text(int(linked[1]))
        if CALLED.search(line):
            aggregated = AGGREGATED.search(line)
            self.aggregated = int(aggregated[1]) if aggregated else 1
        if not self.network:
            self.network = next((name for words, name in NETWORKS if words.search(line)), "")
        self.variables += [
            (name, value.strip("\"'.").replace("\\", "")) for name, value in VARIABLE.findall(line)
        ]
        names = set(PROGRAM.findall(line))
        if STARTING in line and names:
            self.started = names.pop()
        elif CONCLUDED not in line:
            self.programs |= names

    @property
    def program(self) -> str:
        """The program that ran, if the lines leave no doubt."""
        return self.started or (min(self.programs) if len(self.programs) == 1 else "")

    def run(self, file: str, line: int, rows: list[Row], cut: int) -> Run:
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


def _begins(line: str) -> bool:
    """Whether a line after a table belongs to the next run."""
    if CONCLUDED in line:
        return False
    return any(each.search(line) for each in (CALLED, RANK, LIBRARY, PROGRAM))


def _runs(text: str, file: str) -> Iterator[Run]:
    before = _Before()
    start = 0  # the line of the header of the table that is open
    columns: tuple[str, ...] = ()
    rows: list[Row] = []
    cut = 0
    for number, line in enumerate(text.splitlines(), 1):
        header = HEADER.search(line)
        if start and (rows or cut) and (header or _begins(line)):
            yield before.run(file, start, rows, cut)
            after = _Before()
            if header:  # the same program once more, or what nobody says
                after.ranks, after.version = before.ranks, before.version
            before, start, rows, cut = after, 0, [], 0
        if header:
            start, columns = number, _columns(header[1], file, number)
            continue
        found = ROW.search(line) if start else None
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


def _row(line: int, found: re.Match[str], columns: Sequence[str]) -> Row | None:
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
        return Row(
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
    """Return NCCL's version from its number.

    Examples
    --------
    >>> version_text(22707), version_text(2708)
    ('2.27.7', '2.7.8')
    """
    unit = 10000 if number >= 10000 else 1000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"

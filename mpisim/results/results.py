"""Results of a run: small tables as numpy arrays, and the timeline of every row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import distinct
from ..base.errors import InputError, UsageError, nearest
from ..base.frozen import frozen
from ..base.hdf5 import READ_ERRORS, describe_damage
from ..engine.critical_path import CriticalPath
from ..program import Communicators
from .link_use import LinkUse
from .sensitivities import Sensitivities
from .step_parts import StepParts
from .step_times import Recording

if TYPE_CHECKING:
    from h5py import File

__all__ = ["SECONDS", "Results", "SharedRows", "Timeline"]

SECONDS = 1e-12
"""Seconds in a picosecond."""

Columns = Mapping[str, NDArray[Any]]


class SharedRows(NamedTuple):
    """The rows that ranks of a class share, and the communicators in which they differ."""

    representative: NDArray[np.int32]
    """Rank whose rows are in the file, of each rank."""
    slot_index: NDArray[np.int64]
    slots: NDArray[np.int32]
    """As in a program: the communicators of each rank, by slot."""

    def communicators(self, rank: int, column: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the column of a rank, given that of its representative; -1: none.

        Parameters
        ----------
        rank : int
        column : int32, shape (n,)
            Communicator of each row of the representative.

        Returns
        -------
        int32, shape (n,)
        """
        there, here = (
            self.slots[self.slot_index[r] : self.slot_index[r + 1]]
            for r in (self.representative[rank], rank)
        )
        if not len(here):
            return column
        order = np.argsort(there)
        slot = order[np.searchsorted(there[order], column).clip(max=len(order) - 1)]
        return np.where(column < 0, column, here[slot])


class Timeline:
    """Every row of every rank, read from the file on request.

    Ranks of one class share the rows of their representative, which alone are in the file.

    Columns: begin, end, wire (ps, see `Run`), binding, kind, stream, name (index into `names`),
    communicator (-1: none), bytes (-1: unknown), phase, layer, micro_batch, step.
    """

    def __init__(
        self,
        file: File,
        path: Path,
        names: tuple[str, ...],
        offset: NDArray[np.int64],
        rows: NDArray[np.int64],
        shared: SharedRows,
    ) -> None:
        self._group = file["timeline"]
        self._path = path
        self._offset = offset
        self._rows = rows
        self._shared = shared
        self.names = names

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the file has, of one entry a row."""
        return tuple(c for c in self._group if self._group[c].attrs.get("column", False))

    def __getitem__(self, column: str) -> NDArray[Any]:
        """Return a column over all representatives, in the order of the file."""
        return self._read(column, slice(None))

    def __len__(self) -> int:
        return int(self._rows[distinct(self._shared.representative)].sum())

    def rank(self, rank: int) -> dict[str, NDArray[Any]]:
        """Return all columns of one rank, in the order of its rows."""
        if not 0 <= rank < len(self._offset):
            raise UsageError(
                f"there is no rank {rank}; there are ranks 0 to {len(self._offset) - 1}"
            )
        first = int(self._offset[rank])
        rows = slice(first, first + int(self._rows[rank]))
        found = {column: self._read(column, rows) for column in self.columns}
        found["communicator"] = self._shared.communicators(rank, found["communicator"])
        return found

    def _read(self, column: str, rows: slice) -> NDArray[Any]:
        if not self._group:
            raise UsageError("the results file is closed; read the timeline before")
        if column not in self.columns:
            raise KeyError(f"no column '{column}'{nearest(column, self.columns)}")
        try:
            values: NDArray[Any] = self._group[column][rows]
        except READ_ERRORS as error:
            raise InputError(
                f"{self._path}: timeline/{column}: {describe_damage(error)}"
            ) from error
        return values.view(np.uint8) if values.dtype == np.uint8 else values  # without names


@frozen(eq=False)
class Results:
    """The result of one run. Times in the tables are int64 ps.

    Made by `collect` from a run, or by `open_results` from a file. Only with the latter is there a
    `timeline`; use it as a context manager, or `close` it.

    Attributes
    ----------
    step_time_ps : int
        The latest end of any rank; of a recording, the mean time of its steps.
    digest : str
    n_processes : int
        How many processes simulated.
    rounds : int
        Exchanges between them.
    mode : str
        "dataflow" where no communications can share links, else "relaxation", "events" or, on
        several processes, "windows".
    ranks : mapping of str to array, shape (n_ranks,)
        end, process, class, rows, and `BREAKDOWN` of `mpisim.results.accounting`.
    classes : mapping of str to array, shape (n_classes,)
        Equivalence classes of ranks: representative (the rank that was simulated), count, apart (a
        `SplitReason`: why the class differs from the largest one of the same table), table, speed,
        start. A run that was not folded has a class for each rank.
    steps : mapping of str to array
        rank, step (-1: none given), duration.
    kernels : mapping of str to array
        name (texts), kind, count, total, longest; the largest total first.
    communications : mapping of str to array
        communicator, operation, size (members), count, bytes (over all counts; -1 unknown), wire
        and waiting (ps, added up over members), bandwidth (bytes/s: bytes of a communication
        over its wire time; NaN unknown), bus_bandwidth (the same times what a rank sends per byte
        in a ring, as nccl-tests has it), limit (texts: what bounds one of the mean size, alone on
        the network; empty where no network priced it); the largest wire + waiting first.
    links : LinkUse
        How links that can be full were used.
    communicators : Communicators
    critical_path : CriticalPath or None
        Of the step shown; times from the begin of the run.
    recorded : Recording or None
        The steps of a recording, and which of them the tables and the path are about: `ranks`
        (end: from its begin), `kernels`, `communications`.
    parts : StepParts or None
        The step of each class of ranks, taken apart. None: a file of an earlier mpisim.
    sensitivities : Sensitivities or None
        Of a prediction: what the step time depends on.
    experiment : str
        The text of the experiment, or empty.
    origin : str
        What `mpisim.export` simulates it again from, as JSON, or empty: the experiment with the
        absolute paths of its files (`mpisim.experiment.serialization`), or the files and changes of
        a replay (`mpisim.replay.origin`).
    seed : int
    creator : str
    versions : mapping of str to str
    attributes : mapping
        Whatever the maker of the program says of the result: assumptions, uncertainty.
    program : mapping of str to str
        Where the program came from.
    wall : mapping of str to float
        Wall-clock seconds of the phases of the run on its first process.
    timeline : Timeline or None
    path : Path or None
        The file that this is in, written or read.
    """

    step_time_ps: int
    digest: str
    n_processes: int
    rounds: int
    mode: str
    ranks: Columns
    classes: Columns
    steps: Columns
    kernels: Columns
    communications: Columns
    communicators: Communicators
    links: LinkUse
    critical_path: CriticalPath | None
    recorded: Recording | None = None
    parts: StepParts | None = None
    sensitivities: Sensitivities | None = None
    experiment: str = ""
    origin: str = ""
    seed: int = 0
    creator: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    program: Mapping[str, str] = field(default_factory=dict)
    wall: Mapping[str, float] = field(default_factory=dict)
    timeline: Timeline | None = None
    path: Path | None = None
    close: Callable[[], None] = field(default=lambda: None, repr=False)

    @property
    def step_time(self) -> float:
        """The step time in seconds."""
        return self.step_time_ps * SECONDS

    @property
    def shown_ps(self) -> int:
        """Time of the step that the tables are about, in ps."""
        return self.step_time_ps if self.recorded is None else self.recorded.shown_ps

    @property
    def rank_numbers(self) -> list[int]:
        """Number of each rank in its job: of a recording, as the files number them."""
        if self.recorded is None or "ranks" not in self.program:
            return list(range(self.n_ranks))
        return [int(number) for number in self.program["ranks"].split()]

    @property
    def n_ranks(self) -> int:
        """Number of simulated ranks."""
        return len(self.ranks["end"])

    @property
    def n_classes(self) -> int:
        """Number of classes of ranks; of ranks, if each was simulated itself."""
        return len(self.classes["representative"])

    @property
    def rank_steps(self) -> dict[int, dict[int, float]]:
        """Seconds of each step of each rank; step -1: none given."""
        found: dict[int, dict[int, float]] = {}
        columns = (self.steps[c].tolist() for c in ("rank", "step", "duration"))
        for rank, step, duration in zip(*columns, strict=True):
            found.setdefault(rank, {})[step] = duration * SECONDS
        return found

    def __enter__(self) -> Results:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

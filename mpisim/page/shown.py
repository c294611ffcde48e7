"""What a page needs of a run beside its results, and the groups of ranks that it distinguishes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.frozen import frozen
from ..base.rank_ranges import ranges_text
from ..engine import Run
from ..prediction.prepared import PreparedExperiment
from ..program import Program
from ..results import Results

if TYPE_CHECKING:
    from ..engine.repetition import Repetition
    from ..export import ResimulatedRun
    from ..simulate import Simulated

__all__ = ["MOST_GROUPS", "RankGroups", "ShownRun", "groups_of"]

MOST_GROUPS = 32
"""Most groups of ranks that are distinguished where they are no pipeline stages."""
MOST_STAGES = 128
"""Most pipeline stages that are distinguished."""
OF_KIND = ("table", "speed", "start")
"""What ranks that do the same have in common, of `Results.classes`."""

Ints = NDArray[np.int64]


@frozen(eq=False)
class ShownRun:
    """A run as one process holds it, with what tells more of it than its results do.

    Attributes
    ----------
    run : Run
    program : Program or None
        What was run, before kernels that overlap communications were slowed; None: as `run` has it.
    prepared : PreparedExperiment or None
        Of a model's step: it knows pipeline stages and memory.
    repetition : Repetition or None
        How the step follows from `run`, where rounds of micro-batches repeat.
    """

    run: Run
    program: Program | None = None
    prepared: PreparedExperiment | None = None
    repetition: Repetition | None = None

    @classmethod
    def of(cls, source: Simulated | ResimulatedRun) -> ShownRun:
        """Return what a page needs of a run that was simulated just now, or again."""
        prepared = source.prepared if isinstance(source.prepared, PreparedExperiment) else None
        return cls(source.run, source.program, prepared, source.repetition)

    @property
    def stages(self) -> Ints | None:
        """Pipeline stage of each rank, shape (n_ranks,); None where there is one or none."""
        if self.prepared is None:
            return None
        stages = self.prepared.workload.layout.grid.stage
        return stages.astype(np.int64) if stages.any() else None

    @property
    def work(self) -> Ints:
        """Number of what each rank does, shape (n_ranks,): tables but for their durations.

        Where kernels are slowed by what runs beside them, ranks that do the same have tables of
        their own, which ones do is a matter of folding, and each process holds those of its ranks.
        """
        program = self.run.program if self.program is None else self.program
        numbers: dict[int, int] = {}
        of_table = [
            numbers.setdefault(i if table is None else id(table.structure), len(numbers))
            for i, table in enumerate(program.tables)
        ]
        return np.array(of_table, np.int64)[program.table]


class RankGroups(NamedTuple):
    """Ranks that the page distinguishes: pipeline stages, or else ranks that do the same.

    Attributes
    ----------
    titles : tuple of str
    of_rank : int64, shape (n_ranks,)
        The group of each rank; -1 where there are too many groups to show.
    shown : tuple of int
        One rank of each group: that with most of the critical path, else the lowest of those that
        do what most of the group do.
    stages : tuple of int
        Pipeline stage of each group; -1 where there is one stage or none.
    on_path : tuple of int
        Time of the critical path on the shown rank of each group, in ps.
    left_out : int
        Groups that there are beside these.
    """

    titles: tuple[str, ...]
    of_rank: Ints
    shown: tuple[int, ...]
    stages: tuple[int, ...]
    on_path: tuple[int, ...]
    left_out: int

    @property
    def sizes(self) -> Ints:
        """Ranks of each group, shape (n,)."""
        return np.bincount(self.of_rank[self.of_rank >= 0], minlength=len(self.titles))


def groups_of(results: Results, shown: ShownRun | None) -> RankGroups:
    """Results → the groups of ranks to distinguish. Local.

    They are the same for any number of processes, folded or not, which classes of ranks are not.

    Parameters
    ----------
    results : Results
    shown : ShownRun or None
        The run, which knows pipeline stages and what ranks do; without it the tables count.
    """
    stages = None if shown is None else shown.stages
    columns = {name: results.classes[name][results.ranks["class"]] for name in OF_KIND}
    if shown is not None:
        columns["table"] = shown.work
    _, kind = np.unique(np.stack(list(columns.values()), axis=1), axis=0, return_inverse=True)
    kind = kind.reshape(-1).astype(np.int64)
    of_rank = kind if stages is None else stages
    on_path = np.zeros(results.n_ranks, np.int64)
    if results.critical_path is not None:
        path = results.critical_path
        np.add.at(on_path, path.rank, path.end - path.begin)
    usual = np.bincount(kind)[kind]
    # By group; in each, most of the path first, then of the most usual kind, then the lowest.
    order = np.lexsort((np.arange(len(of_rank)), -usual, -on_path, of_rank))
    chosen = order[np.flatnonzero(np.diff(of_rank[order], prepend=-1))]
    if stages is None:  # in the order of their lowest ranks
        chosen = chosen[np.argsort(np.unique(of_rank, return_index=True)[1], kind="stable")]
    found = len(chosen)
    chosen = chosen[_kept(on_path[chosen], MOST_GROUPS if stages is None else MOST_STAGES)]
    number = np.full(int(of_rank.max()) + 1, -1, np.int64)
    number[of_rank[chosen]] = np.arange(len(chosen))
    numbers, of_rank = results.rank_numbers, number[of_rank]
    if stages is None:
        members = (np.flatnonzero(of_rank == i).tolist() for i in range(len(chosen)))
        titles = [_title([numbers[rank] for rank in each]) for each in members]
    else:
        titles = [f"stage {stage}" for stage in stages[chosen].tolist()]
    return RankGroups(
        tuple(titles),
        of_rank,
        tuple(chosen.tolist()),
        (-1,) * len(chosen) if stages is None else tuple(stages[chosen].tolist()),
        tuple(on_path[chosen].tolist()),
        found - len(chosen),
    )


def _kept(on_path: Ints, most: int) -> Ints:
    """Return which of many groups are shown: some of most of the path, and others spread evenly.

    Parameters
    ----------
    on_path : int64, shape (n,)
        Time of the path on the rank that would be shown of each group.
    most : int
        Groups, at most.

    Returns
    -------
    int64
        Their numbers, ascending.
    """
    n = len(on_path)
    if n <= most:
        return np.arange(n)
    longest = np.argsort(-on_path, kind="stable")[: most // 2]
    longest = longest[on_path[longest] > 0]
    others = np.setdiff1d(np.arange(n), longest)
    spread = np.linspace(0, len(others) - 1, most - len(longest)).round().astype(np.int64)
    return np.sort(np.concatenate([longest, others[spread]]))


def _title(numbers: list[int]) -> str:
    """Return what a group of ranks is called that is no pipeline stage."""
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {ranges_text(numbers, 4)}"

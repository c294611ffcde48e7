"""How a step answers to its hardware: the derivative along the critical path, and simulated again.

    experiment ─► base step with its elasticities ─┐
                  each changed experiment ─► step ─┴─► tornado, with where and why the two differ

`sensitivity` is the entry of the library and of ``mpisim sensitivity``. The changed experiments are
spread over groups of processes; each is an experiment that ``mpisim run --set scale.KEY=FACTOR``
would run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from .base.errors import InputError, UsageError, nearest
from .base.rank_ranges import parse_ranges
from .base.text import duration
from .engine.critical_path import PieceKind
from .experiment import Experiment, ProgramExperiment, RunChoice
from .extrapolate.prepare import prepare_workload
from .mpi.parallel import collective_errors
from .mpi.parallel import progress as show_progress
from .prediction.execution import execute
from .prediction.long_steps import long_step
from .prediction.memory_fit import verdict
from .prediction.network import NetworkCache
from .prediction.prepared import PreparedExperiment, prepare
from .prediction.prepared_program import PreparedProgram
from .prediction.quantities import NAMES, SPEEDS, key_of, values_now, why_not
from .prediction.sensitivities import path_sensitivities
from .results.sensitivities import first_order
from .results.tornado import Bar, Effect, Tornado, agree

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from .engine import Run
    from .memory import Verdict
    from .overlap import OverlapSummary
    from .prediction.library_choices import Chosen

__all__ = ["FACTORS", "sensitivity"]

FACTORS = (0.9, 1.1, 2.0)

MICRO_BATCH_FACTORS = (0.5, 2.0)
"""Of the micro-batch size, which is a whole number."""

MAX_FACTOR = 100.0
"""Factors from 1 over this to this are allowed: beyond them it is most likely a slip."""

MIN_MOVED = 0.1
"""Share of the difference between first order and simulation that pieces which are not on both
paths take at least where the path has moved."""

Piece = tuple[int, str, int]
"""What pieces of a path are summed by: kind, name, table of the rank."""


class _Step(NamedTuple):
    """A step that was simulated.

    Attributes
    ----------
    time : int
        In ps; -1 where it could not be simulated.
    pieces : dict
        Of the critical path: how many of each, and their ps.
    choices : dict of str to Chosen
        What NCCL does with each communication.
    memory : tuple of (bool, int), optional
        Whether it fits, and the bytes left.
    note : str
        Why it could not be simulated.
    """

    time: int
    pieces: Mapping[Piece, tuple[int, int]]
    choices: Mapping[str, Chosen]
    memory: tuple[bool, int] | None
    note: str = ""


def sensitivity(
    what: Experiment | ProgramExperiment,
    comm: Intracomm | None = None,
    *,
    only: Sequence[str] = (),
    factors: Sequence[float] = FACTORS,
    simulate: bool = True,
    fold: bool | None = None,
    progress: bool = False,
) -> Tornado | None:
    """Return how the step of an experiment answers to its hardware and micro-batch. **Collective.**

    Parameters
    ----------
    what : Experiment or ProgramExperiment
    comm : mpi4py.MPI.Intracomm, optional
        The processes that share the work; by default this one alone.
    only : sequence of str
        Quantities, by names of `mpisim.prediction.quantities.NAMES`; by default all that apply.
    factors : sequence of float
        Times what each quantity is. The micro-batch size is halved and doubled.
    simulate : bool
        Whether to simulate each change, too.
    fold : bool, optional
        As for `mpisim.simulate`.
    progress : bool
        Show progress, if a person is watching.

    Returns
    -------
    Tornado or None
        On process 0, the same for any number of processes; None on the others.

    Raises
    ------
    UsageError
        For a name or a factor that is not allowed.
    InputError
        If the experiment cannot be simulated.

    Examples
    --------
    >>> from mpisim.experiment import load
    >>> found = sensitivity(load()[1], only=["nic_bandwidth", "matrix_rate"], simulate=False)
    >>> [bar.name for bar in found.bars], found.not_applicable
    (['matrix rate'], ('nic_bandwidth: one node, no NIC is used',))
    """
    if comm is None:
        from mpi4py import MPI

        comm = MPI.COMM_SELF
    with collective_errors(comm):
        _check(only, factors)
    with show_progress(comm, "simulating the step as it is" if progress else ""):
        prepared, run, overlap = _run(what, comm, fold, None, NetworkCache())
        base = _step(prepared, run)
        what = _as_run(what)
        known = path_sensitivities(prepared, run, overlap)
    elasticities = {
        _quantity(key): value for key, value in zip(known.keys, known.elasticity, strict=True)
    }
    now = values_now(prepared)
    if isinstance(what, Experiment):
        now["micro_batch"] = f"{what.plan.micro_batch}"
    wanted = [
        name
        for name in NAMES
        if name in now and (not only or name in only) and (simulate or name in elasticities)
    ]
    tasks = [
        (name, factor)
        for name in wanted
        for factor in (MICRO_BATCH_FACTORS if name == "micro_batch" else factors)
    ]
    memory = prepared.memory if isinstance(prepared, PreparedExperiment) else None
    steps = _simulated(what, prepared, tasks, comm, memory, fold, progress) if simulate else {}
    if comm.rank:
        return None
    bars = []
    for name in wanted:
        elasticity = None if name not in elasticities else float(elasticities[name])
        effects = tuple(
            _effect(name, factor, elasticity, base, steps.get((name, factor)))
            for each, factor in tasks
            if each == name
        )
        bars.append(Bar(name, NAMES[name], key_of(name), now[name], elasticity, effects))
    return Tornado(
        _title(what),
        base.time,
        None if base.memory is None else base.memory[0],
        None if base.memory is None else base.memory[1],
        tuple(
            sorted(bars, key=lambda bar: (-_size(bar, base.time), list(NAMES).index(bar.quantity)))
        ),
        tuple(
            f"{name}: {why_not(name, prepared)}"
            for name in (only or NAMES)
            if name not in now and (only or name not in (SPEEDS, "communications"))
        ),
    )


def _check(only: Iterable[str], factors: Sequence[float]) -> None:
    for name in only:
        if name not in NAMES:
            raise UsageError(
                f"there is no quantity {name!r}{nearest(name, NAMES)}; there are {', '.join(NAMES)}"
            )
    if not factors:
        raise UsageError("no factor is given; at least one is needed, as 1.1")
    for factor in factors:
        if not 1 / MAX_FACTOR <= factor <= MAX_FACTOR or factor == 1:
            raise UsageError(
                f"the factor {factor:g} is not allowed: from {1 / MAX_FACTOR:g} to {MAX_FACTOR:g}, "
                "and not 1"
            )


def _quantity(key: str) -> str:
    """Return the quantity that a key of an experiment is of."""
    return SPEEDS if key == key_of(SPEEDS) else key.rpartition(".")[2]


def _title(what: Experiment | ProgramExperiment) -> str:
    return (what.title or what.program) if isinstance(what, ProgramExperiment) else what.title


def _size(bar: Bar, step: int) -> float:
    """Return the largest relative change of a bar, for their order."""
    found = [0.0]
    for each in bar.effects:
        if each.step_ps is not None:
            found.append(abs(each.step_ps / step - 1))
        elif each.first_order is not None:
            found.append(abs(each.first_order))
    return max(found)


# --- runs -----------------------------------------------------------------------------------------


def _as_run(what: Experiment | ProgramExperiment) -> Experiment | ProgramExperiment:
    """Return an experiment whose changes are simulated whether they fit into memory or not."""
    if isinstance(what, Experiment):
        return replace(what, run=RunChoice(allow_oom=True))
    return what


def _run(
    what: Experiment | ProgramExperiment,
    comm: Intracomm,
    fold: bool | None,
    memory: Verdict | None,
    networks: NetworkCache,
) -> tuple[PreparedExperiment | PreparedProgram, Run, OverlapSummary | None]:
    """Simulate, with the critical path. **Collective.**"""
    if isinstance(what, Experiment):
        found = long_step(what, comm, fold=fold, memory=memory, networks=networks)
        if found is not None:
            return found.prepared, found.run, found.overlap
    with collective_errors(comm):
        prepared = (
            prepare(what, memory=memory, networks=networks)
            if isinstance(what, Experiment)
            else prepare_workload(what)
        )
    run, overlap = execute(prepared, comm, fold=fold, critical_path=True)
    return prepared, run, overlap


def _simulated(
    what: Experiment | ProgramExperiment,
    prepared: PreparedExperiment | PreparedProgram,
    tasks: Sequence[tuple[str, float]],
    comm: Intracomm,
    memory: Verdict | None,
    fold: bool | None,
    progress: bool,
) -> dict[tuple[str, float], _Step]:
    """Simulate each change, spread over groups of processes; complete on all. **Collective.**"""
    found: dict[tuple[str, float], _Step] = {}
    groups = max(1, min(len(tasks), comm.size))
    mine = comm.rank * groups // comm.size
    own = cast("Intracomm", comm.Split(mine, comm.rank))
    label = "simulating with other hardware" if progress else ""
    with collective_errors(comm), show_progress(comm, label, len(tasks)) as update:
        for number in range(mine, len(tasks), groups):
            name, factor = tasks[number]
            found[name, factor] = _changed_step(what, prepared, name, factor, own, memory, fold)
            update(min(len(tasks), (number // groups + 1) * groups))
    own.Free()
    for part in comm.allgather(found):
        found |= part
    return found


def _changed_step(
    what: Experiment | ProgramExperiment,
    prepared: PreparedExperiment | PreparedProgram,
    name: str,
    factor: float,
    comm: Intracomm,
    memory: Verdict | None,
    fold: bool | None,
) -> _Step:
    """Simulate one change; a refusal is part of the answer. **Collective.**"""
    try:
        other = _changed(what, prepared, name, factor)
        if name == "memory":
            assert memory is not None
            capacity = memory.capacity * factor
            if isinstance(other, Experiment):
                capacity = verdict(other).capacity
            return _Step(-1, {}, {}, (capacity >= memory.peak, round(capacity - memory.peak)))
        kept = None if name == "micro_batch" else memory
        return _step(*_run(other, comm, fold, kept, NetworkCache())[:2])
    except (InputError, UsageError) as error:
        return _Step(-1, {}, {}, None, str(error))


def _changed(
    what: Experiment | ProgramExperiment,
    prepared: PreparedExperiment | PreparedProgram,
    name: str,
    factor: float,
) -> Experiment | ProgramExperiment:
    """Return an experiment with a factor more of a quantity."""
    if isinstance(what, Experiment):
        if name == "micro_batch":
            size = what.plan.micro_batch * factor
            if size != int(size):
                raise InputError(f"a micro-batch of {what.plan.micro_batch} cannot be halved")
            return replace(what, plan=replace(what.plan, micro_batch=int(size)))
        now = getattr(what.scale, name)
        return replace(what, scale=replace(what.scale, **{name: now * factor}))
    tables = {table: dict(keys) for table, keys in what.tables.items()}
    if name == SPEEDS:
        speeds = dict(tables.get("variation", {}).get("speeds", {}))
        ranks = set(range(prepared.program.n_ranks))
        for named in speeds:
            ranks -= set(parse_ranges(named, "speeds", "rank"))
        changed = {named: speed * factor for named, speed in speeds.items()}
        if ranks:
            changed[",".join(_ranges(sorted(ranks)))] = factor
        tables["variation"] = {**tables.get("variation", {}), "speeds": changed}
    else:
        scale = prepared.experiment.scale
        given = {**tables.get("scale", {}), name: getattr(scale, name) * factor}
        tables["scale"] = given
    return replace(what, tables=tables)


def _ranges(numbers: Sequence[int]) -> list[str]:
    """Return ascending numbers as ranges: ``["0-3", "7"]``."""
    ends = np.flatnonzero(np.diff(numbers, append=numbers[-1] + 2) > 1)
    firsts = [0, *(ends[:-1] + 1).tolist()]
    return [
        f"{numbers[a]}-{numbers[b]}" if b > a else f"{numbers[a]}"
        for a, b in zip(firsts, ends.tolist(), strict=True)
    ]


def _step(prepared: PreparedExperiment | PreparedProgram, run: Run) -> _Step:
    """Return what is compared of a run. Local."""
    path = run.critical_path
    assert path is not None
    tables = prepared.program.table[path.rank]
    keys = np.stack([path.kind.astype(np.int64), path.name.astype(np.int64), tables])
    kinds, which = np.unique(keys, axis=1, return_inverse=True)
    which = which.reshape(-1)
    count, length = (np.zeros(kinds.shape[1], np.int64) for _ in range(2))
    np.add.at(count, which, path.times)
    np.add.at(length, which, path.lengths)
    pieces = {
        (kind, path.names[name] if name >= 0 else "", table): (n, ps)
        for kind, name, table, n, ps in zip(
            *kinds.tolist(), count.tolist(), length.tolist(), strict=True
        )
    }
    memory = None
    if isinstance(prepared, PreparedExperiment):
        memory = prepared.memory.fits, prepared.memory.headroom
    return _Step(int(run.step_time), pieces, _choices(prepared), memory)


def _choices(prepared: PreparedExperiment | PreparedProgram) -> dict[str, Chosen]:
    """Return what NCCL does with each kind of communication of a program, in words."""
    nccl = getattr(prepared.network, "nccl", None)
    if nccl is None:
        return {}
    from .prediction.library_choices import library_choices

    return library_choices(prepared.program, prepared.network, nccl)


# --- comparison -----------------------------------------------------------------------------------


def _effect(
    name: str, factor: float, elasticity: float | None, base: _Step, step: _Step | None
) -> Effect:
    """Return a change of a quantity: first order and simulated, and why the two differ."""
    expected = None if elasticity is None else first_order(name, elasticity, factor)
    if step is None:
        return Effect(factor, expected)
    if step.time < 0:
        if step.memory is None:
            return Effect(factor, expected, note=f"not simulated: {step.note}")
        return Effect(factor, expected, fits=step.memory[0], headroom=step.memory[1])
    fits = headroom = None
    if name == "micro_batch" and step.memory is not None:
        fits, headroom = step.memory
    moved = _moved(base, step)
    found = Effect(factor, expected, step.time, fits, headroom, moved=False)
    if expected is None:
        return replace(found, moved=bool(moved.pieces))
    agrees = agree(expected, step.time / base.time - 1)
    if agrees:
        return replace(found, agrees=True, moved=moved.ps > MIN_MOVED * abs(step.time - base.time))
    off = abs(step.time - base.time * (1 + expected))
    if moved.ps > MIN_MOVED * off:
        return replace(found, agrees=False, moved=True, note=f"critical path moves: {moved.text}")
    return replace(found, agrees=False, note=f"the path stays; {_why(base, step)}")


def _why(base: _Step, step: _Step) -> str:
    """Return why the pieces of two equal paths are not as the first order has them."""
    both = [
        (what, did, step.choices[what])
        for what, did in base.choices.items()
        if what in step.choices
    ]
    limits = [
        f"{what}: {now.limit}, not {did.limit}" for what, did, now in both if now.limit != did.limit
    ]
    chosen = [f"{what}: {now.how}, not {did.how}" for what, did, now in both if now.how != did.how]
    whys = [
        f"{why}: {_first(texts)}"
        for why, texts in (
            ("another limit takes over", limits),
            ("NCCL chooses otherwise", chosen),
        )
        if texts
    ]
    if whys:
        return "; ".join(whys)
    return f"its pieces are not in proportion: {_largest(base, step)}"


def _first(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{texts[0]} (and {len(texts) - 1} more)"


class _Moved(NamedTuple):
    """By how much two paths are not over the same pieces.

    Attributes
    ----------
    ps : float
        Time on one of them alone.
    pieces : int
        How many.
    text : str
        The longest that came and went.
    """

    ps: float
    pieces: int
    text: str


def _moved(base: _Step, step: _Step) -> _Moved:
    """Compare the pieces of two paths by kind, name and place."""
    came: dict[tuple[int, str], float] = {}
    pieces = 0
    for key in base.pieces.keys() | step.pieces.keys():
        (old, before), (new, after) = (each.pieces.get(key, (0, 0)) for each in (base, step))
        if old == new:
            continue
        pieces += abs(new - old)
        each = after / new if new > old else before / old
        kind, name, _ = key
        came[kind, name] = came.get((kind, name), 0.0) + (new - old) * each
    total = sum(map(abs, came.values()))
    order = sorted(came, key=lambda key: (-abs(came[key]), key))
    words = []
    for sign, verb in ((1, "+"), (-1, "-")):
        found = [key for key in order if came[key] * sign > 0][:1]
        words += [f"{verb}{duration(round(abs(came[key])))} {_piece(*key)}" for key in found]
    return _Moved(total, pieces, ", ".join(words) or "over other ranks")


def _largest(base: _Step, step: _Step) -> str:
    """Return the piece of two equal paths that changes most."""
    changes = {
        key: step.pieces[key][1] - ps for key, (_, ps) in base.pieces.items() if key in step.pieces
    }
    key = max(changes, key=lambda key: (abs(changes[key]), key))
    sign = "-" if changes[key] < 0 else "+"
    return f"{sign}{duration(abs(changes[key]))} {_piece(*key[:2])}"


def _piece(kind: int, name: str) -> str:
    word = PieceKind(kind).name.lower()
    return f"{word} {name}" if name and word != name else word

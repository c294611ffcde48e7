"""The ``[search]`` table of a file → the candidates: experiments that differ in the keys varied.

    [search]
    objectives = ["step_time", "memory"]

    [search.vary]
    plan.tp = "auto"
    plan.pp = [1, 2, 4, 8]
    plan.micro_batch = { powers_of_two = [1, 8] }
    cluster.nodes = { from = 16, to = 64, step = 16 }

A candidate is a number: that of its combination of values, the last key running fastest. So it
means the same on every process and in a store, and no list of them is ever made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError, one_of
from ..base.frozen import frozen
from ..base.schema import check_value
from ..base.text import in_words
from ..experiment import Experiment
from ..experiment.load import experiment_of
from ..experiment.plan_keys import key_path, renamed, set_key, short_key, with_sub_tables
from ..experiment.tables import TABLES, tables_with
from .automatic import AUTOMATIC, automatic_keys, automatic_values
from .balance import BALANCED, EVEN, SHARES, balanced_shares
from .choice import Choice, read_choice
from .traced_space import TABLES_OF_TRACES, TracedValues

__all__ = ["SearchSpace", "read_search"]

MAX_CANDIDATES = 10**8
"""Combinations of a search; each takes a byte of memory at least."""

RANGES = ({"powers_of_two"}, {"from", "to"}, {"from", "to", "step"})
"""Keys of a table that stands for a list of values."""


@frozen
class SearchSpace:
    """The candidates of a search.

    Attributes
    ----------
    tables : mapping
        Tables of the experiment that all share.
    source : str
        Its file, for messages.
    keys : tuple of str
        Full keys that are varied (``"plan.tp"``).
    values : tuple of tuple
        Values of each key.
    choice : Choice
    changes : tuple of str
        ``--set`` texts that the tables have already, for the command that runs a candidate.
    """

    tables: Mapping[str, Any]
    source: str
    keys: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]
    choice: Choice
    changes: tuple[str, ...] = ()

    @property
    def of_trace(self) -> bool:
        """Whether candidates are extrapolated from a recorded trace, not generated from a model."""
        return "workload" in self.tables

    def __len__(self) -> int:
        n = 1
        for values in self.values:
            n *= len(values)
        return n

    def assignment(self, number: int) -> tuple[Any, ...]:
        """Return the values of the keys in a candidate."""
        found = []
        for values in reversed(self.values):
            number, at = divmod(number, len(values))
            found.append(values[at])
        return tuple(reversed(found))

    def groups(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which value of the key `Choice.each` candidates have, by its place; 0 without."""
        if self.choice.each is None:
            return np.zeros(len(numbers), np.int64)
        at = self.keys.index(self.choice.each)
        after = 1
        for values in self.values[at + 1 :]:
            after *= len(values)
        return numbers // after % len(self.values[at])

    def assignments(self) -> Iterator[tuple[Any, ...]]:
        """Yield the values of all candidates, in their order."""
        from itertools import product

        return product(*self.values)

    def described(self, number: int, among: Sequence[int] = ()) -> str:
        """Candidate → the keys that it sets, as ``tp 8, pp 4, recompute none``.

        Parameters
        ----------
        number : int
        among : sequence of int
            Candidates: what all of these set alike is left out.
        """
        others = [self.assignment(each) for each in among]
        return ", ".join(
            f"{_spoken(key)} {in_words(value)}"
            for at, (key, value) in enumerate(zip(self.keys, self.assignment(number), strict=True))
            if not others or any(other[at] != value for other in others)
        )

    def in_common(self, numbers: Sequence[int]) -> str:
        """Return what several candidates set alike, in the words of `described`; may be empty."""
        whole, own = (self.described(numbers[0], among) for among in ((), numbers))
        return ", ".join(part for part in whole.split(", ") if part not in own.split(", "))

    def experiment(self, number: int) -> Experiment:
        """Return the experiment of a candidate.

        Raises
        ------
        InputError
            If its values contradict each other.
        """
        return experiment_of(self.candidate_tables(number), self.source)

    def settings(self, number: int) -> dict[str, Any]:
        """Return the keys that a candidate sets, and the schedule where it follows from them."""
        tables = self.candidate_tables(number)
        found = dict(zip(self.keys, self.assignment(number), strict=True))
        for name in SHARES:
            key = f"plan.{name}"
            if found.get(key) == BALANCED:
                table, _, last = name.rpartition(".")
                found[key] = (tables["plan"][table] if table else tables["plan"])[last]
            elif found.get(key) == EVEN:
                del found[key]
        base, own = (each.get("plan", {}).get("pipeline", {}) for each in (self.tables, tables))
        schedule = own.get("schedule")
        if schedule is not None and schedule != base.get("schedule", "1f1b"):
            found["plan.pipeline"] = schedule
        return found

    def candidate_tables(self, number: int) -> dict[str, Any]:
        """Return the tables of a candidate, to be changed."""
        return self.with_values(self.assignment(number))

    def with_values(self, assignment: tuple[Any, ...]) -> dict[str, Any]:
        """Return the tables with values of the varied keys."""
        tables = {
            name: dict(table) if isinstance(table, dict) else table
            for name, table in self.tables.items()
        }
        for path, value in zip(self._paths, assignment, strict=True):
            table = tables.get(path[0])
            if len(path) == 2 and isinstance(table, dict):
                table[path[1]] = value  # of the copy above
            else:
                set_key(tables, path, value)
        plan = tables.get("plan", {})
        pipeline = plan["pipeline"] = dict(plan.get("pipeline", {}))
        homes = {"pipeline.stages": pipeline, "replica_batch": plan}
        shares = {}
        for name, home in homes.items():
            if home.get(name.rpartition(".")[2]) in (EVEN, BALANCED):
                shares[name] = home.pop(name.rpartition(".")[2])
        # The two schedules of Megatron-LM differ in this alone.
        either = pipeline.get("schedule", "1f1b") in ("1f1b", "interleaved")
        if either and "plan.vpp" in self.keys and "plan.pipeline" not in self.keys:
            pipeline["schedule"] = "interleaved" if plan["vpp"] > 1 else "1f1b"
        uneven = [name for name, share in shares.items() if share == BALANCED]
        if uneven:
            for name, share in balanced_shares(experiment_of(tables, self.source), uneven).items():
                if len(set(share)) == 1 and self._varies(f"plan.{name}", EVEN):
                    raise InputError(
                        f"plan.{name} is {BALANCED!r}, which is even with this plan: the same "
                        f"as {EVEN!r}"
                    )
                homes[name][name.rpartition(".")[2]] = share
        return tables

    @cached_property
    def _paths(self) -> tuple[tuple[str, ...], ...]:
        """Where tables have each of the keys."""
        return tuple(tuple(key_path(key.split("."))) for key in self.keys)

    def _varies(self, key: str, value: Any) -> bool:
        """Whether a value is among those of a key."""
        return any(
            value in each for at, each in zip(self.keys, self.values, strict=True) if at == key
        )


def read_search(tables: Mapping[str, Any], source: str) -> SearchSpace:
    """Parsed tables of a file, ``[search]`` among them → search space.

    Parameters
    ----------
    tables : mapping
        Parsed TOML, changes of the command line applied.
    source : str
        The file, for messages and relative paths.

    Returns
    -------
    SearchSpace

    Raises
    ------
    InputError
        Naming the file and the key, what was found and what is allowed.
    """
    search = _search_table(tables, source)
    vary = search.pop("vary", {})
    choice = read_choice(search, source)
    if choice.asks_job and "job" not in tables:
        raise InputError(
            f"{source}: [search] asks for a whole job, and there is no table [job]: give tokens or "
            "steps, as --set job.tokens=1T (docs/job.md)"
        )
    base = with_sub_tables(
        {name: table for name, table in tables.items() if name != "search"}, source
    )
    traced = _values_of_trace(base, vary, choice, source) if "workload" in base else None
    flat = dict(_flattened(_with_automatic_plan(vary, base, traced, source)))
    if "plan.dp" not in flat and any(f"plan.{axis}" in flat for axis in ("tp", "pp", "cp")):
        # What remains of the GPUs, whatever the file says for its own sizes.
        base["plan"] = {key: value for key, value in base.get("plan", {}).items() if key != "dp"}
    if traced is None:
        experiment = _shared_experiment(base, flat, source)
        automatic, tables_of = _of_plan(experiment, source), (*TABLES, "model")
    else:
        automatic, tables_of = traced.automatic, tuple(TABLES_OF_TRACES)
    values = {}
    for key, value in flat.items():
        _check_key(key, tables_of, source)
        if traced is not None:
            traced.check_key(key)
        values[key] = _values(key, value, automatic, source)
    if choice.each is not None:
        choice = replace(choice, each=short_key(choice.each))
    if choice.each is not None and choice.each not in values:
        raise InputError(
            f"{source}: key 'search.each' is {choice.each!r}, which is not varied"
            f"{one_of(choice.each, values)}"
        )
    space = SearchSpace(base, source, tuple(values), tuple(values.values()), choice)
    if len(space) > MAX_CANDIDATES:
        raise InputError(
            f"{source}: [search.vary] makes {len(space):,} combinations; "
            f"there can be {MAX_CANDIDATES:,}"
        )
    return space


def _search_table(tables: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Parsed tables of a file → a copy of its ``[search]``."""
    search = tables.get("search")
    if search is None:
        raise InputError(
            f"{source}: has no table [search]; give what to vary, as [search.vary] "
            'with plan.tp = "auto", or --vary plan.tp=1,2,4'
        )
    if not isinstance(search, dict):
        raise InputError(f"{source}: key 'search' is {search!r}; it must be a table, [search]")
    return dict(search)


def _values_of_trace(
    base: Mapping[str, Any], vary: Any, choice: Choice, source: str
) -> TracedValues:
    """Tables with a recorded trace → the values that keys can have over it."""
    first = dict(_flattened(vary)) if isinstance(vary, dict) else {}
    traced = TracedValues(_first_values(base, first), source)
    traced.check_objectives(choice.objectives)
    for name in (*choice.limits, *choice.job_limits):
        raise InputError(
            f"{source}: key 'search.max_{name}' is given; a trace does not tell what is drawn"
        )
    return traced


def _with_automatic_plan(
    vary: Any, base: Mapping[str, Any], traced: TracedValues | None, source: str
) -> dict[str, Any]:
    """``[search.vary]`` → the same as a table, with the keys that ``plan = "auto"`` stands for."""
    if vary == "auto":
        vary = {"plan": "auto"}
    if isinstance(vary, dict) and vary.get("plan") == "auto":
        if traced is None:
            others = {table: keys for table, keys in vary.items() if table != "plan"}
            shared = _shared_experiment(base, dict(_flattened(others)), source)
            keys = automatic_keys(shared)
        else:
            keys = traced.all_automatic
        vary = {**vary, "plan": dict.fromkeys(keys, "auto")}
    if not isinstance(vary, dict) or not vary:
        raise InputError(
            f"{source}: key 'search.vary' is {vary!r}; it must be \"auto\" or a table of keys with "
            "their values, as plan.tp = [1, 2, 4]"
        )
    return vary


def _check_key(key: str, tables_of: Sequence[str], source: str) -> None:
    """Refuse a key to vary that no experiment has."""
    now = renamed(key)
    if now is not None:
        raise InputError(f"{source}: key 'search.vary.{key}' has a new name: '{now}'")
    table = key.partition(".")[0]
    if table not in tables_of or "." not in key:
        raise InputError(
            f"{source}: key 'search.vary' has {key!r}, which is no key of an experiment"
            f"{tables_with(key) or one_of(table, tables_of)}"
        )


def _spoken(key: str) -> str:
    """Key → its name in a list of what a candidate sets."""
    return key.removeprefix("plan.") if key.startswith("plan.") else key.rpartition(".")[2]


def _flattened(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield full keys with what is said of their values."""
    for name, value in table.items():
        key = f"{path}.{name}" if path else name
        if isinstance(value, dict) and set(value) not in RANGES:
            yield from _flattened(value, key)
        else:
            yield short_key(key), value


def _first_values(base: Mapping[str, Any], vary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables, with the first value of required keys that only ``vary`` gives."""
    lists = {key: value for key, value in vary.items() if isinstance(value, list) and value}
    required = {
        key: value
        for key, value in lists.items()
        if key in ("plan.global_batch", "cluster.preset", "model.preset")
        and key.partition(".")[2] not in base.get(key.partition(".")[0], {})
    }
    space = SearchSpace(
        base, "", tuple(required), tuple((value[0],) for value in required.values()), Choice()
    )
    return space.with_values(tuple(value[0] for value in required.values()))


def _shared_experiment(base: Mapping[str, Any], vary: Mapping[str, Any], source: str) -> Experiment:
    """Return an experiment of what all candidates share.

    Its model, cluster and batch count. What the file says need not go together with the defaults of
    keys that are varied, as `sp = true` with tp: then the first and the last values are tried.
    """
    try:
        return experiment_of(_first_values(base, vary), source)
    except InputError:
        listed = {}
        for key, value in vary.items():
            if isinstance(value, dict):
                listed[key] = _range(f"{source}: key 'search.vary.{key}'", value)
            elif isinstance(value, list) and value:
                listed[key] = tuple(value)
        for at in (0, -1):
            values = tuple((each[at],) for each in listed.values())
            space = SearchSpace(base, source, tuple(listed), values, Choice())
            try:
                return space.experiment(0)
            except InputError:
                continue
        raise


def _of_plan(experiment: Experiment, source: str) -> Callable[[str], tuple[Any, ...]]:
    """Key that is "auto" → function that gives its values."""

    def automatic(key: str) -> tuple[Any, ...]:
        name = key.removeprefix("plan.")
        if name in SHARES:
            return (EVEN, BALANCED)
        if name not in AUTOMATIC:
            known = [f"plan.{each}" for each in (*AUTOMATIC, *SHARES)]
            where = f"{source}: key 'search.vary.{key}'"
            raise InputError(f'{where} is "auto"; that is for {", ".join(known)}')
        return automatic_values(name, experiment)

    return automatic


def _values(
    key: str, value: Any, automatic: Callable[[str], tuple[Any, ...]], source: str
) -> tuple[Any, ...]:
    """Entry of ``[search.vary]`` (list, range, powers of two or "auto") → the key's values."""
    where = f"{source}: key 'search.vary.{key}'"
    if value == "auto":
        return automatic(key)
    if isinstance(value, dict):
        numbers = _range(where, value)
        _check_values(key, (numbers[0], numbers[-1]), source)
        return numbers
    if not isinstance(value, list) or not value:
        raise InputError(
            f"{where} is {value!r}; it must be a list of values, "
            '{ powers_of_two = [1, 8] }, { from = 1, to = 9, step = 2 }, or "auto"'
        )
    for each in value:
        _check_name(where, key, each, source)
    _check_values(key, value, source)
    found = tuple(tuple(each) if isinstance(each, list) else each for each in value)
    if len(set(map(repr, found))) < len(found):
        raise InputError(f"{where} is {value!r}; a value stands in it twice")
    return tuple(value)


def _check_values(key: str, values: Sequence[Any], source: str) -> None:
    """Refuse values that a key can never have: they are slips, not candidates."""
    table, _, name = ".".join(key_path(key.split("."))).partition(".")
    known = {**TABLES, "workload": TABLES_OF_TRACES["workload"]}
    if table in known:
        shares = (EVEN, BALANCED) if key.removeprefix("plan.") in SHARES else ()
        for each in values:
            if each in shares:
                continue
            check_value(known[table], name, each, source, f"search.vary.{key}")


def _check_name(where: str, key: str, value: Any, source: str) -> None:
    """Refuse a name that there is not: it would be a candidate that is left out in silence."""
    from ..experiment.model_presets import find_model
    from ..experiment.profiles import NO_FRAMEWORK, profile_of
    from ..kernels import find_gpu
    from ..topo import find_cluster

    finders: Mapping[str, Callable[[str], Any]] = {
        "cluster.preset": find_cluster,
        "framework.name": lambda name: name == NO_FRAMEWORK or profile_of(name, source),
        "kernels.gpu": find_gpu,
        "workload.gpu": find_gpu,
        "model.preset": find_model,
    }
    if key in finders and isinstance(value, str):
        try:
            finders[key](value)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error


def _range(where: str, value: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the values of a table that stands for a list."""
    if "powers_of_two" in value:
        ends = value["powers_of_two"]
        if (
            not isinstance(ends, list)
            or len(ends) != 2
            or any(type(end) is not int or end < 1 for end in ends)
            or ends[0] > ends[1]
        ):
            raise InputError(f"{where}.powers_of_two is {ends!r}; it must be as [1, 8]")
        found: Sequence[int] = [1 << e for e in range(64) if ends[0] <= 1 << e <= ends[1]]
    else:
        numbers = {"step": 1, **value}
        if any(type(each) is not int for each in numbers.values()) or numbers["step"] < 1:
            raise InputError(f"{where} is {dict(value)!r}; it must have integers, step 1 or more")
        found = range(numbers["from"], numbers["to"] + 1, numbers["step"])
    if not found:
        raise InputError(f"{where} is {dict(value)!r}, which holds no value")
    if found[MAX_CANDIDATES:]:  # lengths beyond 64 bits have no len()
        raise InputError(
            f"{where} is {dict(value)!r}, which holds more than {MAX_CANDIDATES:,} values"
        )
    return tuple(found)

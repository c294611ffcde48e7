"""What a search has found → its answer: the best, the front, why, and what cannot be told apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import hypot
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.quantity import GIB
from ..base.text import WIDTH, aligned, one_line, percentage, quantity
from ..base.toml import toml_value
from ..job.text import big_number, duration_text
from ..report.drawing import PLAIN, Drawing
from .choice import OF_JOBS
from .finalists import Finalist, difference_error, simulate_finalists
from .limits import BrokenLimit, broken_limits, limit_line
from .pareto import front
from .records import Records, Status, least_values
from .space import SearchSpace
from .traced import extrapolate_command

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Answer", "answer", "answer_lines"]

TIMED = ("step_time", "tokens_per_second", "tokens_per_second_per_gpu")
"""Objectives that the step time decides."""
COSTS_OF_TOKENS = {
    "usd_per_token": ("usd_per_million", "usd_error"),
    "energy_per_token": ("energy_per_million", "power_error"),
}
"""Objectives that the step time and costs decide: numbers of `Finalist.cost`, and their errors."""
BY_STEP = (*TIMED, *COSTS_OF_TOKENS, *OF_JOBS)
"""Objectives of which those who are shown are known to the last bit."""
MAX_FRONT = 30
"""Candidates of the front that are simulated in full and shown."""
BARS = 6
"""Candidates whose time is shown as a bar."""
BAR_WIDTH = 40
PARTS = ("compute", "communication", "waiting", "idle")
"""Parts of a bar; communication is what nothing computes beside."""
OF_TRACES = "Over a trace every valid candidate is simulated; none is left out by a bound. "
OF_ONE_GPU = (
    "Memory is a lower limit, parameters and gradients: what autograd and optimizers keep a trace "
    "does not say."
)
OF_SEVERAL_RANKS = "What memory candidates need traces of several ranks do not say."


class Answer(NamedTuple):
    """The answer of a search.

    Attributes
    ----------
    best : list of Finalist
        The first ones by the first objective, the best first.
    front : list of Finalist
        Those that no other is better than in all objectives, the best by the first of these first,
        `MAX_FRONT` at most; empty with one objective.
    counts : dict of str to int
        Candidates by what became of them.
    why : dict
        Why most of the invalid candidates are: ``count``, ``example`` (a candidate's number) and
        its ``message``; empty if none is invalid.
    limits : list of BrokenLimit
        The limits that candidates broke, memory among them; where nothing is left to show.
    of_each : sequence of Finalist
        The best of each value of the key `Choice.each`, the best first; empty without.
    front_size : int
        Candidates on the front, those among them that are not in `front`.
    """

    best: list[Finalist]
    front: list[Finalist]
    counts: dict[str, int]
    why: dict[str, Any]
    limits: Sequence[BrokenLimit] = ()
    of_each: Sequence[Finalist] = ()
    front_size: int = 0

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Answer:
        """Return the answer that `as_json` was made of."""
        best, on_front, of_each = (
            [Finalist(**each) for each in found.get(key, ())]
            for key in ("best", "front", "of_each")
        )
        limits = [BrokenLimit(**each) for each in found.get("limits", ())]
        counts, why, size = dict(found["counts"]), dict(found["why"]), found["front_size"]
        return cls(best, on_front, counts, why, limits, of_each, size)

    @classmethod
    def unfinished(cls, records: Records) -> Answer:
        """Records of a search that goes on → answer with its progress alone."""
        counts = {status.name.lower(): records.count(status) for status in Status}
        return cls([], [], counts, _most_frequent(records))

    def as_json(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {
            "best": [each.as_json() for each in self.best],
            "front": [each.as_json() for each in self.front],
            "front_size": self.front_size,
            "counts": self.counts,
            "why": self.why,
            "limits": [each.as_json() for each in self.limits],
            "of_each": [each.as_json() for each in self.of_each],
        }


def answer(space: SearchSpace, records: Records, comm: Intracomm, *, show: bool = False) -> Answer:
    """Search space, what is known of its candidates → the answer. **Collective.**

    Parameters
    ----------
    space : SearchSpace
    records : Records
        As `explore` returns them.
    comm : mpi4py.MPI.Intracomm
    show : bool
        Show progress, if a person is watching.
    """
    done = records.numbers(Status.SIMULATED)
    values = least_values(space, records, done)
    # Of equal ones in the first objective the others decide, then the step.
    order = np.lexsort((done, records.step[done], *values.T[::-1]))
    best = done[order[: space.choice.top]].tolist()
    whole_front: list[int] = done[front(values)].tolist() if values.shape[1] > 1 else []
    on_front = whole_front[:MAX_FRONT]
    of_each: list[int] = []
    if space.choice.each is not None:
        first = np.unique(space.groups(done[order]), return_index=True)[1]
        of_each = done[order[np.sort(first)]].tolist()
    numbers = list(dict.fromkeys([*best, *on_front, *of_each]))
    found = dict(zip(numbers, simulate_finalists(space, numbers, comm, show=show), strict=True))
    if space.choice.objectives[0] in BY_STEP:
        for some in (best, of_each):
            some.sort(key=lambda number: (_first_value(space, found[number]), number))
    counts = {status.name.lower(): records.count(status) for status in Status}
    return Answer(
        [found[number] for number in best],
        [found[number] for number in on_front],
        counts,
        _most_frequent(records),
        [] if best else broken_limits(space, records),
        [found[number] for number in of_each],
        len(whole_front),
    )


def _most_frequent(records: Records) -> dict[str, Any]:
    """Return why most of the invalid candidates are."""
    reason = records.frequent
    if reason is None:
        return {}
    return {"count": reason.number, "example": reason.first, "message": reason.text}


def _first_value(space: SearchSpace, of: Finalist) -> float:
    """Return the first objective of a finalist, as it is minimised."""
    rate = -of.tokens / of.step_time
    return {
        "step_time": of.step_time,
        "tokens_per_second": rate,
        "tokens_per_second_per_gpu": rate / of.gpus,
        "usd_per_token": of.cost.get("usd_per_million", np.inf),
        "energy_per_token": of.cost.get("energy_per_million", np.inf),
        "job_time": of.job.get("seconds", np.inf),
        "job_usd": of.job.get("usd", np.inf),
    }[space.choice.objectives[0]]


# --- text -----------------------------------------------------------------------------------------


def answer_lines(space: SearchSpace, found: Answer, drawing: Drawing = PLAIN) -> list[str]:
    """Search space, answer → report as lines of at most 100 characters.

    Parameters
    ----------
    space : SearchSpace
    found : Answer
    drawing : Drawing
        Whether in colour, and with which characters.

    Returns
    -------
    list of str
    """
    counts = found.counts
    total = sum(counts.values())
    lines = [
        f"{total:,} candidate{'s' * (total != 1)}",
        *(f"  {line}" for line in _counted(counts, bool(found.best))),
        *_why(space, found.why),
    ]
    if not found.best:
        none = not counts["bounded"] and not counts["simulated"]
        lines += ["", "None is valid, fits into memory and keeps the limits."] * none
        for each in found.limits:
            text = f"{limit_line(space, each)}."
            lines += wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")
        return lines
    lines += ["", f"The best by {_words(space.choice.objectives[0])}", *_table(space, found.best)]
    if space.choice.objectives[0] in BY_STEP:
        lines += ["", *wrap(_told_apart(space, found.best), WIDTH)]
    lines += _errors_of_costs(space, found.best)
    lines += _about_jobs(space, found.best)
    lines += ["", *_bars(found.best[:BARS], drawing)]
    if found.of_each:
        lines += ["", f"The best of each {space.choice.each}", *_table(space, found.of_each)]
        lines += wrap(_without_any(space, found.of_each), WIDTH, initial_indent="  ")
    if found.front:
        names = ", ".join(map(_words, space.choice.objectives))
        shown, size = len(found.front), found.front_size
        part = f" (the first {shown} of {size:,})" if size > shown else ""
        lines += [
            "",
            f"The front{part}: no other candidate is better in {names}",
            *_table(space, found.front),
        ]
    if space.of_trace:
        memory = OF_ONE_GPU if found.best[0].peak else OF_SEVERAL_RANKS
        lines += ["", *wrap(f"{OF_TRACES}{memory}", WIDTH)]
    lines += ["", "To run the first:", f"  {_command(space, found.best[0])}"]
    return lines


def _without_any(space: SearchSpace, of_each: Sequence[Finalist]) -> str:
    """Name the values of the key `Choice.each` of which no candidate is left; empty if none."""
    assert space.choice.each is not None
    at = space.keys.index(space.choice.each)
    shown = [space.assignment(each.number)[at] for each in of_each]
    missing = [str(value) for value in space.values[at] if value not in shown]
    return f"Of {', '.join(missing)} none is valid, fits and keeps the limits." if missing else ""


def _seconds(time: float) -> str:
    # Three digits of what is just below a second are those of a second.
    return quantity(time, "s") if time >= 0.9995 else f"{quantity(time * 1e3, '')}ms"


def _words(objective: str) -> str:
    named = {
        "usd_per_token": "dollars of a token",
        "energy_per_token": "energy of a token",
        "usd_per_hour": "dollars of an hour",
        "price": "price of the cluster",
        "job_time": "time of the whole job",
        "job_usd": "dollars of the whole job",
    }
    plain = objective.replace("_per_", "/").replace("_", " ").replace("second", "s")
    return named.get(objective, plain)


def _why(space: SearchSpace, why: Mapping[str, Any]) -> list[str]:
    """Say why most invalid candidates are, with an example."""
    if not why:
        return []
    message = one_line(why["message"])
    text = f"Of those that do not go together {why['count']:,} as this one: "
    text += f"{message} ({space.described(why['example'])})"
    return wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _counted(counts: dict[str, int], ended: bool) -> list[str]:
    words = {
        "unknown": "not judged yet",
        "invalid": "whose keys do not go together",
        "over_limit": "beyond a limit",
        "too_large": "too large for memory",
        "bounded": "that cannot be among the best (proven bound)" if ended else "not judged yet",
        "simulated": "simulated",
        "too_slow": "simulated and too slow",
        "over_budget": "simulated and beyond a limit on power or dollars",
    }
    cells = [(f"{counts[name]:,}", text) for name, text in words.items() if counts.get(name)]
    return aligned(cells, left=(1,))


def _table(space: SearchSpace, rows: Sequence[Finalist]) -> list[str]:
    numbers = [each.number for each in rows]
    alike = space.in_common(numbers) if len(rows) > 1 else ""
    among = numbers if len(rows) > 1 else []
    columns = _cost_columns(space)
    memory = "≥ GiB" if space.of_trace else "GiB"
    rates = f"{rows[0].counted}/s"
    heads = ("", "step", "±", rates, "per GPU", "use", memory, "GPUs")
    # Lines have room for the costs in place of what follows from the others.
    dropped = {"per GPU", "use"} if columns else {"use"} if space.of_trace else set()
    dropped |= {memory} if not any(each.peak for each in rows) else set()
    kept = [i for i, head in enumerate(heads) if head not in dropped]
    cells = [(*(heads[i] for i in kept), *columns, "what it sets")]
    for place, each in enumerate(rows, 1):
        rate = each.tokens / each.step_time
        figures = (
            f"{place}",
            _seconds(each.step_time),
            percentage(each.error, 1),
            f"{rate:,.0f}" if each.tokens else "",
            f"{rate / each.gpus:,.0f}" if each.tokens else "",
            percentage(each.utilisation, 1),
            f"{each.peak / GIB:.1f}" if each.peak else "",
            f"{each.gpus:,}",
        )
        costs = (show(each) for show in columns.values())
        sets = space.described(each.number, among)
        cells.append((*(figures[i] for i in kept), *costs, sets))
    lines = aligned([row[:-1] for row in cells])
    room = max(WIDTH - max(map(len, lines)) - 4, 20)
    table = []
    for line, row in zip(lines, cells, strict=True):
        first, *others = _settings_in_lines(row[-1], room)
        table.append(f"  {line}  {first}".rstrip())
        table += [f"  {'':{len(line)}}  {each}" for each in others]
    if alike:
        table += wrap(
            f"All of these: {alike}", WIDTH, initial_indent="  ", subsequent_indent="    "
        )
    return table


def _settings_in_lines(text: str, width: int) -> list[str]:
    """Break what a candidate sets into lines, between settings alone."""
    solid = ", ".join(each.replace(" ", "\0") for each in text.split(", "))
    lines = wrap(solid, width, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines] or [""]


def _cost_columns(space: SearchSpace) -> dict[str, Callable[[Finalist], str]]:
    """Return columns of what candidates cost, as far as it was asked for: head → text of one."""
    asked = {*space.choice.objectives, *space.choice.limits, *space.choice.job_limits}
    columns: dict[str, Callable[[Finalist], str]] = {}
    if "usd_per_token" in asked:
        columns["$/M"] = lambda of: _figure(of, "usd_per_million", "{:,.4g}")
    if "energy_per_token" in asked:
        columns["kWh/M"] = lambda of: _figure(of, "energy_per_million", "{:,.4g}")
    if "power" in asked:
        columns["power"] = lambda of: quantity(of.cost["power"], "W") if of.cost else ""
    if "usd_per_hour" in asked:
        columns["$/h"] = lambda of: _figure(of, "usd_hour", "{:,.2f}")
    if space.choice.asks_job:
        columns["done in"] = lambda of: duration_text(of.job["seconds"])
    if "job_usd" in asked:
        columns["dollars"] = lambda of: f"${big_number(of.job['usd'])}"
    if "price" in asked:
        columns["price"] = lambda of: _figure(of, "usd_purchase", "${:,.0f}")
    return columns


def _errors_of_costs(space: SearchSpace, rows: Sequence[Finalist]) -> list[str]:
    """Say how sure dollars and power are."""
    heads = _cost_columns(space)
    said: list[str] = []
    for head, name, what in (
        ("$/M", "usd_error", "dollars"),
        ("$/h", "usd_error", "dollars"),
        ("dollars", "usd_error", "dollars"),
        ("kWh/M", "power_error", "power and energy"),
        ("power", "power_error", "power and energy"),
    ):
        errors = [each.cost[name] for each in rows if name in each.cost]
        if head in heads and errors and not any(text.startswith(what) for text in said):
            said.append(f"{what} ± {percentage(max(errors))}")
    if not said:
        return []
    text = (
        f"One standard deviation: {', '.join(said)}, most of it common to candidates with the same"
        " GPUs."
    )
    if {"$/M", "kWh/M"} & heads.keys():
        text += " $/M, kWh/M: of a million tokens."
    return ["", *wrap(text, WIDTH)]


def _about_jobs(space: SearchSpace, rows: Sequence[Finalist]) -> list[str]:
    """Say what times of whole jobs hold, and which limits an error of the step would break."""
    if not space.choice.asks_job:
        return []
    text = "Done in, and dollars: of the whole job, in the mean, with checkpoints and failures."
    limits = space.choice.job_limits
    near = [
        f"{place}"
        for place, each in enumerate(rows, 1)
        if each.job["seconds"] * (1 + each.error) > limits.get("job_time", np.inf)
        or each.job["usd"] * (1 + each.error) > limits.get("job_usd", np.inf)
    ]
    if near:
        broken = " and ".join(f"max_{name}" for name in limits)
        text += f" Beyond {broken} if the step is one standard deviation longer: {', '.join(near)}."
    return ["", *wrap(text, WIDTH)]


def _figure(of: Finalist, name: str, form: str) -> str:
    return form.format(of.cost[name]) if name in of.cost else ""


def _command(space: SearchSpace, best: Finalist) -> str:
    """Return the command that runs a candidate."""
    import shlex

    if space.of_trace and not best.peak:
        return " ".join(map(shlex.quote, extrapolate_command(space, best.number)))
    # Packaged experiments are named without the ending.
    file = space.source if Path(space.source).exists() else Path(space.source).stem
    changes = [*space.changes]
    changes += [f"{key}={toml_value(value)}" for key, value in best.settings.items()]
    command = "job" if space.choice.asks_job else "run"
    return " ".join(
        [
            f"mpisim {command} {shlex.quote(file)}",
            *(f"--set {shlex.quote(each)}" for each in changes),
        ]
    )


def _weight(objective: str, of: Finalist) -> float:
    """Candidate → value of the objective for a second of its step: tokens, dollars, kWh."""
    if objective in COSTS_OF_TOKENS:
        return of.cost.get(COSTS_OF_TOKENS[objective][0], np.inf) / of.step_time
    if objective in OF_JOBS:
        return of.job["seconds" if objective == "job_time" else "usd"] / of.step_time
    gpus = of.gpus if objective == "tokens_per_second_per_gpu" else 1
    return gpus / max(of.tokens, 1)


def _apart(objective: str, one: Finalist, other: Finalist) -> float:
    """Two candidates → relative standard deviation of the ratio of their prices or powers.

    Those of the same GPUs are off together, others independently.
    """
    keys = ("cluster.preset", "kernels.gpu", "cluster.other_gpus", "prices.contract")
    if objective == "job_usd":
        off = [each.job["usd"] * each.cost.get("usd_error", 0.0) for each in (one, other)]
    elif objective in COSTS_OF_TOKENS:
        value, error = COSTS_OF_TOKENS[objective]
        off = [each.cost.get(value, 0.0) * each.cost.get(error, 0.0) for each in (one, other)]
    else:
        return 0.0
    if all(one.settings.get(key) == other.settings.get(key) for key in keys):
        return abs(off[0] - off[1])
    return hypot(*off)


def _told_apart(space: SearchSpace, best: Sequence[Finalist]) -> str:
    """Say which of the first candidates the error bars do not separate."""
    first, objective = best[0], space.choice.objectives[0]
    if len(best) == 1:
        return "It is the only one that is valid and keeps the limits."
    ties = []
    for place, each in enumerate(best[1:], 2):
        weights = _weight(objective, first), _weight(objective, each)
        error = difference_error(first, each, weights)
        error = hypot(error, _apart(objective, first, each))
        if weights[1] * each.step_time - weights[0] * first.step_time <= error:
            ties.append(place)
    if not ties:
        return "The first is ahead of each of the others by more than one standard deviation."
    places = ", ".join(map(str, ties))
    return (
        "Not told apart from the first (by less than one standard deviation of the difference): "
        f"{places}"
    )


def _bars(rows: Sequence[Finalist], drawing: Drawing) -> list[str]:
    """Draw the step of each candidate, all to one scale."""
    longest = max(each.step_ps for each in rows)
    last = len(PARTS) - 1
    legend = ", ".join(f"{drawing.fill(i, blank=i == last)} {name}" for i, name in enumerate(PARTS))
    cells: list[tuple[str, ...]] = [("", *PARTS)]
    bars = [" " * BAR_WIDTH]
    for place, each in enumerate(rows, 1):
        parts = [round(each.parts_ps[name]) for name in PARTS]
        width = max(round(BAR_WIDTH * each.step_ps / longest), 1)
        bars.append(drawing.bar(parts, width, blank=last) + " " * (BAR_WIDTH - width))
        cells.append((f"{place}", *(percentage(part / each.step_ps, 1) for part in parts)))
    table = zip(aligned(cells), bars, strict=True)
    return [
        f"Where the mean GPU's step goes: {legend}",
        *(f"  {line}  {bar}".rstrip() for line, bar in table),
    ]

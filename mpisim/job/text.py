"""Outcome of a job → text, short or with all assumptions; JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from ..base.frozen import frozen
from ..base.quantity import J_OF_A_KWH
from ..base.text import WIDTH, aligned, percentage, quantity, shortened
from ..report.drawing import PLAIN, Drawing
from ..report.summary import BAR_WIDTH, REPORT_LINES
from .outcome import SPARES, STATES, JobOutcome, Spread

__all__ = ["JobReport", "as_json", "big_number", "duration_text"]


SHOWN_CHANGES = 5
MIN_SHOWN_SHARE = 5e-4
"""Share of the time from which on a part has a line."""

UNITS = (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def duration_text(seconds: float) -> str:
    """Show a time in days, hours, minutes or seconds, whichever is 2 or more.

    Examples
    --------
    >>> duration_text(6_423_307.6), duration_text(1.5), duration_text(5400)
    ('74.3 days', '1.5 s', '90 min')
    """
    if not math.isfinite(seconds):
        return "never"
    name, size = next((each for each in UNITS if abs(seconds) >= 2 * each[1]), UNITS[-1])
    return (
        f"{seconds / size:,.3g} {name}"
        if abs(seconds) < 1000 * size
        else (f"{seconds / size:,.0f} {name}")
    )


def as_json(outcome: JobOutcome) -> dict[str, Any]:
    """Outcome → all its numbers; times in seconds, energy in J."""
    fleet, choice = outcome.fleet_table, outcome.choice
    costs = outcome.costs
    return {
        "step": asdict(outcome.step),
        "cluster": asdict(outcome.cluster),
        "job": {key: value for key, value in asdict(choice).items() if value is not None},
        "model": asdict(outcome.model),
        "fleet": {
            "name": outcome.fleet,
            "title": fleet.title,
            "per_1000_gpu_days": 1000 * fleet.per_gpu_day,
            "error": fleet.rate_error,
            "causes": fleet.shares,
        },
        "storage": outcome.storage,
        "checkpoint_times": asdict(outcome.times),
        "intervals": {
            key: value if not isinstance(value, float) or math.isfinite(value) else None
            for key, value in asdict(outcome.intervals).items()
        },
        "ideal": outcome.model.ideal,
        "undisturbed": outcome.model.undisturbed,
        "expected": outcome.expected,
        "time": asdict(outcome.time),
        "time_with_errors": asdict(outcome.time_with_errors),
        "errors": dict(outcome.errors),
        "goodput": asdict(outcome.goodput),
        "goodput_with_errors": asdict(outcome.goodput_with_errors),
        "parts": dict(outcome.parts),
        "interruptions": asdict(outcome.interruptions),
        "counts": dict(outcome.counts),
        "gpu_hours": asdict(outcome.gpu_hours),
        "spare_gpu_hours": outcome.spare_gpu_hours,
        "energy": None if outcome.energy is None else asdict(outcome.energy),
        "energy_parts": dict(outcome.energy_parts),
        "energy_error": outcome.energy_error,
        "usd": None if outcome.usd is None else asdict(outcome.usd),
        "costs": None if costs is None else asdict(costs),
        "changes": [
            {"name": each.name, "mean": each.mean, "base": each.base, "relative": each.relative}
            for each in outcome.changes
        ],
        "assumptions": list(outcome.assumptions),
        "runs": outcome.runs.parts.shape[1],
    }


@frozen
class JobReport:
    """The report of a job, from the numbers of `as_json`: just simulated, or from a file.

    Attributes
    ----------
    title : str
    numbers : dict
    """

    title: str
    numbers: dict[str, Any]

    def text(self, drawing: Drawing = PLAIN, *, details: bool = False) -> str:
        """Return the report: at most 30 lines, or with everything.

        Parameters
        ----------
        drawing : Drawing
        details : bool
        """
        sections = [
            self._head(drawing),
            self._time(drawing, details=details),
            self._checkpoints(drawing, details=details),
        ]
        if details:
            every = len(self.numbers["changes"])
            sections += [self._energy(drawing), self._changes(drawing, every)]
            sections.append(self._causes(drawing))
            sections.append(self._rests_on(drawing))
        else:
            n = len(self.numbers["assumptions"])
            last = [f"--details prints {n} assumptions, all tables."]
            # Each section is followed by an empty line, the last one not.
            taken = sum(len(section) + 1 for section in sections) + len(last)
            room = REPORT_LINES - taken - 2
            sections += [self._changes(drawing, min(room, SHOWN_CHANGES)), last]
        kept = [section for section in sections if section]
        return "\n".join(line for section in kept for line in [*section, ""]).rstrip()

    def _spread(self, name: str) -> Spread:
        return Spread(**self.numbers[name])

    def _head(self, drawing: Drawing) -> list[str]:
        n = self.numbers
        time, errors = self._spread("time"), self._spread("time_with_errors")
        good, hours = self._spread("goodput"), self._spread("gpu_hours")
        many, counts = self._spread("interruptions"), n["counts"]
        unsure = self._spread("goodput_with_errors")
        facts = [
            (
                "done in",
                f"{duration_text(time.p50)}, in 95 of 100 runs at most {duration_text(time.p95)} "
                f"(mean {duration_text(time.mean)}; {duration_text(n['ideal'])} of steps alone)",
            ),
            (
                "with errors",
                f"{duration_text(errors.p50)}, {duration_text(errors.p5)} to "
                f"{duration_text(errors.p95)}: {self._errors()}",
            ),
            ("title", self.title),
            (
                "job",
                f"{n['model']['steps']:,} step{'s' * (n['model']['steps'] != 1)} of "
                f"{n['step']['seconds']:.4g} s on {n['cluster']['gpus']:,} GPUs",
            ),
            (
                "goodput",
                f"{percentage(good.mean, 1)} of the time makes steps that count (of most runs "
                f"{100 * good.p5:.1f} to {percentage(good.p95, 1)}; with errors "
                f"{100 * unsure.p5:.0f} to {percentage(unsure.p95)})",
            ),
            ("GPU-hours", f"{big_number(hours.p50)} (p95 {big_number(hours.p95)}){self._spares()}"),
        ]
        if n["usd"] is not None:
            usd, error = self._spread("usd"), n["costs"]["usd_error"]
            both = f"${big_number(usd.p50)} (p95 ${big_number(usd.p95)})"
            facts.append(("dollars", f"{both} ± {percentage(error)} by its prices"))
        elif n["costs"] is not None:
            facts.append(("dollars", n["costs"]["missing"]))
        if n["energy"] is not None:
            kwh, error = self._spread("energy").times(1 / J_OF_A_KWH), n["energy_error"]
            both = f"{big_number(kwh.p50)} kWh (p95 {big_number(kwh.p95)}) ± {percentage(error)}"
            waiting = sum(n["energy_parts"][name] for name in (*STATES, SPARES))
            share = percentage(waiting / max(sum(n["energy_parts"].values()), 1e-300), 1)
            facts.append(("energy", f"{both}, with the building; {share} of it without a step"))
        rate = n["model"]["rate"] + n["model"]["planned_rate"]
        every = f", one in {duration_text(1 / rate)} of running" if rate else ""
        facts.append(
            (
                "interrupted",
                f"{_few(many.mean)} times ({many.p5:,.0f} to {many.p95:,.0f}){every}: "
                f"{_few(counts['failures'])} failures, {_few(counts['planned'])} planned",
            )
        )
        lines = aligned([(drawing.bold(key), value) for key, value in facts], left=(0, 1))
        return [shortened(line, WIDTH + 10) for line in lines]

    def _errors(self) -> str:
        words = {"step": "step", "rate": "failures", "detection": "detection", "restart": "restart"}
        found = self.numbers["errors"]
        return (
            ", ".join(f"{words[key]} ± {percentage(found[key])}" for key in words if found.get(key))
            or "none of the step, of failures or of restarts"
        )

    def _spares(self) -> str:
        hours = self.numbers["spare_gpu_hours"]
        return f", and {big_number(hours)} of spares" if hours else ""

    def _time(self, drawing: Drawing, *, details: bool) -> list[str]:
        parts = self.numbers["parts"]
        whole = sum(parts.values())
        shown = {
            name: seconds
            for name, seconds in parts.items()
            if seconds > (0 if details else MIN_SHOWN_SHARE * whole)
        }
        cells = []
        for number, (name, seconds) in enumerate(shown.items()):
            cells.append(
                (
                    f"{drawing.fill(number)} {name}",
                    duration_text(seconds),
                    percentage(seconds / whole, 2),
                )
            )
        return [
            drawing.bold(f"Where the time goes, {duration_text(whole)} in the mean"),
            f"  {drawing.bar([round(each) for each in shown.values()], BAR_WIDTH)}",
            *(f"  {line}" for line in aligned(cells)),
        ]

    def _energy(self, drawing: Drawing) -> list[str]:
        """Energy by part of the job's time: kWh, share, and W for each GPU."""
        n = self.numbers
        whole = sum(n["energy_parts"].values())
        if not whole:
            return []
        seconds = {**n["parts"], SPARES: n["time"]["mean"]}
        cells = []
        for name, joules in n["energy_parts"].items():
            if joules:
                watts = joules / seconds[name] / n["cluster"]["gpus"]
                of = "" if name == SPARES else f"{watts:,.0f} W for each GPU"
                kwh = f"{big_number(joules / J_OF_A_KWH)} kWh"
                cells.append((name, kwh, percentage(joules / whole, 2), of))
        return [
            drawing.bold("Where the energy goes, with the building"),
            *(f"  {line}" for line in aligned(cells)),
        ]

    def _checkpoints(self, drawing: Drawing, *, details: bool) -> list[str]:
        n, times = self.numbers, self.numbers["checkpoint_times"]
        step, intervals, model = n["step"]["seconds"], n["intervals"], n["model"]
        size = quantity(n["cluster"]["checkpoint"]["total"], "B")
        whole = f", whole {duration_text(times['persist'])} later" if times["persist"] else ""
        if intervals["daly"] is None:
            found = "without failures only the last is needed"
        else:
            same = [duration_text(step * intervals[key]) for key in ("low", "high")]
            by_formula = [duration_text(intervals[key]) for key in ("young", "daly")]
            found = (
                f"best every {duration_text(step * intervals['best'])} by simulation "
                f"({same[0]} to {same[1]} within 0.1 %), "
                f"Young {by_formula[0]}, Daly {by_formula[1]}"
            )
        used = duration_text(step * model["interval"])
        lines = [
            drawing.bold(f"Checkpoints of {size} every {used} ({model['interval']:,} steps)"),
            f"  training stands still for {duration_text(times['stall'])}{whole}; loaded in "
            f"{duration_text(times['load'])}",
            f"  {found}",
        ]
        if details and len(intervals["tried"]) > 1:
            best = min(mean for _, mean in intervals["tried"])
            cells = [("interval", "steps", "mean time", "longer")]
            for steps, mean in intervals["tried"]:
                row = (duration_text(steps * step), f"{steps:,}", duration_text(mean))
                cells.append((*row, percentage(mean / best - 1, 2, signed=True)))
            lines += [f"    {line}" for line in aligned(cells)]
        return lines

    def _changes(self, drawing: Drawing, most: int) -> list[str]:
        changes = self.numbers["changes"]
        if not changes or most < 1:
            return []
        largest = sorted(changes, key=lambda each: -abs(each["relative"]))[:most]
        changes = [each for each in changes if each in largest]
        cells = [
            (
                each["name"],
                duration_text(each["mean"] - each["base"]),
                percentage(each["relative"], 2, signed=True),
            )
            for each in changes
        ]
        return [
            drawing.bold("What would change it, in the mean"),
            *(f"  {line}" for line in aligned(cells)),
        ]

    def _causes(self, drawing: Drawing) -> list[str]:
        n = self.numbers
        causes, failures = n["fleet"]["causes"], n["counts"]["failures"]
        if not causes:
            return []
        cells = [
            (name, _few(failures * share), percentage(share, 1)) for name, share in causes.items()
        ]
        return [
            drawing.bold(f"Failures by cause, as of {n['fleet']['title']}"),
            *(f"  {line}" for line in aligned(cells)),
        ]

    def _rests_on(self, drawing: Drawing) -> list[str]:
        n = self.numbers
        runs = [
            f"{n['runs']:,} runs; the p95 is certain to ± {duration_text(n['time']['error'])} "
            f"(standard error); by closed form {duration_text(n['expected'])} in the mean",
        ]
        lines = [*n["assumptions"], *((n["costs"] or {}).get("lines", ())), *runs]
        return [
            drawing.bold("What this rests on"),
            *(
                each
                for line in lines
                for each in wrap(line, WIDTH, initial_indent="  ", subsequent_indent="    ")
            ),
        ]


def _few(value: float) -> str:
    """Show a mean number of times: with decimals where it is small."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def big_number(value: float) -> str:
    """Show a number with thousands or millions.

    Examples
    --------
    >>> big_number(29_233_000.0), big_number(812_345.0), big_number(12.0)
    ('29.2 million', '812,345', '12')
    """
    if abs(value) >= 1e9:
        return f"{value / 1e9:.3g} billion"
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g} million"
    if abs(value) < 10:
        return f"{value:.2g}"
    return f"{value:,.0f}"

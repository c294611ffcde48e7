"""Packaged experiments → predicted figures beside those that their sources report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base.frozen import frozen
from ..base.text import aligned, markdown_table, replace_between
from ..data import names
from ..experiment import load
from ..mpi.parallel import progress
from ..prediction.network import NetworkCache
from ..prediction.prepared import prepare
from ..prediction.published import PublishedComparison, compare_results
from ..simulate import simulate
from .cases import summary

__all__ = ["BEGIN", "END", "Run", "as_json", "markdown", "published_runs", "render"]

BEGIN, END = "<!-- figures: mpisim validate published --markdown -->", "<!-- end of figures -->"

HEAD = ("experiment", "figure", "published", "here", "error", "± (one σ)", "source")
ASSUMED = " *"


@frozen
class Run:
    """An experiment with published figures.

    Attributes
    ----------
    name : str
        As ``mpisim list experiments`` has it.
    uncertainty : float
        Of the predicted step time, relative, one standard deviation.
    figures : tuple of Compared
    """

    name: str
    uncertainty: float
    figures: tuple[PublishedComparison, ...]


def published_runs(words: Sequence[str] = ()) -> list[Run]:
    """Simulate all experiments with published figures whose names have all of some words.

    Parameters
    ----------
    words : sequence of str

    Returns
    -------
    list of Run
        By name.
    """
    found = []
    networks = NetworkCache()
    wanted = [each for each in names("experiments") if all(word.lower() in each for word in words)]
    with progress(None, "simulating experiments", len(wanted), steady=False) as update:
        for done, name in enumerate(wanted):
            update(done)
            _, experiment = load(name)
            if not list(experiment.published.figures()):
                continue
            results = simulate(prepare(experiment, networks=networks))
            assert results is not None  # one process
            error = float(results.attributes["uncertainty"])
            found.append(Run(name, error, tuple(compare_results(experiment, results))))
    return found


def render(runs: Sequence[Run]) -> str:
    """Published runs, simulated → table of figures and errors.

    Parameters
    ----------
    runs : sequence of Run

    Returns
    -------
    str
    """
    return "\n".join([*aligned([HEAD, *_cells(runs)], left=(0, 1, 6)), "", *_summaries(runs)])


def markdown(runs: Sequence[Run], page: str) -> str:
    """Page → the same with the figures between the lines `BEGIN` and `END` written anew.

    Parameters
    ----------
    runs : sequence of Run
    page : str
        Its text as it is; with both lines.
    """
    text = "\n\n".join([markdown_table([HEAD, *_cells(runs)]), *_summaries(runs)])
    return replace_between(page, BEGIN, END, text)


def as_json(runs: Sequence[Run]) -> dict[str, Any]:
    """Published runs, simulated → all figures and summaries of their errors, ready for JSON.

    Parameters
    ----------
    runs : sequence of Run

    Returns
    -------
    dict
        ``runs``; ``errors`` and ``errors_assumed``: as of `summary`, of runs as described and of
        those that rest on assumptions.
    """
    return {
        "runs": [
            {
                "name": run.name,
                "uncertainty": run.uncertainty,
                "figures": [each.as_json() for each in run.figures],
            }
            for run in runs
        ],
        "errors": summary(_errors(runs, assumed=False)),
        "errors_assumed": summary(_errors(runs, assumed=True)),
    }


def _cells(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    return [
        (
            run.name,
            each.title,
            f"{each.published:.4g} {each.unit}",
            f"{each.predicted:.4g}",
            f"{100 * each.error:+.1f} %{ASSUMED if each.assumed else ''}",
            f"{100 * run.uncertainty:.0f} %",
            each.source,
        )
        for run in runs
        for each in run.figures
    ]


def _errors(runs: Sequence[Run], *, assumed: bool) -> list[float]:
    """Return the error of the first figure of each run that assumes something, or does not."""
    firsts = [run.figures[0] for run in runs]
    return [each.error for each in firsts if bool(each.assumed) is assumed]


def _summaries(runs: Sequence[Run]) -> list[str]:
    lines = []
    for assumed, which in ((False, "runs"), (True, "runs marked *")):
        found = summary(_errors(runs, assumed=assumed))
        if found["n"]:
            lines.append(
                f"{found['n']} {which}: mean error {100 * (found['mape'] or 0):.1f} %, median "
                f"{100 * (found['median'] or 0):.1f} % (absolute, first figure of each)"
            )
    missing = sorted({each.assumed for run in runs for each in run.figures if each.assumed})
    lines += [f"*: not said by the source, and assumed: {each}" for each in missing]
    return lines

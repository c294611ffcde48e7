"""What a result says in words: title, headline, and what it states of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..base.text import duration, error_bar, one_line
from ..results import Results

__all__ = ["error_text", "headline_of", "statements_of", "subtitle_of", "title_of"]

LISTS = {
    "memory": "Memory",
    "assumptions": "Assumptions",
    "not_modelled": "Not modelled",
    "uncertainty_sources": "Where the error bar comes from",
    "overlap_slowdowns": "Slowdown of what overlaps",
    "published": "Published measurements",
}
"""Attributes of results that are lists, in the order of the page."""

UNTITLED = "experiment"
"""What the generator calls experiments without a title."""

IN_HEADLINE = ("throughput", "uncertainty")
"""Attributes that the headline has."""

NUMBERS = (
    "tokens",
    "model_flops",
    "executed_flops",
    "utilisation",
    "memory_peak",
    "memory_capacity",
    "memory_error",
    "overlap_added",
    "launch_share",
    "cuda_graphs_step_time",
)
"""Attributes that are in the texts of others."""


def title_of(results: Results, name: str = "") -> str:
    """Return what a result is called.

    Parameters
    ----------
    results : Results
    name : str
        If it has no title of its own.
    """
    title = results.program.get("title", "")
    return one_line((title if title != UNTITLED else "") or name or "A training step")


def subtitle_of(results: Results) -> str:
    """Return what was simulated, on how many GPUs and by what."""
    gpus = f"{results.n_ranks:,} GPU" + ("s" if results.n_ranks != 1 else "")
    of = results.recorded
    if of is None:
        what = "1 step"
    elif of.shown_step < 0:
        what = "a recording, replayed,"
    else:
        what = f"step {of.shown_step} of a recording, replayed,"
    return f"{what} on {gpus}, {results.creator}"


def error_text(results: Results) -> str:
    """Return the error bar of a result, as ``± 8.1 %``; empty if it has none."""
    error = results.attributes.get("uncertainty")
    return error_bar(error) if isinstance(error, float) else ""


def headline_of(results: Results) -> dict[str, Any]:
    """Return the step time, its error bar and the facts beside it."""
    attributes, facts = results.attributes, []
    of = results.recorded
    if of is not None and len(of.step) > 1:
        facts.append(["Step time", f"mean of {len(of.step)} recorded steps"])
        facts.append(["Shown here", f"step {of.shown_step}, {duration(of.shown_ps)}"])
    throughput = attributes.get("throughput")
    if isinstance(throughput, str):
        first, *others = (each.strip() for each in _split(throughput))
        facts.append(["Throughput", first])
        facts += [["Each GPU", each] for each in others]
    memory = _list(attributes.get("memory"))
    if memory:
        facts.append(["Memory", _sentence(memory)])
    facts.append(["GPUs", f"{results.n_ranks:,}"])
    facts.append(["Digest", results.digest])
    return {
        "step": duration(results.step_time_ps),
        "error": error_text(results),
        "facts": facts,
    }


def _split(throughput: str) -> list[str]:
    """Return what is said of the job, and of a GPU; commas also separate thousands."""
    return throughput.split(", ", 1)


def _sentence(lines: Sequence[str]) -> str:
    """Return the verdict that begins the statement about memory: lines up to the first table."""
    kept: list[str] = []
    for line in lines:
        kept.append(line.strip())
        if line.rstrip().endswith("."):
            break
    return " ".join(kept)


def _list(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list | tuple) else []


def statements_of(results: Results) -> list[dict[str, Any]]:
    """Results → what they state of themselves, by title; nothing that is said is left out."""
    attributes = dict(results.attributes)
    for key in NUMBERS:
        attributes.pop(key, None)
    found = []
    sampled = {key: attributes.pop(key) for key in list(attributes) if key.startswith("sampled_")}
    for key, title in LISTS.items():
        items = _list(attributes.pop(key, None))
        if items:
            found.append({"title": title, "items": items})
    for key in list(attributes):
        if isinstance(attributes[key], list):
            found.append({"title": _words(key).capitalize(), "items": _list(attributes.pop(key))})
    steps = sampled.pop("sampled_steps", None)
    if steps:
        items = [f"{key[8:]}: {duration(round(value))}" for key, value in sampled.items()]
        items.append(f"from {duration(min(steps))} to {duration(max(steps))}")
        found.append({"title": f"{len(steps)} seeds", "items": items})
    others_by_key = {**results.program, **attributes}
    others = [
        f"{_words(key)}: {value:.6g}" if isinstance(value, float) else f"{_words(key)}: {value}"
        for key, value in others_by_key.items()
        if key not in IN_HEADLINE or isinstance(value, str)
    ]
    if others:
        found.append({"title": "Also said", "items": others})
    return found


def _words(key: str) -> str:
    return one_line(key).replace("_", " ")

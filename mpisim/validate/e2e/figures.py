"""Errors of predicted steps by named set and by group, and a comparison as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...experiment import Transformer
from ..cases import summary
from .compare import Compared, Comparison
from .experiments import VERDICTS
from .pairs import pair_figures, pairs
from .predict import outcome_as_json

__all__ = ["as_json", "coverage", "figures", "headlines", "judged_by_memory", "tables"]

Choice = Callable[[Compared], bool]


def _trust(each: Compared, levels: str) -> bool:
    return each.trust in levels


def _source(name: str, precision: str = "") -> Choice:
    def holds(each: Compared) -> bool:
        right = not precision or each.row.texts["precision"] == precision
        return each.mapped.source == name and right and _trust(each, "AB")

    return holds


def _pattern(each: Compared) -> str:
    """Return the kinds of layers of a hybrid; empty for other models."""
    model = each.mapped.experiment.model
    return model.pattern if isinstance(model, Transformer) else ""


def _has_adapters(each: Compared) -> bool:
    model = each.mapped.experiment.model
    return isinstance(model, Transformer) and model.lora_rank > 0


SETS: dict[str, Choice] = {
    "dense transformers, trust A": lambda each: each.mapped.is_dense and _trust(each, "A"),
    "vTrain, several nodes": lambda each: each.mapped.source == "vtrain" and _trust(each, "A"),
    "dgxc, bf16": _source("dgxc", "bf16"),
    "dgxc, fp8": _source("dgxc", "fp8"),
    "llm-foundry": _source("llm-foundry"),
    "bigscience": _source("bigscience"),
    "torchtitan": _source("torchtitan"),
    "Korthikanti": _source("korthikanti"),
    "MLPerf, GPT-3": lambda each: (
        _source("mlperf")(each) and each.row.texts["model"].startswith("GPT-3")
    ),
    "Megatron-Bridge, dense": lambda each: each.mapped.is_dense and _source("bridge")(each),
    "mixtures of experts": lambda each: (
        each.mapped.is_transformer and not each.mapped.is_dense and _trust(each, "AB")
    ),
    "mixtures of experts, without hybrids": lambda each: (
        each.mapped.is_transformer
        and not each.mapped.is_dense
        and not _pattern(each)
        and _trust(each, "AB")
    ),
    "hybrids of Mamba-2": lambda each: bool(_pattern(each)) and _trust(each, "AB"),
    "adapters (LoRA)": lambda each: _has_adapters(each) and _trust(each, "AB"),
    "trust A": lambda each: _trust(each, "A"),
    "trust A and B": lambda each: _trust(each, "AB"),
    "trust A, B and C": lambda each: _trust(each, "ABC"),
    "trust F (a formula)": lambda each: _trust(each, "F"),
}
"""Sets of rows whose errors are published, by name; those of one source hold trust A and B."""


def named_sets(rows: Sequence[Compared]) -> dict[str, list[Compared]]:
    """Rows → rows of each of `SETS`, and of those with suspect rows also without these.

    Empty sets are left out.
    """
    found: dict[str, list[Compared]] = {}
    for name, holds in SETS.items():
        group = [each for each in rows if holds(each)]
        sound = [each for each in group if not each.row.texts["suspect"]]
        if group:
            found[name] = group
        if sound and len(sound) < len(group):
            found[f"{name}, without suspect rows"] = sound
    return found


ERROR_LIMITS = (0.05, 0.1, 0.2)
"""Errors whose share of rows is reported."""

Figures = dict[str, float | int | None]


def _scale(each: Compared) -> str:
    """Name a decade of GPUs so that names sort by size."""
    power = len(str(each.row.integers["num_gpus"])) - 1
    return f"{10**power} to {10 ** (power + 1) - 1} GPUs"


def _parallelism(each: Compared) -> str:
    plan = each.mapped.experiment.plan
    gpus = each.row.integers["num_gpus"]
    return plan.division(plan.dp or gpus // (plan.tp * plan.pp * plan.cp))


def _kind(each: Compared) -> str:
    if each.mapped.is_transformer:
        return "dense transformer" if each.mapped.is_dense else "mixture of experts"
    return each.sort


GROUPINGS: dict[str, Callable[[Compared], str]] = {
    "trust": lambda each: each.trust,
    "source": lambda each: each.mapped.source,
    "gpu": lambda each: each.row.texts["gpu"],
    "precision": lambda each: each.row.texts["precision"] or "not stated",
    "scale": _scale,
    "parallelism": _parallelism,
    "kind": _kind,
}
"""What errors are grouped by."""


def figures(rows: Sequence[Compared]) -> Figures:
    """Compared rows → figures of their errors.

    Parameters
    ----------
    rows : sequence of Compared

    Returns
    -------
    dict
        n; mean (``mape``), median and 90th percentile (``p90``) of absolute relative errors; mean
        of signed ones (``bias``); shares of rows within 5, 10 and 20 % (``within_5``, …), and
        within the stated 90 % interval (``covered``). None where there is no row.
    """
    errors = [each.error for each in rows]
    size = np.abs(errors)
    found: Figures = dict(summary(errors))
    found["bias"] = float(np.mean(errors)) if errors else None
    for limit in ERROR_LIMITS:
        share = float((size <= limit).mean()) if errors else None
        found[f"within_{100 * limit:.0f}"] = share
    found["covered"] = float(np.mean([each.inside for each in rows])) if errors else None
    return found


def headlines(rows: Sequence[Compared]) -> dict[str, Figures]:
    """Compared rows → figures of the named sets, by name (`named_sets`).

    Parameters
    ----------
    rows : sequence of Compared

    Returns
    -------
    dict of str to dict
        As of `figures`.
    """
    return {name: figures(group) for name, group in named_sets(rows).items()}


def tables(rows: Iterable[Compared]) -> dict[str, dict[str, Figures]]:
    """Compared rows → figures by each of `GROUPINGS`.

    Parameters
    ----------
    rows : iterable of Compared
        Those of trust F, which follow a formula, are left out.

    Returns
    -------
    dict of str to (dict of str to dict)
        By grouping and group, as of `figures`.
    """
    measured = [each for each in rows if each.trust != "F"]
    result: dict[str, dict[str, Figures]] = {}
    for grouping, key in GROUPINGS.items():
        groups: dict[str, list[Compared]] = {}
        for each in measured:
            groups.setdefault(key(each), []).append(each)
        result[grouping] = {name: figures(group) for name, group in sorted(groups.items())}
    return result


def coverage(found: Comparison) -> dict[str, float]:
    """Comparison → shares of the rows with a measured step time that were predicted.

    Parameters
    ----------
    found : Comparison

    Returns
    -------
    dict of str to float
        ``all``; ``transformers``: of trust A and B, rows whose layers have a shape or a preset.
    """
    done = [each for each in found.compared if each.trust in "AB"]
    left = [each for each in found.skipped if each.row.seconds is not None]
    missed = sum(each.row.texts["trust"] in "AB" and "layers" in each.row.integers for each in left)
    predicted = sum(each.mapped.is_transformer for each in done)
    return {
        "all": len(found.compared) / max(1, found.timed),
        "transformers": predicted / max(1, predicted + missed),
    }


def as_json(found: Comparison, path: str) -> dict[str, Any]:
    """Comparison → all figures, in the layout that every ``validate`` command writes.

    Parameters
    ----------
    found : Comparison
    path : str
        Of the table of measurements, as the user gave it.
    """
    measured = [each for each in found.compared if each.trust != "F"]
    formula = [each for each in found.compared if each.trust == "F"]
    whole = figures(measured)
    return {
        "kind": "e2e",
        "table": path,
        "rows": found.rows,
        "timed": found.timed,
        "predicted": len(found.compared),
        "coverage": coverage(found),
        "refused_by_memory": judged_by_memory(found.compared)["refused"],
        "memory": judged_by_memory(found.compared),
        "skipped": dict(sorted(found.reasons.items())),
        **{key: whole[key] for key in ("mape", "median", "p90", "bias", "covered")},
        "headlines": headlines(found.compared),
        "calibrated": _cross_validated(found.cross_validated),
        "calibrated_on_other_sources": _cross_validated(found.other_sources),
        "groups": {
            f"{grouping}={name}": group
            for grouping, groups in tables(found.compared).items()
            for name, group in groups.items()
        }
        | ({"trust=F": figures(formula)} if formula else {}),
        "defaults": dict(found.defaults.most_common()),
        "approximations": dict(found.approximations.most_common()),
        "pairs": pair_figures(pairs(found.compared)),
        "cases": [_case(each) | _outcome(found, each) for each in found.compared],
    }


def judged_by_memory(rows: Sequence[Compared]) -> dict[str, int]:
    """Compared rows → how often the memory model says each of `VERDICTS`; all of them ran.

    Parameters
    ----------
    rows : sequence of Compared

    Returns
    -------
    dict of str to int
    """
    counts = dict.fromkeys(VERDICTS, 0)
    for each in rows:
        counts[each.mapped.judged(each.outcome.fits, each.outcome.certain)] += 1
    return counts


def _outcome(found: Comparison, each: Compared) -> dict[str, Any]:
    """Return the simulated outcome for reuse, if no fitted constants entered: digests lack them."""
    return (
        {"outcome": outcome_as_json(each.mapped, each.outcome, found.every)} if found.plain else {}
    )


def _cross_validated(rows: Sequence[Compared]) -> dict[str, Any] | None:
    """Return the figures of predictions with constants fitted to other rows."""
    if not rows:
        return None
    return {
        "headlines": headlines(rows),
        "groups": {
            f"{grouping}={name}": group
            for grouping, groups in tables(rows).items()
            for name, group in groups.items()
        },
        "pairs": pair_figures(pairs(rows)),
        "cases": [_case(each) for each in rows],
    }


def _case(each: Compared) -> dict[str, Any]:
    return {
        "id": each.row.id,
        "measured": each.measured,
        "predicted": each.predicted,
        "error": each.error,
        "stated_error": each.uncertainty,
        "fits": each.outcome.fits,
        "hidden": _hidden(each),
        **{name: key(each) for name, key in GROUPINGS.items()},
        "suspect": each.row.texts["suspect"],
        "breakdown": each.outcome.breakdown,
        "defaults": list(each.mapped.defaults),
        "approximations": list(each.mapped.approximations),
    }


def _hidden(each: Compared) -> int | None:
    """Return the width of a transformer's layers."""
    model = each.mapped.experiment.model
    return model.hidden if isinstance(model, Transformer) else None

"""Values of a key of the plan that a search may take by itself: ``"auto"``.

What the model and the cluster allow, as far as sizes say: divisors and powers of two within limits
that hold for each key alone. Combinations that do not go together are left out later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_args, get_type_hints

from ..base.errors import InputError
from ..experiment import Dlrm, Experiment, TableOptions, Transformer

__all__ = ["AUTOMATIC", "automatic_keys", "automatic_values"]

MAX_CONTEXT_PARALLEL = 16
"""Largest ``plan.cp`` that "auto" tries."""
MIN_TOKENS_OF_A_RANK = 1024
"""Of a sequence that is split by context parallelism: shorter shares keep no GPU busy."""
MAX_MICRO_BATCH = 32
"""Largest ``plan.micro_batch`` that "auto" tries, of sequences."""


def automatic_values(key: str, experiment: Experiment) -> tuple[int | str, ...]:
    """Key of ``[plan]`` → values for a search over an experiment.

    Parameters
    ----------
    key : str
        One of `AUTOMATIC`.
    experiment : Experiment
        Its model, cluster and global batch count.

    Raises
    ------
    InputError
        If the model has no such parallelism.
    """
    return AUTOMATIC[key](experiment)


def _transformer(experiment: Experiment, key: str) -> Transformer:
    model = experiment.model
    if not isinstance(model, Transformer):
        raise InputError(
            f"{experiment.source}: key 'search.vary.plan.{key}' is \"auto\"; "
            "that is for transformers"
        )
    return model


def _gpus(experiment: Experiment) -> int:
    cluster = experiment.cluster
    return cluster.gpus or cluster.nodes * cluster.node_gpus


def _divisors(number: int, most: int) -> tuple[int, ...]:
    return tuple(each for each in range(1, min(number, most) + 1) if number % each == 0)


def _powers(most: int) -> tuple[int, ...]:
    return tuple(1 << e for e in range(most.bit_length()) if 1 << e <= most)


def _tp(experiment: Experiment) -> tuple[int, ...]:
    """Powers of two within a node that divide the heads."""
    heads = _transformer(experiment, "tp").heads
    node = experiment.cluster.node_gpus
    most = min(node, _gpus(experiment))
    return tuple(each for each in _powers(most) if heads % each == 0)


def _pp(experiment: Experiment) -> tuple[int, ...]:
    """Divisors of the layers."""
    return _divisors(_transformer(experiment, "pp").layers, _gpus(experiment))


def _vpp(experiment: Experiment) -> tuple[int, ...]:
    """Divisors of the layers, two stages at least."""
    layers = _transformer(experiment, "vpp").layers
    return _divisors(layers, layers // 2)


def _cp(experiment: Experiment) -> tuple[int, ...]:
    """Powers of two that leave each rank a useful share of a sequence."""
    length = _transformer(experiment, "cp").seq_len
    most = min(MAX_CONTEXT_PARALLEL, length // MIN_TOKENS_OF_A_RANK, _gpus(experiment))
    return _powers(max(most, 1))


def _ep(experiment: Experiment) -> tuple[int, ...]:
    """Powers of two that divide the experts; 1 without experts."""
    experts = _transformer(experiment, "ep").experts or 1
    return tuple(each for each in _powers(min(experts, _gpus(experiment))) if experts % each == 0)


def _micro_batch(experiment: Experiment) -> tuple[int, ...]:
    """Powers of two that divide the batch; images up to all that a GPU has in a step."""
    batch = experiment.plan.global_batch
    most = MAX_MICRO_BATCH
    if not isinstance(experiment.model, Transformer):
        most = max(batch // _gpus(experiment), 1)
    return tuple(each for each in _powers(min(batch, most)) if batch % each == 0)


def _recompute(experiment: Experiment) -> tuple[str, ...]:
    _transformer(experiment, "recompute")
    return ("none", "selective", "full")


def _zero(experiment: Experiment) -> tuple[int, ...]:
    return (0, 1, 2, 3)


def _sharder(experiment: Experiment) -> tuple[str, ...]:
    if not isinstance(experiment.model, Dlrm):
        raise InputError(
            f"{experiment.source}: key 'search.vary.plan.tables' is \"auto\"; "
            "that is for recommendation models"
        )
    return get_args(get_type_hints(TableOptions)["sharder"])


AUTOMATIC: Mapping[str, Callable[[Experiment], tuple[int | str, ...]]] = {
    "tp": _tp,
    "pp": _pp,
    "vpp": _vpp,
    "cp": _cp,
    "ep": _ep,
    "micro_batch": _micro_batch,
    "recompute": _recompute,
    "zero": _zero,
    "tables": _sharder,
}
"""Keys of ``[plan]`` that may be "auto", and what makes their values."""

OF_TRANSFORMERS = tuple(key for key in AUTOMATIC if key != "tables")
OF_CNNS = ("micro_batch", "zero")
OF_DLRMS = ("tables",)


def automatic_keys(experiment: Experiment) -> tuple[str, ...]:
    """Experiment → keys of ``[plan]`` that ``plan = "auto"`` varies.

    Parameters
    ----------
    experiment : Experiment
        Its kind of model decides.

    Returns
    -------
    tuple of str
    """
    if isinstance(experiment.model, Transformer):
        return OF_TRANSFORMERS
    return OF_DLRMS if isinstance(experiment.model, Dlrm) else OF_CNNS

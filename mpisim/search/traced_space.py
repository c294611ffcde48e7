"""``[search]`` of an experiment of a trace: which keys may vary, and values for ``"auto"``.

A trace of one GPU takes any plan, batch, GPU and cluster. One of several ranks has a plan already:
what may vary are its replicas, its optimizer, the GPU and the network.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..base.errors import InputError, one_of
from ..base.schema import build
from ..experiment import ClusterChoice, DataChoice, Plan
from ..experiment.framework import FrameworkOptions
from ..experiment.program_experiment import (
    OF_ONE_GPU,
    OF_SEVERAL_RANKS,
    TABLES,
    ProgramExperiment,
    WorkloadChoice,
    program_experiment,
)
from ..extrapolate.context_parallel import check_context
from ..extrapolate.expert_parallel import experts_of
from ..extrapolate.prepare import of_several_ranks, read_traced, trace_path
from .automatic import MAX_CONTEXT_PARALLEL, MIN_TOKENS_OF_A_RANK

__all__ = ["TABLES_OF_TRACES", "TracedValues"]

TABLES_OF_TRACES: Mapping[str, Any] = {
    "workload": WorkloadChoice,
    "plan": Plan,
    "framework": FrameworkOptions,
    "data": DataChoice,
    **TABLES,
}
"""Tables of an experiment of a trace, with their dataclasses."""

TRACED_OBJECTIVES = ("step_time", "tokens_per_second", "tokens_per_second_per_gpu", "gpus")
"""Objectives that a trace can tell."""

GROWN_KEYS = (
    "plan.dp",
    "plan.pp",
    "workload.gpu",
    "workload.distributed_optimizer",
    "workload.micro_batches",
    "cluster.preset",
    "cluster.nodes",
    "cluster.gpus",
)
"""Keys that may vary where a trace is of several ranks."""

MOST_SAMPLES = 32
"""Of a micro-batch, for "auto", unless more were traced."""


class TracedValues:
    """What may vary over a trace, and values for ``"auto"``. Reads the trace.

    Parameters
    ----------
    tables : mapping
        Of the experiment, with a first value of each key that it needs.
    source : str
        Its file, for messages.

    Raises
    ------
    InputError
        If the tables contradict each other, or the trace cannot be read.
    """

    def __init__(self, tables: Mapping[str, Any], source: str) -> None:
        workload = tables["workload"]
        if isinstance(workload, dict) and "program" in workload:
            raise InputError(
                f"{source}: key 'workload.program' is given; a program's plan is fixed: a search "
                "takes 'model', or 'workload.trace'"
            )
        experiment = program_experiment(tables, source)
        assert experiment.trace is not None
        self._experiment, self._source = experiment, source
        self.several = of_several_ranks([trace_path(experiment)])
        if self.several:
            _check_grown(tables, experiment, source)
            return
        step = self._step = read_traced(experiment)
        outside = {*step.embedding, *step.head}
        self._blocks = sum(name not in outside for name, _ in step.layers())
        self._batch = step.batch
        self._experts = min((each.count for each in experts_of(step)), default=1)
        cluster = build(ClusterChoice, experiment.tables.get("cluster", {}), source, "cluster")
        self._gpus = cluster.gpus or cluster.nodes * cluster.node_gpus
        self._node = min(cluster.node_gpus, self._gpus)

    def check_key(self, key: str) -> None:
        """Refuse a key that a search over this trace cannot vary.

        Raises
        ------
        InputError
        """
        if self.several:
            if key not in GROWN_KEYS:
                raise InputError(
                    f"{self._source}: key 'search.vary' has {key!r}, but the trace is of several "
                    f"ranks, whose plan is as recorded{one_of(key, GROWN_KEYS)}"
                )
            return
        table, _, name = key.partition(".")
        if table == "workload" and name in (*OF_SEVERAL_RANKS, "trace", "trace_of", "program"):
            raise InputError(
                f"{self._source}: key 'search.vary' has {key!r}, which cannot vary over a trace of "
                "one GPU"
            )

    def check_objectives(self, objectives: Collection[str]) -> None:
        """Refuse objectives that a trace cannot tell.

        Raises
        ------
        InputError
        """
        rates = [each for each in objectives if each.startswith("tokens")]
        if self.several and rates and self._choice.traced_batch is None:
            raise InputError(
                f"{self._source}: key 'search.objectives' has {rates[0]!r}; how many samples a "
                "step of several ranks has its traces do not say: workload.traced_batch does"
            )
        for each in objectives:
            if each not in TRACED_OBJECTIVES:
                raise InputError(
                    f"{self._source}: key 'search.objectives' has {each!r}, which a trace does not "
                    f"tell{one_of(each, TRACED_OBJECTIVES)}"
                )

    def automatic(self, key: str) -> tuple[int, ...]:
        """Key of ``[plan]`` → values that the trace and the cluster allow.

        Raises
        ------
        InputError
            If there are none.
        """
        values = {
            "tp": self._tp,
            "pp": self._pp,
            "vpp": self._vpp,
            "cp": self._cp,
            "micro_batch": self._micro_batch,
            "ep": self._ep,
            "zero": lambda: (0, 1, 2, 3),
        }
        name = key.removeprefix("plan.")
        if self.several or name not in values:
            known = [] if self.several else [f"plan.{each}" for each in values]
            what = (
                f"that is for {', '.join(known)}" if known else "a trace of several ranks has none"
            )
            raise InputError(f"{self._source}: key 'search.vary.{key}' is \"auto\"; {what}")
        return values[name]()

    @property
    def all_automatic(self) -> tuple[str, ...]:
        """Keys that are varied where "auto" is said of the whole plan."""
        found = ["tp", "pp", "vpp", "micro_batch", "zero"]
        found += ["cp"] if len(self._cp()) > 1 else []
        found += ["ep"] if self._experts > 1 else []
        return tuple(found)

    @property
    def _choice(self) -> WorkloadChoice:
        assert self._experiment.trace is not None
        return self._experiment.trace

    def _tp(self) -> tuple[int, ...]:
        """Powers of two within a node."""
        return _powers(self._node)

    def _pp(self) -> tuple[int, ...]:
        """Divisors of the GPUs, at most as many as there are layers to cut between."""
        most = min(self._gpus, self._blocks)
        return tuple(n for n in range(1, most + 1) if self._gpus % n == 0)

    def _vpp(self) -> tuple[int, ...]:
        """Powers of two that leave two stages a layer each."""
        return _powers(max(1, self._blocks // 2))

    def _cp(self) -> tuple[int, ...]:
        """Powers of two that leave a rank a useful share of a sequence, of fused attention."""
        length = self._choice.seq_len or self._step.sequence or 0
        most = min(MAX_CONTEXT_PARALLEL, length // MIN_TOKENS_OF_A_RANK, self._gpus)
        found = [1]
        for each in _powers(most)[1:] if most > 1 else ():
            try:
                check_context(self._step, Plan(global_batch=1, cp=each), self._choice.seq_len)
            except InputError:
                break
            found.append(each)
        return tuple(found)

    def _ep(self) -> tuple[int, ...]:
        """Divisors of the experts, at most as many as there are GPUs."""
        most = min(self._experts, self._gpus)
        return tuple(n for n in range(1, most + 1) if self._experts % n == 0)

    def _micro_batch(self) -> tuple[int, ...]:
        """Powers of two that divide the batch: of a step, or as traced of a replica."""
        batch = self._experiment.plan.get("global_batch", self._batch)
        if not isinstance(batch, int):
            return (1,)
        most = min(batch, max(MOST_SAMPLES, self._batch))
        return tuple(each for each in _powers(most) if batch % each == 0)


def _powers(most: int) -> tuple[int, ...]:
    return tuple(1 << e for e in range(most.bit_length()))


def _check_grown(tables: Mapping[str, Any], experiment: ProgramExperiment, source: str) -> None:
    """Refuse what has no effect on a job of several ranks."""
    allowed: Mapping[str, Collection[str]] = {
        "plan": ("dp", "pp"),
        "cluster": ("preset", "nodes", "gpus"),
        "network": ("calibration",),
        "workload": (*OF_SEVERAL_RANKS, "trace", "traced_batch", "gpu"),
    }
    for name, table in tables.items():
        if name in ("title", "search"):
            continue
        for key in table if isinstance(table, dict) else (name,):
            if key in allowed.get(name, ()):
                continue
            why = "is for traces of one GPU" if key in OF_ONE_GPU else "has no effect"
            raise InputError(
                f"{source}: key '{name}.{key}' {why}; {experiment.trace and experiment.trace.trace}"
                " is of several ranks, whose plan is as recorded but for plan.dp and plan.pp"
            )

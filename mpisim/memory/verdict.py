"""Layout, GPU → `Verdict`: whether the plan fits into GPU and host memory, as text and numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from textwrap import wrap
from typing import Any

from ..base.frozen import frozen
from ..base.quantity import GIB
from ..base.text import WIDTH, aligned, apportioned, percent
from ..experiment import Experiment, Plan, Transformer
from ..kernels import Gpu
from ..workloads import Layout, lay_out
from ..workloads.host import Host, host_of
from .constants import capacity
from .model import PARTS, StageMemory, memory

__all__ = ["GIB", "Evaluate", "Verdict", "assess", "evaluator"]

LAST_DIGIT = GIB // 100
"""The last digit shown, in bytes."""

MAX_STAGES_SHOWN = 8
"""Stages in the table before only the fullest are shown."""


@frozen
class Verdict:
    """Memory of every stage, compared with the memory of a GPU.

    Attributes
    ----------
    stages : tuple of StageMemory
    capacity : int
        Bytes a program can have (:func:`mpisim.memory.capacity`).
    gpu : str
        Name of the GPU.
    host : Host, optional
        The host, where anything is offloaded.
    """

    stages: tuple[StageMemory, ...]
    capacity: int
    gpu: str
    host: Host | None = None

    @property
    def worst(self) -> StageMemory:
        """Stage whose GPUs are fullest; the first of equals."""
        return max(self.stages, key=lambda stage: (stage.total, -stage.stage))

    @property
    def peak(self) -> int:
        """Bytes on a GPU of the fullest stage, at the worst moment of a step."""
        return self.worst.total

    @property
    def headroom(self) -> int:
        """Bytes left on the fullest stage; negative where they are missing."""
        return self.capacity - self.peak

    @property
    def host_peak(self) -> int:
        """Bytes of a host's memory, if all its GPUs were of the stage that takes most of it."""
        ranks = 0 if self.host is None else self.host.ranks
        return ranks * max(each.host.total for each in self.stages)

    @property
    def host_fits(self) -> bool:
        """Whether the host has that much memory; true where its size is unknown."""
        if self.host is None or self.host.memory is None:
            return True
        return self.host_peak <= self.host.memory.si

    @property
    def fits(self) -> bool:
        """Whether every stage fits into its GPUs, and offloaded states into the host."""
        return self.headroom >= 0 and self.host_fits

    @property
    def certain(self) -> bool:
        """Whether the answer stays the same within two standard deviations.

        One stage that is over by more is enough for a plan that does not fit; every stage of one
        that fits must be under by more.
        """
        over = [each.total - self.capacity for each in self.stages]
        errors = [2 * each.error for each in self.stages]
        surely_not = any(more > error for more, error in zip(over, errors, strict=True))
        surely = all(-more > error for more, error in zip(over, errors, strict=True))
        return surely_not or surely or not self.host_fits

    @property
    def offloads(self) -> bool:
        """Whether anything lies in the host's memory."""
        return self.host_peak > 0

    def sentence(self) -> str:
        """Return the verdict in one line."""
        worst = self.worst
        what = "fits" if self.fits else "does not fit" if self.certain else "may not fit"
        many = len(self.stages) > 1
        where = f"stage {worst.stage} of {len(self.stages)}" if many else "every GPU"
        needs = f"{_gib(worst.total)} ± {worst.error / GIB:,.1f} of {_gib(self.capacity)}"
        left = f"{_gib(abs(self.headroom))} {'free' if self.headroom >= 0 else 'missing'}"
        uncertain = "" if self.certain else "; too close to call"
        if not self.host_fits:
            uncertain = f"; {self._host_sentence()}"
        return f"{what} into {self.gpu}: {where} needs {needs}, {left}{uncertain}"

    def _host_sentence(self) -> str:
        """Return the host memory that is needed, and whether it is there, as a sentence."""
        assert self.host is not None
        if self.host.memory is None:
            has = "the cluster does not say how much there is ([node] memory)"
        else:
            has = f"of {_gib(round(self.host.memory.si))}{'' if self.host_fits else ', too little'}"
        of = f"{self.host.ranks} GPUs" if self.host.ranks > 1 else "a GPU"
        return (
            f"the memory of a host of {of} holds {_gib(self.host_peak)} that are offloaded, {has}"
        )

    def text(self) -> str:
        """Return the sentence, and a table of the stages by part, in GiB, whose rows add up."""
        shown = list(self.stages)
        if len(shown) > MAX_STAGES_SHOWN:
            shown = sorted(shown, key=lambda each: -each.total)[:MAX_STAGES_SHOWN]
        alone = len(self.stages) == 1
        rows = [("part", *("every GPU" if alone else f"stage {each.stage}" for each in shown))]
        columns = [apportioned(list(each.parts.values()), LAST_DIGIT) for each in shown]
        for i, name in enumerate(PARTS):
            if any(each.parts[name] for each in shown):
                rows.append((name, *(_hundredths(column[i]) for column in columns)))
        rows.append(("total", *(_hundredths(sum(column)) for column in columns)))
        rows.append(("± (one σ)", *(_hundredths(each.error // LAST_DIGIT) for each in shown)))
        rows.append(("of the GPU, %", *(percent(each.total, self.capacity) for each in shown)))
        rest = len(self.stages) - len(shown)
        lines = [
            *wrap(f"The plan {self.sentence()}.", WIDTH),
            "Memory of one GPU, in GiB",
            *(f"  {line}" for line in aligned(rows)),
            *([f"  ... {rest:,} more stages that need less"] if rest else []),
            f"  worst moment: {self.worst.moment}",
            *(
                [f"  {line}" for line in wrap(self._host_sentence(), WIDTH - 2)]
                if self.offloads
                else []
            ),
        ]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as numbers, for JSON; bytes are integers."""
        return {
            "gpu": self.gpu,
            "capacity": self.capacity,
            "peak": self.peak,
            "headroom": self.headroom,
            "fits": self.fits,
            "certain": self.certain,
            **({"host": self._host_dict()} if self.offloads else {}),
            "stages": [
                {
                    "stage": each.stage,
                    **each.parts,
                    "total": each.total,
                    "error": each.error,
                    "moment": each.moment,
                }
                for each in self.stages
            ],
        }

    def _host_dict(self) -> dict[str, Any]:
        assert self.host is not None
        memory = self.host.memory
        return {
            "capacity": None if memory is None else round(memory.si),
            "peak": self.host_peak,
            "ranks": self.host.ranks,
            "fits": self.host_fits,
        }


Evaluate = Callable[[Plan, int], Verdict]
"""Plan, multiple of the cluster's nodes → verdict; raises `InputError` where the two do not fit."""


def assess(layout: Layout, gpu: Gpu, *, node: int = 8) -> Verdict:
    """Layout, GPU → verdict.

    Where networks differ by rank (tables of a recommendation model), the fullest rank of each stage
    represents it.

    Parameters
    ----------
    layout : Layout
    gpu : Gpu
    node : int
        GPUs of a node.
    """
    experiment = layout.experiment
    transformer = isinstance(experiment.model, Transformer)
    by_network = [
        memory(
            layout.pipeline,
            chunks,
            experiment.plan,
            layout.grid,
            transformer=transformer,
            node=node,
        )
        for chunks in layout.model_chunks
    ]
    stages = tuple(
        max(stage, key=lambda each: each.total) for stage in zip(*by_network, strict=True)
    )
    host = host_of(experiment, layout.grid.world)
    return Verdict(stages, capacity(gpu), gpu.title, host)


def evaluator(experiment: Experiment, gpus: int, gpu: Gpu, *, node: int = 8) -> Evaluate:
    """Return a function: another plan, a multiple of the GPUs → verdict.

    Parameters
    ----------
    experiment : Experiment
    gpus : int
        Of the cluster.
    gpu : Gpu
    node : int
        GPUs of a node.
    """

    def evaluate(plan: Plan, times: int) -> Verdict:
        changed = replace(experiment, plan=plan)
        return assess(lay_out(changed, gpus * times), gpu, node=node)

    return evaluate


def _gib(size: int) -> str:
    return f"{size / GIB:,.1f} GiB"


def _hundredths(digits: int) -> str:
    return f"{digits // 100:,}.{digits % 100:02d}"

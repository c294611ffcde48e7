"""How much of a GPU's memory a plan takes, whether it fits, and what would make it fit.

``assess(layout, gpu)``
    The `Verdict` on an experiment that is laid out on ranks.
``memory(pipeline, parts, plan, grid)``
    Walk a network and its schedule: bytes of every stage by part, as `StageMemory`.
``Verdict``
    That against what a GPU has, as text and as numbers.
``capacity(gpu)``
    What a program can have of a GPU's memory.
``remedies(plan, evaluate)``, ``advice(plan, verdict, evaluate)``
    Changes that make a plan fit, the cheapest first, as `Remedy` and as text;
    ``evaluator(experiment, gpus, gpu)`` returns the `evaluate` of an experiment, an `Evaluate`.
``starting_plan(model, name, cluster, gpus)``
    A plan to start from, that fits, as `Start`.
``formulas``
    Published formulas, independent of the walk.
"""

from . import formulas
from .assess import assess, evaluator
from .constants import capacity
from .model import StageMemory, memory
from .remedies import Evaluate, Remedy, advice, remedies
from .starting import Start, starting_plan
from .verdict import Verdict

__all__ = [
    "Evaluate",
    "Remedy",
    "StageMemory",
    "Start",
    "Verdict",
    "advice",
    "assess",
    "capacity",
    "evaluator",
    "formulas",
    "memory",
    "remedies",
    "starting_plan",
]

"""How much of a GPU's memory a plan takes, whether it fits, and what would make it fit.

``memory(pipeline, parts, plan, grid)``
    Walk a network and its schedule: bytes of every stage by part, as `StageMemory`.
``Verdict``
    Those against what a GPU has, as text and as numbers.
``capacity(gpu)``
    What a program can have of a GPU's memory.
``remedies(plan, evaluate)``, ``advice(plan, verdict, evaluate)``
    Single changes that make a plan fit, the cheapest first, as `Remedy` and as text.
``formulas``
    Published formulas, independent of the walk.
"""

from . import formulas
from .constants import capacity
from .model import StageMemory, memory
from .remedies import Remedy, advice, remedies
from .verdict import Verdict

__all__ = [
    "Remedy",
    "StageMemory",
    "Verdict",
    "advice",
    "capacity",
    "formulas",
    "memory",
    "remedies",
]

"""Experiment → best placement of its embedding tables: sharders, local search, simulation.

``choose_placement(experiment)``
    Sharders and found placements of an experiment's tables, each simulated, the fastest first.

Read `cost` (what a placement costs without simulating it), `improve` (moves and swaps of tables
that lower it), `choose` (what is simulated, and which is chosen), `text` (how that is shown).
"""

from .choose import Chosen, SimulatedPlacement, choose_placement
from .cost import PlacementCost
from .improve import improved
from .text import chosen_figures, chosen_lines, placement_tables

__all__ = [
    "Chosen",
    "PlacementCost",
    "SimulatedPlacement",
    "choose_placement",
    "chosen_figures",
    "chosen_lines",
    "improved",
    "placement_tables",
]

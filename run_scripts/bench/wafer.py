#!/usr/bin/env python3
"""VGG-19 on a wafer of 84 GPUs, electrical mesh beside optical circuits: what each reading gives.

    .venv/bin/python run_scripts/bench/wafer.py

TrioSim's case study (ISCA 2025) leaves out the batch, how the ring lies
on the mesh, whether 484 GB/s are of one link or of all eight, and whether steps begin with circuits
in place; each row is one reading. Communication does not overlap with backward, so that its share
and the ratio of steps are plain: time on the wire over step, mesh over circuits.
"""

from __future__ import annotations

from itertools import product

from mpisim.base.quantity import PICOSECONDS
from mpisim.base.text import aligned, percentage
from mpisim.experiment import load
from mpisim.simulate import simulate

BATCHES = {"128 a GPU": 128, "2 a GPU": 2}
ORDERS = {"along the mesh": "fabric", "by rank": "ranks"}
LINKS = {"484 in all": 1, "484 a link": 8}
STEPS = {"later": False, "first": True}


def run(name: str, *changes: str) -> tuple[float, float]:
    """Return the seconds of a step, and of it those of communication on the wire."""
    _, experiment = load(name, ["plan.overlap.dp=false", "overlap.model=off", *changes])
    found = simulate(experiment)
    assert found is not None
    return found.step_time, float(found.communications["wire"].sum()) / found.n_ranks / PICOSECONDS


def main() -> None:
    """Run all readings and print a table."""
    rows = [("batch", "ring on mesh", "GB/s", "step", "share", "optical/mesh", "speed-up")]
    for (batch, size), (order, key) in product(BATCHES.items(), ORDERS.items()):
        sizes = [f"plan.micro_batch={size}", f"plan.global_batch={84 * size}"]
        mesh, wire = run("triosim-wafer-vgg19-mesh", *sizes, f"network.ring_order={key}")
        for (links, factor), (step, first) in product(LINKS.items(), STEPS.items()):
            changes = [f"scale.switch_bandwidth={factor}", f"scale.link_bandwidth={factor}"]
            changes.append(f"network.first_step={str(first).lower()}")
            optical, circuits = run("triosim-wafer-vgg19-circuit", *sizes, *changes)
            figures = (percentage(wire / mesh), f"{circuits / wire:.2f}", f"{mesh / optical:.2f}")
            rows.append((batch, order, links, step, *figures))
    print("\n".join(aligned(rows, left=(0, 1, 2, 3))))


if __name__ == "__main__":
    main()

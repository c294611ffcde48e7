"""Table of measured steps → those of which the memory model says that they do not fit.

Every row was run, so every one that is refused is the model's error, or the row's. Nothing is
simulated: it takes seconds.

    python run_scripts/bench/memory_verdicts.py TABLE.csv
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from mpisim.base.errors import MpisimError
from mpisim.memory import Verdict, assess, capacity
from mpisim.prediction.hardware import hardware_of
from mpisim.validate.e2e.experiments import Mapped, experiment_of
from mpisim.validate.e2e.rows import read
from mpisim.validate.e2e.settings import settings
from mpisim.workloads import lay_out

GIB = 2**30


def main() -> None:
    """Read the table and print what is refused, by source, and each row's parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=Path, help="as for mpisim validate e2e")
    rows = read(parser.parse_args().table)
    known: dict[str, Verdict] = {}
    refused: list[tuple[Mapped, Verdict]] = []
    count = 0
    for row in rows:
        mapped = experiment_of(row, settings())
        if not isinstance(mapped, Mapped):
            continue
        try:
            found = verdict(mapped, known)
        except MpisimError as error:
            print(f"{row.texts['id']}: {error}")
            continue
        count += 1
        if not found.fits:
            refused.append((mapped, found))
    sure = sum(found.certain for _, found in refused)
    print(f"{count:,} rows; {len(refused)} are said not to fit, {sure} of them surely")
    by_source = Counter(mapped.source for mapped, _ in refused)
    print(", ".join(f"{source} {number}" for source, number in by_source.most_common()))
    for mapped, found in sorted(refused, key=lambda each: (each[0].source, each[0].row.where)):
        worst = found.worst
        parts = {name: size for name, size in worst.parts.items() if size > GIB / 2}
        print(f"{mapped.row.texts['id']}: {found.sentence()}")
        print("  " + ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items()))


def verdict(mapped: Mapped, known: dict[str, Verdict]) -> Verdict:
    """Return whether a row fits; equal plans are assessed once."""
    experiment = mapped.experiment
    key = repr((experiment.model, experiment.plan, experiment.cluster, experiment.kernels))
    if key not in known:
        hardware = hardware_of(experiment)
        smallest = min(hardware.named.values(), key=capacity)
        layout = lay_out(experiment, hardware.gpus)
        known[key] = assess(layout, smallest, node=hardware.cluster.gpus_per_node)
    return known[key]


if __name__ == "__main__":
    main()

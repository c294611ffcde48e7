"""Fit Echo's formulas to measured collectives: tables (.csv) → TOML on stdout.

python run_scripts/fit_echo.py MEASUREMENTS.csv > data/calibration/collectives_echo.toml
"""

from __future__ import annotations

import sys

from mpisim.topo.collectives.batches import TEST, TRAIN, batches, select
from mpisim.topo.collectives.calibration import DEEPEP
from mpisim.topo.collectives.echo_network import fit_echo
from mpisim.topo.collectives.read import read

if __name__ == "__main__":
    rows, _ = read(sys.argv[1:])
    measured, _ = batches(row for row in rows if not row.library.startswith(DEEPEP))
    print(fit_echo(select(measured, split=TRAIN), select(measured, split=TEST)), end="")

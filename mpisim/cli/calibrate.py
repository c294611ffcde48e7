"""``mpisim calibrate``: fit the simulator's constants to measurements."""

from __future__ import annotations

from typing import Any

from . import calibrate_collectives, calibrate_e2e, calibrate_kernels, calibrate_overlap

__all__ = ["add_parser"]

KINDS = (calibrate_kernels, calibrate_collectives, calibrate_e2e, calibrate_overlap)

EXAMPLES = """\
examples:
  mpisim calibrate kernels gemm.csv vector.csv -o mine.toml
  mpisim validate kernels gemm.csv --calibration mine.toml --split test
  mpisim calibrate collectives nccl_measurements.csv -o mine.toml
  mpirun -n 2 python -m mpisim calibrate e2e all.csv -o mine.toml
  mpisim calibrate overlap pairs.csv -o mine.toml
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim calibrate``."""
    parser = subparsers.add_parser(
        "calibrate",
        help="fit the simulator's constants to measurements",
        description="Fit the simulator's constants to measurements.",
        epilog=EXAMPLES,
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind in KINDS:
        kind.add_kind(kinds)

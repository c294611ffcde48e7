"""``mpisim validate``: predictions beside measurements."""

from __future__ import annotations

from typing import Any

from . import (
    validate_collectives,
    validate_e2e,
    validate_job,
    validate_kernels,
    validate_memory,
    validate_operators,
    validate_plans,
    validate_power,
    validate_published,
    validate_traces,
)

__all__ = ["add_parser"]

KINDS = (
    validate_traces,
    validate_kernels,
    validate_operators,
    validate_collectives,
    validate_e2e,
    validate_plans,
    validate_published,
    validate_power,
    validate_memory,
    validate_job,
)

EXAMPLES = """\
examples:
  mpisim validate traces TRACES/                   one trace a subfolder, table of errors
  mpisim validate kernels gemm.csv --split test    measured kernels, errors by operator
  mpisim validate operators TRACES/                operators of traces with shapes
  mpisim validate collectives nccl_measurements.csv --split test
  mpirun -n 2 python -m mpisim validate e2e all.csv    measured training steps
  mpisim validate plans all.csv                    would a search have chosen right?
  mpisim validate published                        experiments of papers beside their figures
  mpisim validate power                            measured power of training runs
  mpisim validate memory                           published peaks of memory, runs that failed
  mpisim validate job                              published runs of weeks, beside jobs
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim validate``."""
    parser = subparsers.add_parser(
        "validate",
        help="compare predictions with measurements",
        description="Compare predictions with measurements.",
        epilog=EXAMPLES,
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind in KINDS:
        kind.add_kind(kinds)

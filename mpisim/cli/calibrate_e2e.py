"""``mpisim calibrate e2e``: fit few constants to measured training steps."""

from __future__ import annotations

import argparse
from typing import Any

from ..base.errors import InputError, UsageError
from .output import add_monitor_option
from .validate_e2e import add_predicted, conditions

__all__ = ["add_kind", "run"]

EXAMPLES = """\
examples:
  mpirun -n 2 python -m mpisim calibrate e2e all.csv -o mine.toml
  mpisim validate e2e all.csv --json out.json
  mpisim calibrate e2e all.csv --predicted out.json --passes 0 -o mine.toml
  mpisim calibrate e2e more.csv --keep mine.toml -o new.toml
  mpisim validate e2e all.csv --calibration mine.toml
  mpisim run experiment.toml --set calibration.file=mine.toml framework.name=nemo
"""

TRUST = "A|B"
"""Rows that are predicted: those of A are fitted, both show how far off predictions are."""


def add_kind(kinds: Any) -> None:
    """Add the parser of ``mpisim calibrate e2e``."""
    parser = kinds.add_parser(
        "e2e",
        help="fit few constants to measured training steps",
        description="Fit constants to a table of measured training steps: efficiency of kernels "
        "by kind of GPU, of communications by platform, launches and overhead by framework "
        "(docs/accuracy.md). Rows of trust A are fitted; with those of trust B they say how far "
        "off predictions are. Under mpirun the processes share the rows.",
        epilog=EXAMPLES,
    )
    parser.add_argument("paths", metavar="CSV", nargs=1, help="table of measurements")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="write the constants (TOML)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    parser.add_argument(
        "--where",
        metavar="COLUMN=VALUE",
        nargs="+",
        default=[],
        help="only these rows, as for 'mpisim validate e2e'",
    )
    parser.add_argument(
        "--passes",
        type=int,
        metavar="N",
        default=1,
        help="how often steps are simulated again with what was found (default: 1)",
    )
    parser.add_argument(
        "--keep",
        metavar="FILE",
        help="errors of the model that this file of constants has are not made smaller",
    )
    add_predicted(parser)
    add_monitor_option(parser)
    parser.set_defaults(run=run, collective=True)


def run(args: argparse.Namespace) -> int:
    """Predict, fit, write the file. **Collective** under a launcher."""
    from .launch import world
    from .output import check_files, check_outputs

    check_outputs(args)
    if args.passes < 0:
        raise UsageError(f"--passes is {args.passes}; it must be 0 or more")
    where = {"trust": TRUST, **conditions(args.where)}
    from ..base.files import write_whole
    from ..mpi.parallel import collective_errors
    from ..prediction.step_constants import StepConstants
    from ..validate.e2e import calibrate, compare, stored, written

    comm = world()
    with collective_errors(comm):
        if comm.rank == 0:
            check_files(args)
        known = {} if args.predicted is None else stored(args.predicted)
        before = None if args.keep is None else StepConstants.read(args.keep).model_error
    path = args.paths[0]
    found = compare(path, comm, where=where, known=known)
    with collective_errors(comm):
        if found is not None and all(each.trust != "A" for each in found.compared):
            raise InputError(f"{path}: no row of trust A could be predicted: nothing to fit")
    constants = calibrate(found, comm, args.passes, before)
    with collective_errors(comm):
        if constants is not None:
            text = written(constants)
            print(text, end="")
            with write_whole(args.output, overwrite=args.overwrite) as file:
                file.write(text.encode())
    return 0

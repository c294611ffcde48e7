"""``mpisim compare``: where does the difference between two runs come from?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from .other_files import expected, kind_of
from .output import (
    LINES,
    add_html_option,
    add_json_option,
    add_overwrite_option,
    check_files,
    check_options,
    write_figures,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..results import Results

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim run mine.toml -o a.h5
  mpisim run mine.toml --set plan.tp=8 -o b.h5
  mpisim compare a.h5 b.h5                 what the change did, part by part
  mpisim compare one.toml other.toml       both simulated first
  mpisim replay traces/ -o measured.h5
  mpisim compare measured.h5 a.h5          a prediction beside a recording of the same job
  mpisim compare a.h5 b.h5 --json c.json   the same as numbers
  mpisim compare a.h5 b.h5 --html c.html   a page to look at, or to send to someone
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim compare``."""
    parser = subparsers.add_parser(
        "compare",
        help="print where the difference between two runs comes from",
        description="Print where the difference between the step times of two runs, predicted or "
        "replayed, comes from: what GPUs do, and the critical path by kind, kernel and pipeline "
        "stage. In each list the differences add up to that of the steps.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "file", metavar="A", help="a results file (HDF5), or an experiment (TOML) to simulate"
    )
    parser.add_argument("other", metavar="B", help="another one")
    add_json_option(parser)
    add_html_option(parser)
    parser.add_argument(
        "--top",
        type=int,
        metavar="N",
        default=LINES,
        help=f"lines of each list (default: {LINES})",
    )
    add_overwrite_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print two runs beside each other, part by part."""
    check_options(args)
    check_files(args)
    from ..report.comparison import compare, comparison_figures, render_comparison
    from ..results import open_results

    with (
        expected([args.file, args.other], ("mpisim-results", "experiment")),
        TemporaryDirectory() as folder,
        open_results(_results_of(args.file, Path(folder, "one.h5"))) as one,
        open_results(_results_of(args.other, Path(folder, "other.h5"))) as other,
    ):
        stages = _stages(one), _stages(other)
        keys: tuple[Mapping[str, str], Mapping[str, str]] = _keys(one), _keys(other)
        if not all("model" in _origin(each) for each in (one, other)):
            keys = {}, {}  # a program or a recording beside an experiment: no key is in both
        found = compare(one, other, stages, keys)
        titles = _title(args.file, one), _title(args.other, other)
        if args.html is not None:
            from ..page.payload import comparison_payload
            from ..page.write import write_page

            page = comparison_payload(found, (one, other), titles)
    write_figures(args, comparison_figures(found))
    if args.html is not None:
        write_page(page, args.html, overwrite=args.overwrite)
    print(render_comparison(found, titles, args.top))
    return 0


def _results_of(path: str, target: Path) -> str | Path:
    """Return a file of results: the one that is named, or of the experiment that is, simulated."""
    from mpisim.data import names

    from ..experiment import load_any
    from ..experiment.load import FOLDER

    packaged = not Path(path).exists() and path in names(FOLDER)
    if not packaged and kind_of(Path(path)) != "experiment":
        return path
    from mpi4py import MPI

    from ..experiment import Experiment
    from ..experiment.serialization import serialize_any
    from ..extrapolate.prepare import prepare_workload
    from ..simulate import simulate

    text, experiment = load_any(path)
    what = experiment if isinstance(experiment, Experiment) else prepare_workload(experiment)
    origin = serialize_any(experiment)
    simulate(what, MPI.COMM_SELF, output=target, text=text, origin=origin, progress=True)
    return target


def _title(path: str, results: Results) -> str:
    """Return what a run is called: its file, and what it says of itself."""
    return f"{path}: {results.program.get('title', results.program.get('source', ''))}"


def _stages(results: Results) -> NDArray[np.int64] | None:
    """Return the pipeline stage of each rank of a prediction; None of what has no stages."""
    from ..experiment import Experiment
    from ..experiment.serialization import deserialize_any
    from ..prediction.hardware import hardware_of
    from ..workloads import lay_out

    if "tables" not in _origin(results):
        return None
    experiment = deserialize_any(results.origin, str(results.path))
    if not isinstance(experiment, Experiment):
        return None
    return lay_out(experiment, hardware_of(experiment).gpus).grid.stage


def _keys(results: Results) -> Mapping[str, str]:
    """Return what was given for each key of an experiment, as TOML writes it."""
    from ..experiment.plan_keys import flattened, short_key

    found: dict[str, str] = {}
    for table, given in _origin(results).get("tables", {}).items():
        if isinstance(given, dict):  # as users write them: plan.recompute = "full"
            keys = flattened(given, table)
            found |= {short_key(key): _text(value) for key, value in keys}
        elif table != "title":
            found[table] = _text(given)
    return found


def _origin(results: Results) -> Mapping[str, Any]:
    try:
        found = json.loads(results.origin)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

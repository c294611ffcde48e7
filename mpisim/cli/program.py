"""``mpisim program``: look at a program file, simulate one, or exchange one with other tools."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..base.errors import InputError, UsageError
from .other_files import expected
from .output import add_overwrite_option, check_files, check_outputs
from .run import add_run_options, run

__all__ = ["add_parser", "show"]

SHOW_EXAMPLES = """\
examples:
  mpisim program show step.h5              ranks, tables and communicators
  mpisim program show step.h5 --rank 3     and the first rows of rank 3
  mpisim program show step.h5 --rank 3 --rows 1000
  mpisim program show step.h5 --draw step.svg   as a picture: what ranks do, who talks to whom
  mpisim program show step.h5 --rank 3 --draw rows.svg     ... row by row, and what waits for what
"""

RUN_EXAMPLES = """\
examples:
  mpisim program run step.h5                         simulate it and print the report
  mpirun -n 8 python -m mpisim program run step.h5   the same, shared by 8 processes
  mpisim program run step.h5 -o run.h5 --timeline    save the result with every row
  mpisim program run step.h5 --cluster dgx-h100      communications priced on this cluster
  mpisim program run step.h5 --cluster dgx-h100 --set network.model=alpha-beta
  mpisim program run step.h5 --set variation.speeds.3=0.9
"""

IMPORT_EXAMPLES = """\
examples:
  mpisim program import et/ -o step.h5               Chakra traces, one file a rank
  mpisim program import et/ -o step.h5 --gpu h100-sxm   ... with num_ops in place of durations
  mpisim program import workload.txt -o step.h5      a SimAI or ASTRA-sim 1.0 workload
  mpisim program import zero3.csv -o step.h5         a table of AICB (DeepSpeed, Megatron-LM)
  mpisim program import vgg13/ -o step.h5            a TrioSim trace (trace.csv, tensor.csv)
"""

EXPORT_EXAMPLES = """\
examples:
  mpisim program export step.h5 -o et/ --format chakra   et/step.<rank>.et and et/step.json
  mpisim program export step.h5 -o step.txt --format simai   a text workload, a line a layer
"""

EXPORTS = ("chakra", "simai")

FORMATS = ("bf16", "fp16", "fp32", "tf32", "fp8", "nvfp4")
"""Number formats of operations that are counted."""


def add_parser(subparsers: Any) -> None:
    """Add the parsers of ``mpisim program``."""
    parser = subparsers.add_parser(
        "program",
        help="look at a program file, simulate one, or exchange one with other tools",
        description="Look at a program file (what every simulated rank does), simulate one, or "
        "exchange one with other tools.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    look = actions.add_parser(
        "show",
        help="print what a program file holds",
        description="Print what a program file holds: ranks, tables, communicators, rows.",
        epilog=SHOW_EXAMPLES,
    )
    look.add_argument("file", metavar="FILE", help="a program file (HDF5)")
    look.add_argument("--rank", type=int, metavar="R", help="also list the rows of this rank")
    look.add_argument(
        "--rows", type=int, metavar="N", default=40, help="how many rows to list (default: 40)"
    )
    look.add_argument(
        "--first", type=int, metavar="I", default=0, help="the first row to list (default: 0)"
    )
    look.add_argument("--draw", metavar="FILE", help="draw it: .svg, .png, .pdf (needs matplotlib)")
    add_overwrite_option(look)
    look.set_defaults(run=show)
    go = actions.add_parser(
        "run",
        help="simulate a program file, as mpisim run FILE does",
        description="Simulate a program file, as mpisim run FILE does, and print where its time "
        "goes. One that mpisim run has saved is simulated as the run was; --set changes what is "
        "not in its rows. Communications without a duration of their own need a cluster.",
        epilog=RUN_EXAMPLES,
    )
    go.add_argument("file", metavar="FILE", help="a program file (HDF5)")
    go.add_argument(
        "--cluster",
        metavar="NAME",
        help="the same as --set cluster.preset=NAME: a name from mpisim list clusters, or a file "
        "(.toml); by default the cluster of the experiment that the program was saved from",
    )
    add_run_options(go)
    go.set_defaults(run=run, collective=True)
    _add_exchange(actions)


def _add_exchange(actions: Any) -> None:
    """Add the parsers of ``import`` and ``export``."""
    into = actions.add_parser(
        "import",
        help="turn a workload of another tool into a program file",
        description="Turn a workload of another tool into a program file: Chakra execution traces, "
        "SimAI, AICB and ASTRA-sim 1.0 workloads, TrioSim traces. The format is recognised by "
        "content.",
        epilog=IMPORT_EXAMPLES,
    )
    into.add_argument("paths", metavar="PATH", nargs="+", help="files, or a folder of them")
    into.add_argument("-o", "--output", metavar="FILE", required=True, help="the program to write")
    into.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="number of ranks, for a workload that does not say",
    )
    into.add_argument(
        "--gpu",
        metavar="NAME",
        help="the GPU whose roofline prices Chakra nodes with num_ops and tensor_size, and "
        "products of AICB, in place of a duration: a name from mpisim list gpus, or a file (.toml)",
    )
    into.add_argument(
        "--precision",
        choices=FORMATS,
        default=FORMATS[0],
        help=f"with --gpu: format of their operations (default: {FORMATS[0]})",
    )
    into.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    into.set_defaults(run=import_)
    out = actions.add_parser(
        "export",
        help="write a program file for another tool",
        description="Write a program file for another tool: Chakra execution traces, one file a "
        "rank, and their process groups, as ASTRA-sim reads them; or SimAI's text workload.",
        epilog=EXPORT_EXAMPLES,
    )
    out.add_argument("file", metavar="FILE", help="a program file (HDF5)")
    out.add_argument(
        "-o", "--output", metavar="PATH", required=True, help="the folder (or file) to write"
    )
    out.add_argument(
        "--format", choices=EXPORTS, default=EXPORTS[0], help="format (default: chakra)"
    )
    out.add_argument(
        "--overwrite", action="store_true", help="replace such a folder or file if it exists"
    )
    out.set_defaults(run=export_)


def show(args: argparse.Namespace) -> int:
    """Program file → its tables and communicators, printed."""
    for option in ("rows", "first"):
        if getattr(args, option) < 0:
            raise UsageError(f"--{option} is {getattr(args, option)}; it must be 0 or more")
    check_outputs(args)
    if args.draw is not None:
        from ..base.picture import check_picture

        check_picture("--draw", args.draw, overwrite=args.overwrite)
    from ..program.show import overview, rows
    from ..program.store import load

    with expected([args.file], ("mpisim-program",)):
        program = load(args.file)
    text = overview(program)
    if args.rank is not None:
        text += "\n\n" + rows(program, args.rank, args.first, args.rows)
    if args.draw is not None:
        from ..program.draw import draw

        draw(
            program,
            args.draw,
            rank=args.rank,
            first=args.first,
            count=args.rows,
            overwrite=args.overwrite,
        )
    print(text)
    return 0


def import_(args: argparse.Namespace) -> int:
    """Write a program file from a workload of another tool."""
    check_outputs(args)
    if args.ranks is not None and args.ranks < 1:
        raise UsageError(f"--ranks is {args.ranks}; it must be 1 or more")
    from ..formats import import_program
    from ..kernels import find_gpu
    from ..kernels.counted import RooflinePricer
    from ..program import save
    from ..program.show import overview

    check_files(args)
    counts = None if args.gpu is None else RooflinePricer(find_gpu(args.gpu), args.precision)
    with expected(args.paths, ("chakra", "simai", "aicb", "traces")):
        program = import_program(args.paths, args.ranks or 0, counts)
    save(program, args.output, overwrite=args.overwrite)
    print(overview(program))
    return 0


def export_(args: argparse.Namespace) -> int:
    """Write a program for another tool."""
    check_outputs(args)
    from ..base.files import check_output
    from ..formats import write_chakra, write_simai
    from ..program import load

    if args.format == "simai":
        check_output(args.output, overwrite=args.overwrite)
    with expected([args.file], ("mpisim-program",)):
        program = load(args.file)
    if args.format == "simai":
        try:
            found = write_simai(program, args.output, overwrite=args.overwrite)
        except InputError as error:
            raise InputError(f"{args.file}: {error}") from error
        how = f"; {found.how}" if found.how else ""
        print(f"{args.output}: {found.layers:,} layers for {program.n_ranks:,} ranks{how}")
        return 0
    name = Path(args.file).stem
    write_chakra(program, args.output, name, overwrite=args.overwrite)
    print(f"{program.n_ranks} ranks written to {args.output}: {name}.<rank>.et, {name}.json")
    return 0

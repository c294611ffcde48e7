"""``mpisim capture``: a PyTorch script, run without a GPU → what its ranks do → a prediction."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError, UsageError, one_of
from .output import (
    add_result_options,
    check_files,
    check_options,
    deliver,
    in_detail,
    simulate_with_options,
)

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..capture.lower import Part
    from ..capture.memory import CapturedMemory
    from ..kernels import Gpu
    from ..operators.measured import MeasuredOperators

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim capture -- python train.py                       one GPU of a DGX H100
  mpisim capture --world-size 64 -- python train.py --fsdp    ... 64 of them, as torchrun starts it
  mpisim capture --save-program step.h5 -- python train.py    keep what every rank does ...
  mpisim run step.h5 --set cluster.preset=dgx-h100        ... and run it again
  mpisim extrapolate step.h5 --plan dp=64                 ... captured on one rank: to other plans
  mpisim capture --world-size 8 -- python -m torchtitan.train ...   a program that is a module
  mpisim capture --value train.py:42=512 -- python train.py   a value that only a GPU would know
"""

MOST_RANKS = 1 << 17

STOOD_IN_FOR = ("apex", "deep_ep", "deepspeed", "flash_attn", "transformer_engine")
"""Libraries of kernels that captures have stand-ins of, by the names of their packages."""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim capture``."""
    parser = subparsers.add_parser(
        "capture",
        help="run a PyTorch training script without a GPU, and predict its step",
        description="Run a training script of PyTorch as it is, without a GPU, as some ranks of a "
        "job of any size; record what it would issue to the GPU and to the other ranks; and "
        "simulate that. Needs PyTorch: pip install 'mpisim[torch]'. The script runs with your "
        "rights, as if you had started it.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "--world-size", type=int, default=1, metavar="N", help="ranks of the job (default: 1)"
    )
    parser.add_argument(
        "--cluster",
        default="dgx-h100",
        metavar="NAME",
        help="a name from mpisim list clusters, or a file (.toml) (default: dgx-h100)",
    )
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        help="the GPU that prices kernels: a name from mpisim list gpus, or a file (.toml) "
        "(default: the cluster's)",
    )
    parser.add_argument(
        "--ranks",
        default="auto",
        metavar="LIST",
        help="ranks to capture, as 0,8-15 (default: auto, those that differ)",
    )
    parser.add_argument(
        "--steps", type=int, default=1, metavar="K", help="steps to record (default: 1)"
    )
    parser.add_argument(
        "--warm-up",
        type=int,
        metavar="N",
        help="steps before those that are recorded, for scripts that begin otherwise than they go "
        "on (default: 1, or none for a script that makes one step alone)",
    )
    parser.add_argument(
        "--value",
        action="append",
        default=[],
        metavar="FILE:LINE=X",
        help="what a line of the script reads from a tensor, whose values are not computed; may be "
        "repeated",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="NAME",
        help="a library of kernels that the job does not have, of those that are stood in for: "
        f"{', '.join(STOOD_IN_FOR)}; may be repeated",
    )
    parser.add_argument("--show-output", action="store_true", help="show what the script writes")
    parser.add_argument("--save-program", metavar="FILE", help="write what every rank does (HDF5)")
    parser.add_argument(
        "--measured",
        metavar="FILE",
        help="times of operators on the GPU, which come before models: columns operator, shapes, "
        "types, time_us (.csv; docs/operators.md)",
    )
    parser.add_argument(
        "--conf",
        default="",
        metavar="TEXT",
        help="settings of PyTorch's allocator, as in PYTORCH_CUDA_ALLOC_CONF (default: PyTorch's)",
    )
    parser.add_argument(
        "--save-snapshot",
        metavar="FILE",
        help="write what the allocator does on the fullest captured rank, for "
        "https://pytorch.org/memory_viz (.pickle)",
    )
    add_result_options(parser)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- python SCRIPT ...", help="what to run"
    )
    parser.set_defaults(run=run, collective=True)


def run(args: argparse.Namespace) -> int:
    """Capture, simulate, and print the report; the first process prints."""
    check_options(args)
    path, arguments, module = _script(args.command)
    for option in ("world_size", "steps", "warm_up"):
        least, most = 1, MOST_RANKS
        given = getattr(args, option)
        if given is not None and not least <= given <= most:
            name = option.replace("_", "-")
            raise UsageError(f"--{name} is {given}; it must be 1 to {most:,}")
    values = tuple(map(_value, args.value))
    without = tuple(_library(name) for name in args.without)
    _check_torch()
    from ..memory.allocator_settings import parse_settings

    parse_settings(args.conf, "--conf")
    from ..base.rank_ranges import parse_ranges
    from ..capture.device import device_of
    from ..capture.rank_processes import RankProcesses
    from ..capture.ranks import Script, capture_parts
    from ..kernels import find_gpu
    from ..kernels.scaled import rated_gpu
    from ..mpi.parallel import collective_errors, progress
    from ..operators.measured import MeasuredOperators
    from ..topo import find_cluster
    from .launch import world

    comm = world()
    ranks = None
    with collective_errors(comm):
        cluster = find_cluster(args.cluster)
        gpu = rated_gpu(find_gpu(args.gpu or cluster.gpu))
        measured = None if args.measured is None else MeasuredOperators.read(args.measured)
        if args.ranks != "auto":
            ranks = parse_ranges(args.ranks, "--ranks", "rank", args.world_size)
        if comm.rank == 0:
            check_files(args)
    script = Script(
        path,
        arguments,
        args.world_size,
        cluster.gpus_per_node,
        args.steps,
        device_of(gpu, cluster.rates()),
        values,
        args.show_output,
        module,
        without,
        args.warm_up,
    )
    with (
        progress(comm, "running the script") as update,
        RankProcesses(show=args.show_output) as processes,
    ):
        parts = capture_parts(script, comm, update, processes, ranks)
    report, connected = _prediction(args, comm, parts, gpu, measured, path)
    if comm.rank == 0:
        print(report)
        if args.world_size > 1 and not connected:
            print(f"mpisim: note: {UNCONNECTED.format(ranks=args.world_size)}", file=sys.stderr)
    return 0


def _prediction(
    args: argparse.Namespace,
    comm: Intracomm,
    parts: list[Part],
    gpu: Gpu,
    measured: MeasuredOperators | None,
    path: str,
) -> tuple[str, bool]:
    """Captured parts → the report of their step, and whether ranks communicate; writes the program.

    **Collective.** The report is empty but on the first process.
    """
    from ..capture.lower import program_of
    from ..capture.memory import memory_of
    from ..experiment import ProgramExperiment
    from ..formats.torch_snapshot import write_snapshot
    from ..kernels.analytical import analytical_model
    from ..mpi.parallel import collective_errors, progress
    from ..prediction.prepared_program import prepare_captured
    from ..program import check_matching, save
    from ..topo import find_cluster
    from ..workloads.host import cluster_host

    with progress(comm, "simulating"):
        with collective_errors(comm):
            host = cluster_host(
                args.cluster, find_cluster(args.cluster).gpus_per_node, args.world_size
            )
            program = program_of(parts, analytical_model(gpu), measured, host=host)
            check_matching(program)
            held = memory_of(parts, gpu, args.conf) if comm.rank == 0 else None
            if held is not None and args.save_snapshot is not None:
                write_snapshot(
                    args.save_snapshot,
                    held.recorded.allocations,
                    args.conf,
                    overwrite=args.overwrite,
                )
            if comm.rank == 0 and args.save_program is not None:
                save(program, args.save_program, overwrite=args.overwrite)
            title = " ".join(args.command[1:] if args.command[0] == "--" else args.command)
            experiment = ProgramExperiment(
                "", {"cluster": {"preset": args.cluster}}, title, source=path
            )
            prepared = prepare_captured(experiment, program)
        results, shown = simulate_with_options(
            prepared, args, comm, text=f"title = {json.dumps(title)}"
        )
        figures = {} if held is None else {"memory": held.as_dict()}
        report = deliver(results, args, comm, figures, shown)
    connected = results is None or bool(len(results.communications["count"]))
    if held is not None:
        report = f"{report}\n\n{_memory(held, in_detail(args))}"
    return report, connected


UNCONNECTED = (
    "the script communicates nothing: these are {ranks} equal ranks side by side, not one job. "
    "It needs DistributedDataParallel, FSDP or the like; or mpisim capture --world-size 1 "
    "--save-program step.h5, and mpisim extrapolate step.h5 --plan dp={ranks}"
)


MOST_HOLDERS, MOST_HOLDERS_IN_SHORT = 30, 8
"""Lines of the table of what holds memory, with all details and in short."""


def _memory(held: CapturedMemory, details: bool) -> str:
    """What the tensors of the fullest captured rank take → text."""
    from ..report.allocations import text

    top = MOST_HOLDERS if details else MOST_HOLDERS_IN_SHORT
    others = held.others if details or not held.chosen.easy else ()
    said = text(held.recorded, held.chosen, others, name=f"Memory of rank {held.rank}", top=top)
    parts = [said, held.pass_table()]
    if not held.chosen.easy:
        parts.append(held.help())
    return "\n\n".join(parts)


def _script(command: list[str]) -> tuple[str, tuple[str, ...], bool]:
    """Command after ``--`` → the script, its arguments, and whether it is a module's name."""
    words = command[1:] if command[:1] == ["--"] else command
    if not words:
        raise UsageError("no script is given: mpisim capture [options] -- python train.py ...")
    first = words[0].rpartition("/")[2]
    if first.startswith("python"):
        words = words[1:]
    if words[:1] == ["-m"] and len(words) > 1:
        _check_module(words[1])
        return words[1], tuple(words[2:]), True
    if not words or words[0].startswith("-") or not words[0].endswith(".py"):
        found = words[0] if words else "nothing"
        raise UsageError(
            "the command must be python SCRIPT.py or python -m MODULE, and arguments, but "
            f"{found!r} is given in place of the script; --world-size says what torchrun's options "
            "say"
        )
    from pathlib import Path

    from ..base.files import neighbour

    if not Path(words[0]).is_file():
        raise InputError(f"{words[0]}: there is no such script{neighbour(Path(words[0]))}")
    return words[0], tuple(words[1:]), False


def _check_module(name: str) -> None:
    """Refuse a module whose package Python does not find, from the current folder on."""
    from importlib.util import find_spec

    package = name.partition(".")[0]
    sys.path.insert(0, "")
    try:
        missing = not package.isidentifier() or find_spec(package) is None
    finally:
        sys.path.remove("")
    if missing:
        raise InputError(f"{name}: there is no such module for {sys.executable} -m")


def _library(name: str) -> str:
    """Name of a library → as its package is called."""
    found = name.replace("-", "_")
    if found not in STOOD_IN_FOR:
        raise UsageError(f"--without {name}: no stand-in of that name{one_of(name, STOOD_IN_FOR)}")
    return found


def _value(text: str) -> tuple[str, float]:
    """``FILE:LINE=X`` → place and value."""
    place, equals, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not equals or ":" not in place or number != number:
        raise UsageError(f"--value {text!r} is not FILE:LINE=NUMBER, as in train.py:42=512")
    return place, number


def _check_torch() -> None:
    """Refuse to start without PyTorch."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise UsageError("PyTorch is not installed: pip install 'mpisim[torch]'")

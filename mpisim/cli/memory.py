"""``mpisim memory``: what PyTorch's allocator makes of recorded allocations."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from ..base.errors import InputError, UsageError
from .output import add_file_options, check_files, check_outputs, write_figures

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim memory snapshot.pickle                      peaks, who holds what, what other settings do
  mpisim memory rank0.json.gz                        ... of a trace recorded with profile_memory
  mpisim memory snapshot.pickle --gpu h100-sxm       does it fit?
  mpisim memory snapshot.pickle --gpu-memory 40GiB --communicators 2
  mpisim memory snapshot.pickle --conf expandable_segments:True -o expandable.pickle
"""

UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "MB": 10**6, "GB": 10**9}
"""Units of sizes, in capitals."""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim memory``."""
    parser = subparsers.add_parser(
        "memory",
        help="simulate PyTorch's memory allocator on recorded allocations",
        description="Simulate PyTorch's caching allocator on recorded allocations: peaks of what "
        "is allocated and reserved, which modules hold it, what other settings of "
        "PYTORCH_CUDA_ALLOC_CONF would do, and whether it fits into a GPU. FILE is a memory "
        "snapshot (torch.cuda.memory._dump_snapshot) or a Kineto trace recorded with "
        "profile_memory=True.",
        epilog=EXAMPLES,
    )
    parser.add_argument("file", metavar="FILE", help="a snapshot (.pickle), or a trace (.json.gz)")
    parser.add_argument(
        "--conf",
        metavar="TEXT",
        help="settings as in PYTORCH_CUDA_ALLOC_CONF (default: those of the recording)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--gpu",
        metavar="NAME",
        help="the GPU it has to fit into: a name from mpisim list gpus, or a file (.toml)",
    )
    where.add_argument(
        "--gpu-memory", metavar="SIZE", help="... or the memory a program can have, as 79.2GiB"
    )
    parser.add_argument(
        "--communicators",
        type=int,
        default=0,
        metavar="N",
        help="NCCL communicators that do collectives, whose buffers are counted (default: 0)",
    )
    parser.add_argument(
        "--device", type=int, metavar="N", help="the GPU of the recording (default: the busiest)"
    )
    parser.add_argument(
        "--top", type=int, default=10, metavar="N", help="lines of the table of modules"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="also write what was simulated as a snapshot, for https://pytorch.org/memory_viz",
    )
    add_file_options(parser, monitor=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay recorded allocations in PyTorch's allocator, and print what it reserves and why."""
    check_outputs(args)
    for option, least in (("communicators", 0), ("top", 1)):
        if getattr(args, option) < least:
            raise UsageError(f"--{option} is {getattr(args, option)}; it must be {least} or more")
    if args.communicators and args.gpu is None and args.gpu_memory is None:
        raise UsageError("--communicators counts only where --gpu or --gpu-memory says the room")
    memory = None if args.gpu_memory is None else _size(args.gpu_memory)
    from ..memory.allocator_settings import parse_settings

    if args.conf is not None:
        parse_settings(args.conf, "--conf")
    from ..formats.kineto_memory import read_kineto_memory
    from ..formats.torch_snapshot import is_snapshot, read_snapshot, write_snapshot
    from ..memory.configurations import Room, outcome, remedies
    from ..report.allocations import figures, text
    from .other_files import expected

    check_files(args)
    room = None
    if args.gpu is not None:
        from ..kernels import find_gpu
        from ..memory import capacity

        gpu = find_gpu(args.gpu)
        room = Room.of(gpu.title, capacity(gpu), args.communicators)
    elif memory is not None:
        room = Room.of(args.gpu_memory, memory, args.communicators)
    try:
        pickled = is_snapshot(args.file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{args.file}: cannot be read: {reason}") from error
    read = read_snapshot if pickled else read_kineto_memory
    with expected([args.file], ("traces",)):
        recorded = read(args.file, args.device)
    conf = args.conf
    if conf is None:
        conf = recorded.settings
    chosen = outcome(recorded.allocations, conf, room)
    others = remedies(recorded.allocations, conf, room)
    print(text(recorded, chosen, others, name=Path(args.file).name, top=args.top))
    if args.output is not None:
        write_snapshot(
            args.output,
            recorded.allocations,
            conf,
            None if room is None else room.left,
            overwrite=args.overwrite,
        )
    write_figures(args, figures(recorded, chosen, others))
    return 0


def _size(word: str) -> int:
    """Return the bytes of a size as ``79.2GiB``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]*)\s*", word)
    if match is None or match[2].upper() not in UNITS or float(match[1]) <= 0:
        raise UsageError(f"--gpu-memory is {word!r}; it must be a size as 79.2GiB, or in bytes")
    return round(float(match[1]) * UNITS[match[2].upper()])

"""``mpisim extrapolate``: a recorded training step → the same model on other, or more, GPUs."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import UsageError, nearest
from .extrapolate_parallel import add_parallel_options, run_parallel
from .output import (
    add_monitor_option,
    add_result_options,
    check_files,
    check_options,
    deliver,
    simulate_with_options,
)

if TYPE_CHECKING:
    from ..experiment import DataChoice, ProgramExperiment
    from ..extrapolate import Target

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim extrapolate step.json.gz --cluster dgx-h100 --plan dp=64
                                  one traced GPU -> 64, DistributedDataParallel, each the traced
                                  batch
  mpisim extrapolate step.json.gz --cluster dgx-h100 --plan dp=64,zero=3 --batch 1024
  mpisim extrapolate step.json.gz --cluster dgx-h100 --plan tp=2,pp=4,dp=8,micro_batch=4
  mpisim extrapolate step.json.gz --cluster dgx-h100 --plan tp=2,ep=8,etp=1
                                  experts over 8 ranks, all else over 2 of them
  mpisim extrapolate step.json.gz --cluster dgx-h100 --plan cp=4,dp=2 --seq-len 32768
                                  ... each sequence on 4 GPUs
  mpisim extrapolate step.json.gz --cluster dgx-a100 --gpu a100-sxm --plan dp=8
  mpisim extrapolate step.json.gz --cluster dgx-h100 --plan dp=16 \\
      --other-gpus 1=a100-sxm --trace-of a100-sxm=a100.json.gz
                                  ranks of the second node do as a trace of an A100 says
  mpisim extrapolate step.json.gz --cluster dgx-h100 --plan dp=8 --set data.images=jpeg
                                  ... images that the node's CPUs decode for all of its GPUs
  mpisim extrapolate captured.h5 --cluster dgx-h100 --plan dp=64
                                  a step that mpisim capture --save-program has kept, priced
  mpisim extrapolate step.json.gz --cluster dgx-h100      the traced step itself, as a check
  mpisim extrapolate step.json.gz --cluster dgx-h100 --plan dp=64 --save-program step64.h5
                                  ... to mpisim run, or mpisim sensitivity
  mpisim extrapolate traces/      of all ranks of a job: which axes its groups form
  mpisim extrapolate traces/ --dp 8 --cluster a800-8gpu
                                  ... with 8 data-parallel replicas
  mpisim extrapolate traces/ --pp 4 --cluster a800-8gpu
                                  ... the same layers on 4 pipeline stages
  mpisim extrapolate traces/ --cluster dgx-h100 --traced-cluster a800-8gpu --gpu h100-sxm
                                  ... on another network, and other GPUs
  mpisim extrapolate traces/ --dp 8 --cluster mine.toml --calibration mine.cal.toml
                                  ... on a network whose collectives you have measured
"""

DEFAULT_CLUSTER = "dgx-h100"
"""Where traces of one GPU are taken to, if nothing says otherwise."""

OF_ONE_GPU = (
    *("plan", "threads", "other_gpus", "batch", "seq_len", "step", "traced_gpu", "traced_batch"),
    "save_tables",
    "execution_trace",
    "scaling",
    "upload",
    "trace_of",
    "set",
)
"""Options of traces of one GPU alone."""
SETTABLE = ("data", "network", "scale", "overlap", "variation")
"""Tables whose keys ``--set`` takes; other options stand for those of the others."""
OF_SEVERAL = (
    *("dp", "traced_cluster", "distributed_optimizer", "micro_batches", "pp", "schedule", "vpp"),
    "megatron_buckets",
    "layout",
)
"""Options of traces of several ranks alone."""
IN_PLAN = ("dp", "pp")
"""Those that traces of one GPU have as keys of a plan."""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim extrapolate``."""
    parser = subparsers.add_parser(
        "extrapolate",
        help="predict a recorded training step at another scale: more GPUs, another plan",
        description="Read a trace of one training step and predict the same model on other GPUs, "
        "more of them, by another parallel plan, with another batch. Measured times are used where "
        "nothing changed, and scaled by the ratio of the kernel models where sizes or GPU did. "
        "Traces of several ranks keep their plan, and get more replicas or another network.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="TRACE",
        help="a Kineto trace with shapes (record_shapes=True), or without them and an execution "
        "trace in its folder; an Nsight Systems export with NVTX ranges that have sizes; TrioSim's "
        "trace.csv and tensor.csv; a folder with one of these; what mpisim capture --save-program "
        "has written of one rank; or the traces of all ranks of a job",
    )
    _add_target_options(parser)
    _add_trace_options(parser)
    parser.add_argument(
        "--save-tables",
        metavar="FOLDER",
        help="write the traced step as TrioSim's trace.csv and tensor.csv",
    )
    parser.add_argument("--save-program", metavar="FILE", help="write what every rank does (HDF5)")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help=f"set a key of [{'], ['.join(SETTABLE)}], as data.images=jpeg, by which the CPUs of "
        "each node prepare images for all of its GPUs; may be repeated",
    )
    add_parallel_options(parser, but=("--cluster", "--gpu"))
    add_result_options(parser)
    add_monitor_option(parser)
    parser.set_defaults(run=run, collective=True)


def _add_target_options(parser: argparse.ArgumentParser) -> None:
    """Add what says where the step is taken to: plan, cluster, GPUs, batch."""
    parser.add_argument(
        "--plan",
        metavar="KEY=VALUE,...",
        action="append",
        default=[],
        help="keys of [plan], and of [framework] with its name, as dp=64,zero=1; may be repeated",
    )
    parser.add_argument(
        "--threads",
        action="store_true",
        help="replicas, or stages of a pipeline, are threads of one process, not processes "
        "(torch.nn.DataParallel, torch.distributed.pipeline.sync.Pipe)",
    )
    parser.add_argument(
        "--cluster",
        metavar="NAME",
        help="a name from mpisim list clusters, or a file (.toml) (default: dgx-h100; of several "
        "ranks: as recorded)",
    )
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        help="the GPU to run on (default: the cluster's; of several ranks: as recorded)",
    )
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="of mpisim calibrate collectives, for the cluster's network (default: what comes "
        "along)",
    )
    parser.add_argument(
        "--other-gpus",
        metavar="NODES=GPU",
        action="append",
        default=[],
        help="nodes with other GPUs than the cluster's, as 4-7=a100-sxm; may be repeated",
    )
    parser.add_argument(
        "--trace-of",
        metavar="GPU=TRACE",
        action="append",
        default=[],
        help="a trace of the same step on another GPU of the job (--other-gpus), as "
        "a100-sxm=a100.json.gz: ranks with that GPU do as it says; may be repeated",
    )
    parser.add_argument(
        "--batch",
        type=int,
        metavar="B",
        help="samples of a step on all GPUs (default: the traced batch on each replica)",
    )
    parser.add_argument(
        "--seq-len", type=int, metavar="S", help="tokens of a sample (default: as traced)"
    )
    parser.add_argument(
        "--scaling",
        choices=("kernel-model", "li"),
        help="what scales measured times to other sizes and GPUs: the ratio of the kernel model "
        "(default), or of Li's regression lines over the trace's own kernels, as TrioSim",
    )
    parser.add_argument(
        "--upload",
        action="store_true",
        help="let each micro-batch begin with the copy of its input over PCIe, where the trace has "
        "none",
    )


def _add_trace_options(parser: argparse.ArgumentParser) -> None:
    """Add what says how the trace of one GPU is to be read."""
    parser.add_argument(
        "--step",
        type=int,
        metavar="N",
        help="the profiled step to take (default: of median length)",
    )
    parser.add_argument(
        "--traced-gpu",
        metavar="NAME",
        help="the GPU the trace is of, where the file does not name it",
    )
    parser.add_argument(
        "--traced-batch",
        type=int,
        metavar="B",
        help="samples of the traced step, where the first layer's input does not begin with them",
    )
    parser.add_argument(
        "--execution-trace",
        metavar="FILE",
        help="PyTorch's execution trace of the same step, for shapes that the trace lacks "
        "(default: one in its folder)",
    )


def run(args: argparse.Namespace) -> int:
    """Extrapolate, simulate and print the report; the first process prints."""
    check_options(args)
    for option, least in (("batch", 1), ("seq_len", 1), ("traced_batch", 1), ("step", 0)):
        value = getattr(args, option)
        if value is not None and value < least:
            raise UsageError(f"--{option.replace('_', '-')} is {value}; it must be {least} or more")
    from ..extrapolate.prepare import of_several_ranks
    from ..mpi.parallel import collective_errors
    from .launch import world
    from .other_files import expected

    with collective_errors(world()), expected(args.paths, ("traces", "mpisim-program")):
        several = of_several_ranks(args.paths)
    for option in OF_ONE_GPU if several else OF_SEVERAL:
        if getattr(args, option):
            raise UsageError(
                f"--{option.replace('_', '-')} is for traces of "
                + ("one GPU" if several else "several ranks")
                + f", and {args.paths[0]} is of "
                + ("several ranks" if several else "one GPU")
                + ("; --dp, --pp, --vpp are for these" if several and option == "plan" else "")
                + ("" if several or option not in IN_PLAN else f"; --plan {option}=… is for these")
            )
    if several:
        return run_parallel(args)
    return _run_of_one_gpu(args)


def _run_of_one_gpu(args: argparse.Namespace) -> int:
    keys, trace_of = _keys(args.plan), _trace_of(args.trace_of)
    cluster, own = args.cluster or DEFAULT_CLUSTER, _tables(args)
    data = _data(own.pop("data", None))
    from ..experiment import ProgramExperiment
    from ..experiment.serialization import serialize_any
    from ..extrapolate import Target, extrapolate, read_step
    from ..extrapolate.prepare import read_traces_of
    from ..extrapolate.triosim_write import check_tables, write_tables
    from ..mpi.parallel import collective_errors, progress
    from ..prediction.prepared_program import prepare_captured
    from ..program import check_matching, save
    from .launch import world
    from .other_files import expected

    comm = world()
    with collective_errors(comm):
        if comm.rank == 0:
            check_files(args)
            if args.save_tables is not None:
                check_tables(args.save_tables, overwrite=args.overwrite)
    with (
        progress(comm, "reading the trace"),
        collective_errors(comm),
        expected(args.paths, ("traces", "mpisim-program")),
    ):
        step = read_step(
            args.paths[0],
            gpu=args.traced_gpu,
            step=args.step,
            batch=args.traced_batch,
            execution_trace=args.execution_trace,
        )
    with collective_errors(comm):
        traces = read_traces_of({gpu: Path(path) for gpu, path in trace_of.items()}, "--trace-of")
        if comm.rank == 0 and args.save_tables is not None:
            write_tables(step, args.save_tables, overwrite=args.overwrite)
    with progress(comm, "simulating"):
        with collective_errors(comm):
            target = Target(
                cluster,
                keys,
                args.batch,
                args.seq_len,
                args.gpu,
                args.threads,
                _other_gpus(args.other_gpus),
                scaling=args.scaling or "kernel-model",
                upload=args.upload,
                traces=traces,
                data=data,
            )
            found = extrapolate(step, target)
            check_matching(found.program)
            if comm.rank == 0 and args.save_program is not None:
                save(found.program, args.save_program, overwrite=args.overwrite)
            title = found.workload.layout.experiment.title
            tables = {"cluster": {"preset": cluster, "nodes": found.nodes}} | own
            experiment = ProgramExperiment("", tables, title, source=step.source)
            prepared = prepare_captured(experiment, found.program)
        results, shown = simulate_with_options(
            prepared,
            args,
            comm,
            text=f"title = {json.dumps(title)}",
            origin=serialize_any(_as_experiment(args, target)) if args.output is not None else "",
        )
        report = deliver(results, args, comm, {}, shown)
    if comm.rank == 0:
        print(report)
    return 0


def _as_experiment(args: argparse.Namespace, target: Target) -> ProgramExperiment:
    """Return the experiment of a trace that says what the options say, for ``mpisim export``."""
    from ..experiment import ProgramExperiment
    from ..experiment.program_experiment import WorkloadChoice

    choice = WorkloadChoice(
        trace=args.paths[0],
        traced_gpu=args.traced_gpu,
        traced_batch=args.traced_batch,
        traced_step=args.step,
        execution_trace=args.execution_trace,
        trace_of=_trace_of(args.trace_of),
        gpu=target.gpu,
        seq_len=target.sequence,
        threads=target.threads,
        scaling=args.scaling or "kernel-model",
        upload=target.upload,
    )
    cluster = {"preset": args.cluster or DEFAULT_CLUSTER, "other_gpus": dict(target.other_gpus)}
    batch = {} if target.batch is None else {"global_batch": target.batch}
    # Paths of the command line start from the working directory.
    return ProgramExperiment(
        "",
        {"cluster": cluster} | {k: v for k, v in _tables(args).items() if k != "data"},
        None,
        "mpisim extrapolate",
        choice,
        {**target.plan, **batch},
        target.data,
    )


def _tables(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the tables of `SETTABLE` that the options stand for."""
    from ..experiment.changes import changed_key, with_changes

    for change in args.set:
        table = changed_key(change)[0]
        if table not in SETTABLE:
            options = {"plan": "plan", "framework": "plan", "cluster": "cluster"}
            why = f"--{options[table]} says this" if table in options else f"no table {table!r}"
            raise UsageError(
                f"--set {change}: {why}{nearest(table, SETTABLE)}; allowed: keys of "
                f"{', '.join(SETTABLE)}"
            )
    found: dict[str, dict[str, Any]] = with_changes({}, "--set", args.set)
    if args.calibration is not None:
        found.setdefault("network", {})["calibration"] = os.path.abspath(args.calibration)
    return found


def _data(table: dict[str, Any] | None) -> DataChoice | None:
    """Return the table [data] that ``--set`` stands for; None if it sets no key of it."""
    from ..experiment.choices import data_choice

    return None if table is None else data_choice(table, "--set")


def _keys(given: list[str]) -> dict[str, Any]:
    """``KEY=VALUE,...`` → values by key."""
    import tomllib

    found: dict[str, Any] = {}
    for each in _split_at_commas(given):
        key, equals, text = each.partition("=")
        key = key.strip()
        if not equals or not key or not text.strip():
            raise UsageError(f"--plan {each}: not of the form KEY=VALUE, as in dp=64,zero=1")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        found[key] = value
    return found


def _other_gpus(given: list[str]) -> dict[str, str]:
    """``NODES=GPU`` → GPU by nodes."""
    found = {}
    for each in given:
        nodes, equals, gpu = each.partition("=")
        if not equals or not nodes or not gpu:
            raise UsageError(f"--other-gpus {each}: not of the form NODES=GPU, as in 4-7=a100-sxm")
        found[nodes] = gpu
    return found


def _trace_of(given: list[str]) -> dict[str, str]:
    """``GPU=TRACE`` → path by GPU."""
    found: dict[str, str] = {}
    for each in given:
        gpu, equals, path = each.partition("=")
        if not equals or not gpu or not path:
            raise UsageError(
                f"--trace-of {each}: not of the form GPU=TRACE, as in a100-sxm=a100.json.gz"
            )
        if gpu in found:
            raise UsageError(f"--trace-of {each}: a trace of {gpu} is given already")
        found[gpu] = path
    return found


def _split_at_commas(given: list[str]) -> list[str]:
    """Cut at commas that are in no list."""
    parts: list[str] = []
    for text in given:
        depth, begin = 0, 0
        for i, letter in enumerate(text):
            depth += (letter == "[") - (letter == "]")
            if letter == "," and not depth:
                parts.append(text[begin:i])
                begin = i + 1
        parts.append(text[begin:])
    return [each for each in parts if each.strip()]

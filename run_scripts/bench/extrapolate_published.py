"""Published steps of one model at several scales, beside what extrapolation makes of the smallest.

    python run_scripts/bench/extrapolate_published.py ../shared/groundtruth/e2e/all.csv \
        data/validation/*steps.csv --csv factors.csv    # all, and their mean
    python run_scripts/bench/extrapolate_published.py TABLE --only DeepLearningExamples --details
    python run_scripts/bench/extrapolate_published.py TABLE --from 8    # from one node's GPUs on
    python run_scripts/bench/extrapolate_published.py TABLE --data      # CPUs prepare the images
    python run_scripts/bench/extrapolate_published.py TABLE --most 400000    # larger recordings

A series are rows that differ in the number of data-parallel replicas alone. Its smallest step is
generated with the row's own framework, written as a trace (of one GPU, or of a job's first replica,
which all others equal), and extrapolated to the other rows' scales, with the buckets that
Megatron-LM cuts there if it cut those of the trace. What is compared is the factor t(N) /
t(smallest), in which the kernels' times cancel: measured over measured, extrapolated over the
trace's own step; and whether the measured one lies in the interval stated, 9 of 10 of which should
hold it. With ``--data`` an extrapolation from one GPU has the row's ``[data]``, for one GPU and for
more. Series are spread over ``--processes``. ``--csv`` writes every factor to a file, ``--check``
compares a file's factors with those of now. The error bars `several_gpus` in
data/extrapolation.toml are no less than the root mean square of the errors in
data/validation/factors.csv from one GPU, of PyTorch's jobs and of others.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import NormalDist, fmean, median
from typing import Any, NamedTuple

from mpi4py import MPI

from mpisim import engine
from mpisim.base.errors import InputError, MpisimError
from mpisim.base.text import percentage
from mpisim.experiment import Plan, ProgramExperiment
from mpisim.export.operators import operators_around
from mpisim.extrapolate import Target, extrapolate, read_step
from mpisim.extrapolate.parallel import extrapolate_parallel
from mpisim.kernels.operations import BYTES
from mpisim.prediction.prepared import PreparedExperiment, prepare
from mpisim.prediction.prepared_program import prepare_captured
from mpisim.replay import read_job
from mpisim.simulate import Simulated, simulate
from mpisim.topo import find_cluster
from mpisim.traces.export import Added, export_kineto
from mpisim.validate.e2e import Mapped, Row, experiment_of, read, settings
from mpisim.workloads.input_pipeline import loads_images

SAME = (
    *("source", "source_version", "model", "gpu", "precision", "micro_batch", "framework"),
    *("tp", "pp", "vpp", "cp", "ep", "sp", "activation_recompute", "zero_stage", "seq_len"),
    *("tp_overlap", "dp_overlap", "measured_metric", "zero_group", "gpus_per_node", "layers"),
)
"""Columns in which the rows of a series agree, besides keys of experiments and a GPU's samples."""

MOST_ROWS = 120_000
"""Of a replica that is written as traces, unless ``--most`` says otherwise."""

LEAST_ROWS = 1_000
"""Of a rank of any job of the tables with several ranks a replica."""

NINETY = NormalDist().inv_cdf(0.95)
"""Standard deviations to either side, within which 9 of 10 lie."""

ON_PYTORCH = ("PyTorch", "Composer", "Megatron", "NeMo", "InternEvo")
"""Parts of names of frameworks that are PyTorch's or built on it."""

CHECKED = 0.01
"""Part by which a factor may differ from the one in a file that is checked."""

OF_TRACE = ("precision", "optimizer", "recompute", "micro_batch", "global_batch", "dp", "clip")
"""Keys of plans that a trace has, or that are given otherwise."""


class Point(NamedTuple):
    """A row beside the extrapolation: factors over the smallest row of its series.

    `interval`: of 9 of 10 the extrapolated factor is off by no more, relative.
    """

    kind: str
    source: str
    model: str
    framework: str
    gpu: str
    precision: str
    smallest: int
    gpus: int
    measured: float
    extrapolated: float
    interval: float

    @property
    def error(self) -> float:
        """Relative."""
        return self.extrapolated / self.measured - 1

    @property
    def within(self) -> bool:
        """Whether the measured factor lies in the interval of the extrapolated one."""
        return abs(math.log(self.extrapolated / self.measured)) <= math.log1p(self.interval)

    @property
    def table(self) -> str:
        """Where it was published: a repository or a paper."""
        first = self.source.split()[0].rstrip(",:")
        return first if "/" in first or ":" in first else self.source.partition(";")[0]


class Grown(NamedTuple):
    """An extrapolated step: seconds, and how far off 9 of 10 are at most, relative."""

    step: float
    interval: float


def series(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield rows that differ in their replicas alone, the smallest first; one of each size."""
    found: dict[tuple[str, ...], dict[int, Row]] = defaultdict(dict)
    for row in rows:
        gpus, batch = row.integers.get("num_gpus"), row.integers.get("global_batch")
        usable = row.texts["trust"] in ("A", "B") and not row.texts["suspect"]
        if usable and gpus and batch and "step_time_ms" in row.numbers:
            keys = sorted(item for item in row.texts.items() if "." in item[0])
            same = [row.texts.get(name, "") for name in SAME]
            key = (*same, *map("=".join, keys), f"{batch / gpus:.6g}")
            found[key].setdefault(gpus, row)
    for each in found.values():
        if len(each) > 1:
            yield [each[gpus] for gpus in sorted(each)]


def generated(mapped: Mapped, *, once: bool) -> PreparedExperiment:
    """Return the step of a row; with `once` of one micro-batch.

    Images are synthetic: what the CPUs prepare for one GPU says nothing of what they do for more.
    """
    from mpisim.experiment import read as read_experiment

    text = mapped.text.replace('images = "jpeg"', 'images = "synthetic"')
    if once:
        plan = mapped.experiment.plan
        text = text.replace(
            f"global_batch = {plan.global_batch}", f"global_batch = {plan.micro_batch}"
        )
    return prepare(read_experiment(text, mapped.experiment.source))


def plan_keys(mapped: Mapped) -> dict[str, Any]:
    """Return the keys of a row's plan and framework that a trace of one GPU does not have."""
    tables = tomllib.loads(mapped.text)
    for line in mapped.defaults:
        key, _, value = line.partition(" (")[0].partition(" = ")
        table, _, rest = key.partition(".")
        if table in ("plan", "framework"):
            tables.setdefault(table, {})[rest] = tomllib.loads(f"value = {value}")["value"]
    found = {
        key: value
        for key, value in tables.get("plan", {}).items()
        if key.split(".")[0] not in OF_TRACE or key == "precision.gradients"
    }
    framework = {f"framework.{key}": value for key, value in tables.get("framework", {}).items()}
    return found | framework


def tables_of(mapped: Mapped, nodes: int) -> Mapping[str, Any]:
    """Return the tables of a row that say where it runs."""
    tables = tomllib.loads(mapped.text)
    cluster = {k: v for k, v in tables["cluster"].items() if k not in ("gpus", "other_gpus")}
    rest = {name: tables[name] for name in ("network",) if name in tables}
    return {"cluster": cluster | {"nodes": nodes}, **rest}


def preset_of(mapped: Mapped) -> str:
    """Return the name of a row's cluster."""
    return str(tomllib.loads(mapped.text)["cluster"]["preset"])


def from_one_gpu(rows: Sequence[Mapped], folder: Path, *, images: bool) -> list[Grown]:
    """Return the extrapolated step of each row from a trace of one GPU.

    With `images` the CPUs prepare them, as the row says.
    """
    base = generated(rows[0], once=True)
    run = engine.simulate(base.program, network=base.network)
    around = operators_around(base, 0)
    export_kineto(base.program, run, folder, added=lambda _i, _rank: Added(step=0, around=around))
    samples = rows[0].experiment.plan.micro_batch  # lookups by parts of a vocabulary do not tell
    step = read_step(folder, gpu=base.cluster.gpu, batch=samples)
    found = []
    for each in rows:
        plan = each.experiment.plan
        keys = plan_keys(each) | {"micro_batch": plan.micro_batch, "dp": row_gpus(each)}
        data = each.experiment.data if images and loads_images(each.experiment) else None
        gpu = base.cluster.gpu  # one GPU was taken out of a node that the row does not name
        target = Target(preset_of(each), keys, plan.global_batch, gpu=gpu, data=data)
        grown = extrapolate(step, target)
        experiment = ProgramExperiment("", dict(tables_of(each, grown.nodes)), source="trace")
        results = simulate(prepare_captured(experiment, grown.program), MPI.COMM_SELF)
        assert results is not None
        error = float(results.attributes["uncertainty"])  # a standard deviation
        found.append(Grown(results.step_time_ps / 1e12, math.expm1(NINETY * error)))
    return found


def layout_of(base: PreparedExperiment) -> str:
    """Return the axes of a job whose ring looks like a pipeline.

    That is context parallelism's, or without a pipeline that of tensor-parallel products which
    overlap with their messages.
    """
    plan = base.experiment.plan
    if plan.cp == 1 and not (plan.tp > 1 and plan.overlap.tp and plan.pp == 1):
        return ""
    world = base.program.n_ranks
    axes = {"tp": plan.tp, "cp": plan.cp, "dp": world // (plan.tp * plan.cp * plan.pp)}
    axes["pp"] = plan.pp
    return ",".join(f"{name}={size}" for name, size in axes.items() if size > 1)


def first_replica(base: PreparedExperiment) -> frozenset[int]:
    """Return the ranks of a job's first replica, or of the first replicas that share its shards.

    A generated job's replicas do the same at the same time, and files name the groups: what is not
    written is filled in. A job of few ranks a replica thus costs no more for having many.
    """
    first = base.workload.layout.grid.groups("dp")[:, : together(base.experiment.plan)]
    return frozenset(first.ravel().tolist())


def buckets_of(plan: Plan) -> str | None:
    """Return how a job's buckets change with its replicas, as of `extrapolate_parallel`.

    Those of Megatron-LM do, unless the row names their size. Chunks of interleaved schedules, and
    the two levels of shared optimizers, cannot be told apart in traces.
    """
    framework = plan.framework
    grows = framework.dp_style == "megatron" and framework.bucket is None and plan.overlap.dp
    if not grows or plan.vpp > 1 or plan.zero_group is not None:
        return None
    return "fp32" if BYTES[plan.precision.gradients] == BYTES["fp32"] else "bf16"


def together(plan: Plan) -> int:
    """Return the replicas that share shards of their states, or experts."""
    return (plan.zero_group or 1) * plan.ep


def row_gpus(mapped: Mapped) -> int:
    """Return the GPUs of a row."""
    return mapped.row.integers["num_gpus"]


def from_a_job(rows: Sequence[Mapped], folder: Path, *, most: int) -> list[Grown]:
    """Return the extrapolated step of each row from traces of the smallest job's first replica.

    Raises
    ------
    InputError
        If the replica has more than `most` rows.
    """
    simulated: list[Simulated] = []
    plan = rows[0].experiment.plan
    count = LEAST_ROWS * plan.tp * plan.cp * plan.pp * together(plan)
    if count <= most:  # else the job would be generated in vain
        base = generated(rows[0], once=False)
        count = sum(len(base.program.table_of(rank)) for rank in first_replica(base))
    if count > most:
        raise InputError(f"{count:,} rows to record, or more: more than {most:,}")
    simulate(base, simulated=simulated)
    one = simulated[0]
    export_kineto(
        one.run.program,
        one.run,
        folder,
        chosen=first_replica(base),
        added=lambda _i, rank: Added(step=0, around=operators_around(base, rank)),
    )
    job = read_job([folder], MPI.COMM_SELF, keep_calls=True, allow_missing=True)
    layout, buckets = layout_of(base), buckets_of(base.experiment.plan)
    cluster = find_cluster(preset_of(rows[0]))
    found = []
    replicas: int | None = None
    for each in rows:
        if replicas is None:
            grown = extrapolate_parallel(job, MPI.COMM_SELF, cluster=cluster, layout=layout)
            axis = grown.structure.axis("dp")
            replicas = 1 if axis is None else grown.structure.axes[axis].size
        else:
            times = row_gpus(each) / row_gpus(rows[0])
            dp = round(replicas * times)
            grown = extrapolate_parallel(
                job, MPI.COMM_SELF, dp=dp, cluster=cluster, layout=layout, buckets=buckets
            )
        found.append(Grown(grown.step, grown.uncertainty))
    return found


def points(own: Sequence[Row], *, images: bool, most: int) -> list[Point] | str:
    """Return the factors of a series, or why it has none.

    With `images` the CPUs prepare them, as the rows say. Of jobs whose replicas have more than
    `most` rows nothing is recorded.
    """
    facts = settings()
    first = own[0]
    gpus = first.integers["num_gpus"]
    name = f"{first.texts['model']}, {first.texts['framework']}, from {gpus} GPUs"
    mapped = [experiment_of(row, facts) for row in own]
    usable = [one for one in mapped if isinstance(one, Mapped)]
    if len(usable) != len(mapped):
        return f"{name}: {next(m.why for m in mapped if not isinstance(m, Mapped))}"
    make = partial(from_one_gpu, images=images) if gpus == 1 else partial(from_a_job, most=most)
    with tempfile.TemporaryDirectory() as folder:
        try:
            steps = make(usable, Path(folder) / "traces")
        except MpisimError as error:
            return f"{name}: {error}"
    return [
        Point(
            kind="one GPU" if gpus == 1 else "a job",
            source=one.row.texts["source"],
            model=one.row.texts["model"],
            framework=one.row.texts["framework"],
            gpu=one.row.texts["gpu"],
            precision=one.row.texts["precision"],
            smallest=gpus,
            gpus=row_gpus(one),
            measured=one.row.numbers["step_time_ms"] / first.numbers["step_time_ms"],
            extrapolated=step.step / steps[0].step,
            interval=step.interval,
        )
        for one, step in zip(usable[1:], steps[1:], strict=True)
    ]


def main() -> int:
    """Print the factors, and how far they are off."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("table", nargs="+", help="published steps, as of mpisim validate e2e")
    parser.add_argument("--details", action="store_true", help="print every row")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        help="a part of the source's or the model's name; given again: or this",
    )
    parser.add_argument(
        "--from", type=int, default=1, dest="least", help="leave out steps on fewer GPUs"
    )
    parser.add_argument(
        "--data", action="store_true", help="let the CPUs prepare images, as the rows say"
    )
    parser.add_argument(
        "--most", type=int, default=MOST_ROWS, help="rows of a replica that is recorded, at most"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: all cores")
    parser.add_argument("--csv", help="a file for all factors")
    parser.add_argument("--check", help="such a file: exit with 1 if factors are not those of now")
    args = parser.parse_args()
    rows = [
        row
        for table in args.table
        for row in read(Path(table))
        if any(each in f"{row.texts['source']} {row.texts['model']}" for each in args.only or [""])
        and row.integers.get("num_gpus", 0) >= args.least
    ]
    now: list[Point] = []
    left_out: list[str] = []
    one = partial(points, images=args.data, most=args.most)
    with ProcessPoolExecutor(args.processes, get_context("spawn")) as workers:
        for found in workers.map(one, list(series(rows))):
            if isinstance(found, str):
                left_out.append(found)
            else:
                now += found
            if args.details:
                lines = [f"left out: {found}"] if isinstance(found, str) else map(_line, found)
                print("\n".join(lines), flush=True)
    if args.csv:
        write(now, Path(args.csv))
    _summary(now)
    print(f"left out: {len(left_out)} series of rows (--details says why)")
    return 0 if args.check is None else _check(now, Path(args.check))


def _line(each: Point) -> str:
    """Return a factor as a line for people."""
    return (
        f"{each.model:22} {each.framework:34} {each.gpu:16} {each.precision:5} "
        f"{each.smallest:3} -> {each.gpus:4}  measured {each.measured:6.3f}  extrapolated "
        f"{each.extrapolated:6.3f} {percentage(each.error, 1, signed=True):>7}  "
        f"± {percentage(each.interval, 1)}{'' if each.within else ', outside'}"
    )


def _summary(now: Sequence[Point]) -> None:
    """Print the errors of factors by series, by table, and of all."""
    for kind in ("one GPU", "a job"):
        own = [point for point in now if point.kind == kind]
        if not own:
            continue
        print(f"from {kind}: {_errors(own)}")
        by_series: dict[tuple[str, str, str, str], list[Point]] = defaultdict(list)
        for each in own:
            by_series[each.model, each.framework, each.gpu, each.precision].append(each)
        for (model, framework, gpu, precision), points_of in sorted(by_series.items()):
            print(f"  {model:22} {framework:34} {gpu:16} {precision:5} {_errors(points_of)}")
    by_table: dict[str, list[Point]] = defaultdict(list)
    for each in now:
        by_table[each.table].append(each)
    print("by table:")
    for table, own in sorted(by_table.items(), key=lambda item: (-len(item[1]), item[0])):
        print(f"  {table[:56]:56} {_errors(own)}")
    for title, on in (("PyTorch and what is built on it", True), ("other frameworks", False)):
        own = [each for each in now if any(n in each.framework for n in ON_PYTORCH) == on]
        if own:
            print(f"{title + ':':58} {_errors(own)}")
    means = [fmean(abs(each.error) for each in own) for own in by_table.values()]
    if now:
        print(f"{'all:':58} {_errors(now)}")
        print(f"mean of the means of {len(means)} tables: {percentage(fmean(means), 1)}")


def write(found: Sequence[Point], path: Path) -> None:
    """Write factors to a file, in the order of their series."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(Point._fields)
        for each in found:
            rows.writerow(
                each._replace(
                    measured=round(each.measured, 4),
                    extrapolated=round(each.extrapolated, 4),
                    interval=round(each.interval, 4),
                )
            )


def _check(now: Sequence[Point], path: Path) -> int:
    """Factors of now, a file of `write` → 1 if they are not the file's, which is said; 0 else."""
    with path.open(newline="") as file:
        kept = {tuple(row[:-2]): float(row[-2]) for row in list(csv.reader(file))[1:]}
    rounded = [each._replace(measured=round(each.measured, 4)) for each in now]
    found = {tuple(map(str, each))[:-2]: each.extrapolated for each in rounded}
    both = {
        key: (found.get(key, math.nan), kept.get(key, math.nan))
        for key in kept.keys() | found.keys()
    }
    other = [
        f"{', '.join(key)}: {now_is:.4f} in place of {was:.4f}"
        for key, (now_is, was) in both.items()
        if not math.isclose(now_is, was, rel_tol=CHECKED)
    ]
    print("\n".join([*sorted(other), f"{len(other)} of {len(kept)} factors in {path} differ"]))
    return min(len(other), 1)


def _errors(own: Sequence[Point]) -> str:
    """Return how far factors are off, as a line for people."""
    off = [abs(point.error) for point in own]
    bias = percentage(fmean(point.error for point in own), 1, signed=True)
    within = sum(point.within for point in own)
    return (
        f"{len(own):3} factors, mean {percentage(fmean(off), 1):>6}, median "
        f"{percentage(median(off), 1):>6}, bias {bias:>7}, {within:3} within ±"
    )


if __name__ == "__main__":
    sys.exit(main())

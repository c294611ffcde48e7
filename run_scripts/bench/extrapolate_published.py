"""Published steps of one model at several scales, beside what extrapolation makes of the smallest.

    python run_scripts/bench/extrapolate_published.py ../shared/groundtruth/e2e/all.csv
    python run_scripts/bench/extrapolate_published.py TABLE --details
    python run_scripts/bench/extrapolate_published.py TABLE --from 8    # from one node's GPUs on
    python run_scripts/bench/extrapolate_published.py TABLE --data      # CPUs prepare the images
    python run_scripts/bench/extrapolate_published.py TABLE --most 64   # jobs of 64 ranks, too
    python run_scripts/bench/extrapolate_published.py TABLE --only DeepLearningExamples \
        --only "DLPerf reports" --csv data/validation/factors.csv

A series are rows that differ in the number of data-parallel replicas alone. Its smallest step is
generated with the row's own framework, written as a trace (of one GPU, or of all ranks of a job),
and extrapolated to the other rows' scales. What is compared is the factor t(N) / t(smallest), in
which the kernels' times cancel: measured over measured, extrapolated over the trace's own step.
With ``--data`` an extrapolation from one GPU has the row's ``[data]``, for one GPU and for more.
``--csv`` writes every factor to a file. The error bars `several_gpus` in data/extrapolation.toml
are no less than the root mean square of the errors in data/validation/factors.csv from one GPU, of
PyTorch's jobs and of others; that file is of 30 November 2026. ``--check`` compares a
file's factors with those of now.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mpi4py import MPI

from mpisim import engine
from mpisim.base.errors import MpisimError
from mpisim.base.text import percentage
from mpisim.experiment import ProgramExperiment
from mpisim.export.operators import operators_around
from mpisim.extrapolate import Target, extrapolate, read_step
from mpisim.extrapolate.parallel import extrapolate_parallel
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
"""Columns in which the rows of a series agree, besides the samples of a GPU."""

MOST_RANKS = 16
"""Of a job whose ranks are written as traces, unless ``--most`` says otherwise."""

CHECKED = 0.01
"""Part by which a factor may differ from the one in a file that is checked."""

OF_TRACE = ("precision", "optimizer", "recompute", "micro_batch", "global_batch", "dp", "clip")
"""Keys of plans that a trace has, or that are given otherwise."""


class Point(NamedTuple):
    """A row beside the extrapolation: factors over the smallest row of its series."""

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

    @property
    def error(self) -> float:
        """Relative."""
        return self.extrapolated / self.measured - 1


def series(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield rows that differ in their replicas alone, the smallest first; one of each size."""
    found: dict[tuple[str, ...], dict[int, Row]] = defaultdict(dict)
    for row in rows:
        gpus, batch = row.integers.get("num_gpus"), row.integers.get("global_batch")
        usable = row.texts["trust"] in ("A", "B") and not row.texts["suspect"]
        if usable and gpus and batch and "step_time_ms" in row.numbers:
            key = (*(row.texts.get(name, "") for name in SAME), f"{batch / gpus:.6g}")
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


def from_one_gpu(rows: Sequence[Mapped], folder: Path, *, images: bool) -> list[float]:
    """Return the extrapolated step of each row, in seconds, from a trace of one GPU.

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
        target = Target(preset_of(each), keys, plan.global_batch, data=data)
        grown = extrapolate(step, target)
        experiment = ProgramExperiment("", dict(tables_of(each, grown.nodes)), source="trace")
        results = simulate(prepare_captured(experiment, grown.program), MPI.COMM_SELF)
        assert results is not None
        found.append(results.step_time_ps / 1e12)
    return found


def layout_of(base: PreparedExperiment) -> str:
    """Return the axes of a job with context parallelism, whose ring looks like a pipeline."""
    plan = base.experiment.plan
    if plan.cp == 1:
        return ""
    world = base.program.n_ranks
    axes = {"tp": plan.tp, "cp": plan.cp, "dp": world // (plan.tp * plan.cp * plan.pp)}
    axes["pp"] = plan.pp
    return ",".join(f"{name}={size}" for name, size in axes.items() if size > 1)


def row_gpus(mapped: Mapped) -> int:
    """Return the GPUs of a row."""
    return mapped.row.integers["num_gpus"]


def from_a_job(rows: Sequence[Mapped], folder: Path) -> list[float]:
    """Return the extrapolated step of each row, in seconds, from traces of the smallest job."""
    simulated: list[Simulated] = []
    base = generated(rows[0], once=False)
    simulate(base, simulated=simulated)
    one = simulated[0]
    export_kineto(
        one.run.program,
        one.run,
        folder,
        added=lambda _i, rank: Added(step=0, around=operators_around(base, rank)),
    )
    job = read_job([folder], MPI.COMM_SELF, keep_calls=True)
    layout = layout_of(base)
    cluster = find_cluster(preset_of(rows[0]))
    found = []
    replicas: int | None = None
    for each in rows:
        if replicas is None:
            grown = extrapolate_parallel(job, MPI.COMM_SELF, layout=layout)
            axis = grown.structure.axis("dp")
            replicas = 1 if axis is None else grown.structure.axes[axis].size
        else:
            times = row_gpus(each) / row_gpus(rows[0])
            dp = round(replicas * times)
            grown = extrapolate_parallel(job, MPI.COMM_SELF, dp=dp, cluster=cluster, layout=layout)
        found.append(grown.step)
    return found


def points(
    rows: Sequence[Row], *, images: bool = False, most: int = MOST_RANKS
) -> Iterator[Point | str]:
    """Yield the factors of all series, or why a series has none.

    With `images` the CPUs prepare them, as the rows say. Jobs of more than `most` GPUs are not
    recorded.
    """
    facts = settings()
    for each in series(rows):
        first = each[0]
        gpus = first.integers["num_gpus"]
        name = f"{first.texts['model']}, {first.texts['framework']}, from {gpus} GPUs"
        if gpus > most:
            yield f"{name}: more than {most} ranks to record"
            continue
        mapped = [experiment_of(row, facts) for row in each]
        usable = [one for one in mapped if isinstance(one, Mapped)]
        if len(usable) != len(mapped) or len(usable) < 2:
            yield f"{name}: {next(m.why for m in mapped if not isinstance(m, Mapped))}"
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                of_one = partial(from_one_gpu, images=images)
                make = of_one if gpus == 1 else from_a_job
                times = make(usable, Path(folder) / "traces")
            except MpisimError as error:
                yield f"{name}: {error}"
                continue
        for one, time in zip(usable[1:], times[1:], strict=True):
            yield Point(
                "one GPU" if gpus == 1 else "a job",
                one.row.texts["source"],
                one.row.texts["model"],
                one.row.texts["framework"],
                one.row.texts["gpu"],
                one.row.texts["precision"],
                gpus,
                row_gpus(one),
                one.row.numbers["step_time_ms"] / first.numbers["step_time_ms"],
                time / times[0],
            )


def main() -> int:
    """Print the factors, and how far they are off."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("table", help="published steps, as of mpisim validate e2e")
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
        "--most", type=int, default=MOST_RANKS, help="ranks of a job that is recorded, at most"
    )
    parser.add_argument("--csv", help="a file for all factors")
    parser.add_argument("--check", help="such a file: exit with 1 if factors are not those of now")
    args = parser.parse_args()
    rows = [
        row
        for row in read(Path(args.table))
        if any(each in f"{row.texts['source']} {row.texts['model']}" for each in args.only or [""])
        and row.integers.get("num_gpus", 0) >= args.least
    ]
    found: dict[tuple[str, str, str, str, str], list[Point]] = defaultdict(list)
    for each in points(rows, images=args.data, most=args.most):
        if isinstance(each, str):
            if args.details:
                print(f"left out: {each}")
            continue
        found[each.kind, each.model, each.framework, each.gpu, each.precision].append(each)
        if args.details:
            print(
                f"{each.model:22} {each.framework:34} {each.gpu:16} {each.precision:5} "
                f"{each.smallest:3} -> "
                f"{each.gpus:4}  measured {each.measured:6.3f}  extrapolated "
                f"{each.extrapolated:6.3f} {percentage(each.error, 1, signed=True):>7}",
                flush=True,
            )
    now = [point for own in found.values() for point in own]
    if args.csv:
        write(now, Path(args.csv))
    for kind in ("one GPU", "a job"):
        every = [point for key, own in found.items() if key[0] == kind for point in own]
        if not every:
            continue
        print(f"from {kind}: {len(every)} factors, {_errors(every)}")
        for (of, model, framework, gpu, precision), own in sorted(found.items()):
            if of == kind:
                name = f"  {model:22} {framework:34} {gpu:16} {precision:5} {len(own):3}"
                print(f"{name}  {_errors(own)}")
    return 0 if args.check is None else _check(now, Path(args.check))


def write(found: Sequence[Point], path: Path) -> None:
    """Write factors to a file, in the order of their series."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(Point._fields)
        for each in found:
            rows.writerow(
                each._replace(
                    measured=round(each.measured, 4), extrapolated=round(each.extrapolated, 4)
                )
            )


def _check(now: Sequence[Point], path: Path) -> int:
    """Factors of now, a file of `write` → 1 if they are not the file's, which is said; 0 else."""
    with path.open(newline="") as file:
        kept = {tuple(row[:-1]): float(row[-1]) for row in list(csv.reader(file))[1:]}
    rounded = [each._replace(measured=round(each.measured, 4)) for each in now]
    found = {tuple(map(str, each))[:-1]: each.extrapolated for each in rounded}
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
    off = sorted(abs(point.error) for point in own)
    mean, bias = sum(off) / len(off), sum(point.error for point in own) / len(own)
    median = percentage(off[len(off) // 2], 1)
    return f"mean {percentage(mean, 1)}, median {median}, bias {percentage(bias, 1, signed=True)}"


if __name__ == "__main__":
    sys.exit(main())

"""Generated steps on one GPU, written as traces and extrapolated, beside the generated programs.

    python run_scripts/bench/extrapolate_closed_loop.py            # all models
    python run_scripts/bench/extrapolate_closed_loop.py gpt2 llama
    python run_scripts/bench/extrapolate_closed_loop.py --scaling li

For each model and plan: whether every rank communicates the same bytes of each kind of collective,
both step times, and how far they are apart; the same with twice the batch, with sequences twice as
long, and on another GPU, with the interval that the extrapolation states.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from mpi4py import MPI

from mpisim import engine
from mpisim.base.text import percentage
from mpisim.experiment import ProgramExperiment, read
from mpisim.export.operators import operators_around
from mpisim.extrapolate import Extrapolated, Target, TracedStep, extrapolate, read_step
from mpisim.prediction.prepared import PreparedExperiment, prepare
from mpisim.prediction.prepared_program import prepare_captured
from mpisim.program import Kind, Operation, Program
from mpisim.simulate import simulate
from mpisim.traces.export import Added, export_kineto

Scaling = Literal["kernel-model", "li"]

A100, H100 = ("dgx-a100", "a100-sxm-80gb"), ("dgx-h100", "h100-sxm")


class Model(NamedTuple):
    """A model, its batch, and its number format."""

    keys: str
    batch: int
    precision: str = "bf16"

    def longer(self, sequence: int) -> Model:
        """Return the model with sequences of so many tokens."""
        lines = {line.partition(" = ")[0]: line for line in self.keys.split("\n")}
        for key in {"seq_len", *lines} - {"preset", "layers", "lora_rank"}:
            lines[key] = f"{key} = {sequence}"
        return self._replace(keys="\n".join(lines.values()))


MODELS = {
    "resnet-50": Model('preset = "resnet-50"', 64, "fp32"),
    "vgg-13": Model('preset = "vgg-13"', 32, "fp32"),
    "gpt2": Model('preset = "gpt2"', 8),
    "bert": Model('preset = "bert-base"', 16),
    "bert-large": Model('preset = "bert-large"', 8),
    "mixtral": Model('preset = "mixtral-8x7b"\nlayers = 4\nseq_len = 2048', 1),
    "llama": Model('preset = "llama3.2-1b"\nseq_len = 2048', 1),
    "lora": Model('preset = "llama3.1-8b"\nlayers = 4\nseq_len = 1024\nlora_rank = 16', 2),
    "vit": Model('preset = "vit-b-16"', 32),
    "ssd": Model('preset = "ssd300-r50"', 16, "fp32"),
    "qwen": Model('preset = "qwen3-30b-a3b"\nlayers = 4\nseq_len = 2048', 1),
    "deepseek": Model('preset = "deepseek-v2-lite"\nlayers = 4\nseq_len = 2048', 1),
    "deepseek-v3": Model('preset = "deepseek-v3"\nlayers = 4\nseq_len = 2048', 1),
    "nemotron-h": Model('preset = "nemotron-h-8b"\nlayers = 8\nseq_len = 2048', 1),
    "t5": Model('preset = "t5-base"\nseq_len = 512\ndecoder_seq_len = 512', 8),
    "gemma": Model('preset = "gemma-2b"\nlayers = 4\nseq_len = 2048', 1),
    "qwen-dense": Model('preset = "qwen3-0.6b"\nseq_len = 2048', 4),
    "stable-diffusion": Model('preset = "stable-diffusion-2"', 4),
    "densenet": Model('preset = "densenet-121"', 32),
}

PLANS: tuple[Mapping[str, Any], ...] = (
    {"dp": 8},
    {"dp": 8, "zero": 1},
    {"dp": 8, "zero": 3},
    {"dp": 4, "zero": 2},
    {"pp": 4},
    {"pp": 4, "pipeline.schedule": "gpipe"},
    {"tp": 4},
    {"tp": 2, "pp": 2, "dp": 2},
)

WITH_SEQUENCES: tuple[Mapping[str, Any], ...] = (
    {"tp": 4, "sp": True},
    {"tp": 2, "pp": 2, "dp": 2, "sp": True},
)

WITH_CONTEXT: tuple[Mapping[str, Any], ...] = (
    {"cp": 4},
    {"cp": 4, "framework.cp_style": "all-gather"},
    {"cp": 4, "framework.cp_style": "pytorch"},
    {"cp": 4, "framework.cp_style": "all-to-all"},
    {"cp": 2, "dp": 4, "zero": 3},
    {"cp": 2, "tp": 2, "pp": 2, "sp": True},
    {"cp": 2, "tp": 2, "dp": 2, "zero": 1},
)

WITH_EXPERTS: tuple[Mapping[str, Any], ...] = (
    {"dp": 8},
    {"pp": 4},
    {"dp": 4, "ep": 4},
    {"dp": 8, "ep": 4},
    {"dp": 8, "ep": 8},
    {"dp": 8, "ep": 4, "zero": 1},
    {"dp": 8, "ep": 2, "zero": 3},
    {"pp": 2, "dp": 4, "ep": 4},
    {"tp": 4, "sp": True},
    {"tp": 2, "dp": 4, "ep": 4, "sp": True},
    {"tp": 2, "dp": 4, "ep": 4, "etp": 1, "sp": True},
    {"tp": 2, "dp": 4, "ep": 8, "etp": 1, "sp": True, "zero": 1},
    {"tp": 2, "pp": 2, "dp": 2, "ep": 2, "sp": True},
    {"cp": 4},
    {"cp": 2, "tp": 2, "dp": 2, "ep": 4, "etp": 1, "sp": True},
)


def plans_of(name: str) -> tuple[Mapping[str, Any], ...]:
    """Return the plans of a model."""
    if name in ("mixtral", "qwen", "deepseek"):
        return WITH_EXPERTS
    if name == "deepseek-v3":  # the matrix of its second prediction stays whole with tp
        return tuple(keys for keys in WITH_EXPERTS if "tp" not in keys)
    if name in ("lora", "stable-diffusion", "densenet"):  # adapters are not divided
        return tuple(keys for keys in PLANS if "tp" not in keys)
    if name == "ssd":  # 486 channels of a convolution are not divisible by 4
        return tuple(keys for keys in PLANS if keys.get("tp") != 4)
    if name == "gemma":  # its one head of keys is not divided, which gradients over dp show
        return tuple(keys for keys in PLANS if not {"tp", "dp"} <= set(keys))
    if name == "t5":  # messages of its stages lack the encoder's output
        return ({"dp": 8}, {"dp": 8, "zero": 3}, {"tp": 2}, {"tp": 4})
    if name == "qwen-dense":
        return (*PLANS, *WITH_SEQUENCES)
    if name in ("gpt2", "bert", "llama", "nemotron-h"):
        return (*PLANS, *WITH_SEQUENCES, *WITH_CONTEXT)
    return PLANS


def generated(
    model: Model,
    keys: Mapping[str, Any],
    batch: int,
    gpus: int,
    cluster: str = A100[0],
    changed: str = "",
) -> PreparedExperiment:
    """Return the generated step of a plan."""
    style = "fsdp" if keys.get("zero", 0) >= 2 else "ddp"
    tables: dict[str, list[str]] = {"plan": [], "framework": []}
    for key, value in keys.items():
        name = key.removeprefix("framework.")
        tables["plan" if name == key else "framework"].append(f"{name} = {_toml(value)}")
    plan, framework = ("\n".join(lines) for lines in tables.values())
    text = f"""
[model]
{model.keys}
{changed}
[plan]
global_batch = {batch}
clip = false
precision = "{model.precision}"
{plan}
[framework]
name = "none"
attention = "flash-2"
dp_style = "{style}"
{framework}
[cluster]
preset = "{cluster}"
nodes = {-(-gpus // 8)}
gpus = {gpus}
[overlap]
model = "off"
[run]
allow_oom = true
"""
    return prepare(read(text, "closed loop"))


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()


def traced(
    model: Model, folder: Path, cluster: tuple[str, str] = A100, changed: str = ""
) -> TracedStep:
    """Return the generated step on one GPU, written as a Kineto trace and read again."""
    prepared = generated(model, {"micro_batch": model.batch}, model.batch, 1, cluster[0], changed)
    run = engine.simulate(prepared.program, network=prepared.network)
    around = operators_around(prepared, 0)
    assert around
    export_kineto(
        prepared.program,
        run,
        folder,
        added=lambda i, rank: Added(step=0, around=around),
        overwrite=True,
    )
    return read_step(folder, gpu=cluster[1])


def volumes(program: Program, rank: int) -> Counter[str]:
    """Return the bytes that a rank communicates by each kind of operation."""
    table = program.table_of(rank)
    found: Counter[str] = Counter()
    for row in np.flatnonzero(table.is_communication).tolist():
        kind = Kind(int(table.kind[row]))
        name = Operation(int(table.operation[row])).name if kind is Kind.COLLECTIVE else kind.name
        found[name] += int(table.bytes[row])
    return found


class Compared(NamedTuple):
    """An extrapolated step beside the generated one: both in seconds."""

    equal: bool
    extrapolated: float
    generated: float

    @property
    def error(self) -> float:
        """Relative."""
        return self.extrapolated / self.generated - 1


def compare(
    model: Model, step: TracedStep, keys: Mapping[str, Any], scaling: Scaling = "kernel-model"
) -> Compared:
    """Extrapolate to a plan, and generate the same plan."""
    dp, pp, tp, cp = (int(keys.get(axis, 1)) for axis in ("dp", "pp", "tp", "cp"))
    world = dp * pp * tp * cp
    micro_batch = model.batch if pp == 1 or model.batch < 4 else model.batch // 4
    batch = dp * (micro_batch * 4 if pp > 1 else micro_batch)
    plan = {**keys, "micro_batch": micro_batch}
    found = extrapolate(step, Target(A100[0], plan, batch, scaling=scaling))
    if pp > 1:
        plan["pipeline.stages"] = list(found.workload.layout.experiment.plan.pipeline.stages)
    if tp > 1:
        plan.setdefault("sp", False)
    ours = generated(model, plan, batch, world)
    times = [
        engine.simulate(program, network=ours.network).step_time / 1e12
        for program in (found.program, ours.program)
    ]
    same = all(volumes(found.program, rank) == volumes(ours.program, rank) for rank in range(world))
    return Compared(same, *times)


def stated(found: Extrapolated) -> tuple[float, float]:
    """Return the step in seconds, and its relative error bar."""
    tables = {"cluster": {"preset": found.target.cluster, "nodes": found.nodes}}
    prepared = prepare_captured(ProgramExperiment("", tables, source="trace"), found.program)
    results = simulate(prepared, MPI.COMM_SELF)
    assert results is not None
    return results.step_time_ps / 1e12, float(results.attributes.get("uncertainty", 0.0))


def main(names: list[str], scaling: Scaling) -> None:
    """Print a table for each model."""
    for name in names or list(MODELS):
        model = MODELS[name]
        with tempfile.TemporaryDirectory() as folder:
            step = traced(model, Path(folder) / "a100")
            print(f"{name}: {step.measured / 1e9:.3f} ms at {step.batch} samples, {A100[1]}")
            again = stated(extrapolate(step, Target(A100[0], {}, scaling=scaling)))[0]
            off = again * 1e12 / step.measured - 1
            print(f"  {'unchanged':28} {again * 1e3:10.3f} ms {percentage(off, 3, signed=True):>8}")
            for keys in plans_of(name):
                found = compare(model, step, keys, scaling)
                what = ",".join(f"{key}={value}" for key, value in keys.items())
                bytes_said = "bytes equal" if found.equal else "BYTES DIFFER"
                print(
                    f"  {what:28} {found.extrapolated * 1e3:10.3f} ms, generated "
                    f"{found.generated * 1e3:10.3f} ms "
                    f"{percentage(found.error, 2, signed=True):>8}  {bytes_said}"
                )
            wanted: list[tuple[str, Target, PreparedExperiment]] = [
                (
                    "batch × 2",
                    Target(A100[0], {}, 2 * model.batch, scaling=scaling),
                    generated(model, {"micro_batch": 2 * model.batch}, 2 * model.batch, 1),
                ),
                (
                    "on an H100",
                    Target(H100[0], {}, scaling=scaling),
                    generated(model, {"micro_batch": model.batch}, model.batch, 1, H100[0]),
                ),
            ]
            if step.sequence is not None:
                longer = 2 * step.sequence
                wanted.append(
                    (
                        "sequences × 2",
                        Target(A100[0], {}, sequence=longer, scaling=scaling),
                        generated(
                            model.longer(longer), {"micro_batch": model.batch}, model.batch, 1
                        ),
                    )
                )
            for what, target, prepared in wanted:
                time, error = stated(extrapolate(step, target))
                run = engine.simulate(prepared.program, network=prepared.network)
                ours = run.step_time / 1e12
                print(
                    f"  {what:28} {time * 1e3:10.3f} ms ± {percentage(error, 1)}, generated "
                    f"{ours * 1e3:10.3f} ms "
                    f"{percentage(time / ours - 1, 2, signed=True):>8}"
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--scaling", choices=("kernel-model", "li"), default="kernel-model")
    args = parser.parse_args()
    main(args.models, args.scaling)

"""Programs of docs/capture.md, captured → the rows of its tables: CPU time, memory, steps.

    source run_scripts/env.sh
    bash run_scripts/get_frameworks.sh
    export PYTHONPATH=$(echo "$PWD"/build/frameworks/lib/python*/site-packages)
    .venv/bin/python run_scripts/bench/captured_programs.py [--only X] [--keep DIR]

Each program of *Programs* is captured for the ranks that differ, on DGX H100. Those of *Captured
beside generated* are then predicted again from the experiment that the page has of them. With
``--keep`` what was captured lies in a folder, and later calls price it with the kernels of that
day. Ends with an error if a step is no longer what the page's table says. A whole run takes a
quarter of an hour of CPU time. tests/test_captured_frameworks.py compares bytes and operations of
the same programs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from kept_captures import Command, Prediction, captured, predicted

from mpisim.base.errors import InputError
from mpisim.base.text import percentage
from mpisim.experiment import Experiment, load
from mpisim.simulate import simulate

PAGE = Path(__file__).parents[2] / "docs" / "capture.md"

ROUNDED = 0.005
"""Share by which a printed step may be off: the last of three digits."""

LOCAL = ("apex", "transformer_engine")

FP8 = "plan.precision.products=fp8"


class Generated(NamedTuple):
    """An experiment of the same model and plan.

    Attributes
    ----------
    file : str
        Its name on the page; empty for the default experiment.
    changes : tuple of str
        As ``--set``.
    edits : mapping of str to str
        Lines of the file, and what stands in their place.
    """

    file: str = ""
    changes: tuple[str, ...] = ()
    edits: Mapping[str, str] = {}


class Program(NamedTuple):
    """A program: its command, its experiment if there is one, whether *Programs* has a line of it.

    Lines of the table are in the order of `PROGRAMS`.
    """

    command: Command
    generated: Generated | None = None
    listed: bool = True


def _titan(config: str, *arguments: str, world: int = 8) -> Command:
    words = ("-m", "torchtitan.train", "--module", "titan", "--config", config, *arguments)
    return Command(words, world)


def _script(text: str, world: int = 8, **options: str | tuple[str, ...]) -> Command:
    return Command(tuple(text.split()), world, **options)  # type: ignore[arg-type]


_TITAN = ("framework.name=torchtitan", "framework.cuda_graphs=true")
_TWO_LAYERS = ("model.layers=2",)
_SEVENTY = {
    'family = "gpt"\nlayers = 8\nhidden = 4096\nheads = 32\nseq_len = 2048\nvocab = 51200\n'
    "tied_embeddings = false": 'preset = "llama-3-70b"\nseq_len = 8192',
    "tp = 2\npp = 2\nvpp = 2\ndp = 2": 'tp = 8\npp = 8\ndp = 1\nrecompute = "full"',
    "global_batch = 16": "global_batch = 8",
    "\ngpus = 8": "\nnodes = 8\ngpus = 64",
    "bias_kernels = true ": "bias_kernels = false ",
    "broadcast_biases = true ": "broadcast_biases = false ",
}
_CONTEXT = {
    "layers = 8": "layers = 2",
    "tp = 2\npp = 2\ndp = 2\nsp = true": "cp = 2\ndp = 4",
    "global_batch = 16": "global_batch = 8",
}

PROGRAMS: dict[str, Program] = {
    "torchtitan-8b": Program(_titan("llama3_8b"), Generated("", _TITAN)),
    "torchtitan-8b-8192": Program(
        _titan("llama3_8b", "--parallelism.data_parallel_replicate_degree", "8", world=8192)
    ),
    "torchtitan-2-layers": Program(
        _titan("llama3_8b_of_2_layers"), Generated("", (*_TITAN, *_TWO_LAYERS)), listed=False
    ),
    "torchtitan-2-layers-tp": Program(
        _titan(
            "llama3_8b_of_2_layers",
            *("--training.disable_cuda_graphs", "--parallelism.tensor_parallel_degree", "4"),
        )
    ),
    "megatron-gpt": Program(
        _script("megatron_gpt.py 2 2 2 8 8", without=LOCAL), Generated("local-layers.toml")
    ),
    "megatron-llama-3-70b": Program(
        _script(
            "megatron_gpt.py 8 8 1 80 8 llama3_70b",
            64,
            ranks="0,8,16,24,32,40,48,56",
            without=LOCAL,
        ),
        Generated("local-layers.toml", (), _SEVENTY),
    ),
    "megatron-te-bf16": Program(
        _script("megatron_te.py 2 2 1 8 8 bf16"), Generated("te-layers.toml")
    ),
    "megatron-te-delayed": Program(
        _script("megatron_te.py 2 2 1 8 8 delayed"),
        Generated("te-layers.toml", (FP8, "plan.precision.fp8_scaling=delayed")),
    ),
    "megatron-te-current": Program(
        _script("megatron_te.py 2 2 1 8 8 tensorwise"),
        Generated("te-layers.toml", (FP8, "plan.precision.fp8_scaling=current")),
    ),
    "megatron-te-context": Program(
        _script("megatron_te.py 1 1 1 2 2 bf16 2"),
        Generated("te-layers.toml", (), _CONTEXT),
        listed=False,
    ),
    "megatron-moe-deepep": Program(
        _script("megatron_moe.py 8 2 2 deepep"), Generated("experts.toml")
    ),
    "megatron-moe-alltoall": Program(
        _script("megatron_moe.py 8 2 2 alltoall"),
        Generated("experts.toml", ("framework.moe_dispatcher=all-to-all",)),
    ),
    "deepspeed-zero-3": Program(_script("deepspeed_gpt2.py 2 3")),
    "deepspeed-zero-1": Program(_script("deepspeed_gpt2.py 2 1")),
    "accelerate-gpt2-ddp": Program(_script("accelerate_llama.py gpt2 2 ddp")),
    "accelerate-llama-fsdp1": Program(_script("accelerate_llama.py llama 2 fsdp1")),
    "accelerate-llama-fsdp2": Program(_script("accelerate_llama.py llama 2 fsdp2")),
    "accelerate-mixtral-fsdp2": Program(_script("accelerate_llama.py mixtral 2 fsdp2")),
    "accelerate-qwen3-moe-ddp": Program(_script("accelerate_llama.py qwen3_moe 2 ddp")),
    "timm-resnet50": Program(_script("resnet50.py")),
    "diffusers-unet": Program(_script("diffusion_unet.py")),
    "transformers-mamba": Program(_script("mamba.py 2 256", 1)),
}


def generated(what: Generated) -> float:
    """Return the seconds of a step of an experiment, its file as the page has it."""
    if not what.file:
        return _step(load(None, list(what.changes))[1])
    block = PAGE.read_text().split(f"<!-- test: file: {what.file} -->")[1].split("```")[1]
    text = block.removeprefix("toml")
    for old, new in what.edits.items():
        if old not in text:
            raise InputError(f"{PAGE}: {what.file} has no {old!r}")
        text = text.replace(old, new)
    with TemporaryDirectory() as folder:
        file = Path(folder, what.file)
        file.write_text(text)
        return _step(load(str(file), list(what.changes))[1])


def _step(experiment: Experiment) -> float:
    results = simulate(experiment)
    assert results is not None
    return results.step_time


def printed() -> dict[str, float]:
    """Return the seconds of a step of each program that the page's table has a line of."""
    table = PAGE.read_text().split("| program | `python …` |")[1].split("\n\n")[0]
    names = [name for name, program in PROGRAMS.items() if program.listed]
    units = {"s": 1.0, "ms": 1e-3}
    steps = [line.split("|")[-2].split() for line in table.splitlines()[2:]]
    return {
        name: float(number) * units[unit] for name, (number, unit) in zip(names, steps, strict=True)
    }


def main() -> None:
    """Programs of docs/capture.md → captured and priced; a line of figures for each is printed."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="programs whose names have this in them")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder of what was captured")
    args = parser.parse_args()
    failed, said = [], printed()
    for name, program in PROGRAMS.items():
        if args.only not in name:
            continue
        try:
            found = predicted(captured(program.command, name, args.keep))
        except InputError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed.append(name)
            continue
        beside = None if program.generated is None else generated(program.generated)
        print(line(name, program.command.world, found, beside), flush=True)
        if program.listed and abs(found.seconds / said[name] - 1) > ROUNDED:
            print(f"{name}: {PAGE.name} says {said[name] * 1e3:.4g} ms", file=sys.stderr)
            failed.append(name)
    if failed:
        sys.exit(f"not captured, or not as {PAGE.name} says: {', '.join(failed)}")


def line(name: str, world: int, found: Prediction, beside: float | None) -> str:
    """Name, ranks, what was predicted, seconds of the generated step → a line of text."""
    text = (
        f"{name:26} {world:5} ranks {found.cpu:5.0f} s {found.resident:4.1f} GB "
        f"{found.reserved:6.1f} GiB reserved {found.seconds * 1e3:9.2f} ms "
        f"± {percentage(found.uncertainty)}"
    )
    if beside is not None:
        off = percentage(found.seconds / beside - 1, 1, signed=True)
        text += f"; generated {beside * 1e3:9.2f} ms, {off}"
    return text + (" (captured by other sources)" if found.stale else "")


if __name__ == "__main__":
    main()

"""``mpisim new``: write an experiment to start from."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..base.errors import InputError, UsageError

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  mpisim new > mine.toml                                Llama-3-8B on the 8 GPUs of a DGX H100
  mpisim new mine.toml --model gpt3-175b --gpus 96      another model, on 96 GPUs
  mpisim new mine.toml --model qwen3-30b-a3b --cluster dgx-a100 --overwrite
  mpisim new mine.toml --config Llama-3.1-70B/config.json --gpus 64
  mpisim new mine.toml --framework nemo --framework-version 25.07 --recipe performance
  mpisim new mine.toml --model llama-3-70b --gpus 8 --set model.lora_rank=16
  mpisim new mine.toml --set model.family=gpt --set model.layers=48 --set model.hidden=6144 \\
      --set model.heads=48 --set model.seq_len=4096 --set model.vocab=50304 --gpus 64
  mpisim new mine.toml --all                            every key, with what it means
"""

MODEL, CLUSTER = "llama-3-8b", "dgx-h100"


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim new``."""
    parser = subparsers.add_parser(
        "new",
        help="write an experiment to start from",
        description="Write an experiment with the keys that most people set, and a plan that fits "
        "into the memory of the GPUs: the fastest of some by a bound, without a simulation, to "
        "start from ('mpisim search FILE --vary auto' finds the fastest). What was chosen, and "
        "why, is said on standard error and in the file, and so is that nothing fits.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="where to write it (default: standard output)"
    )
    models = parser.add_mutually_exclusive_group()
    models.add_argument(
        "--model",
        metavar="NAME",
        default=MODEL,
        help=f"one of 'mpisim list models', or as --config (default: {MODEL})",
    )
    models.add_argument(
        "--config",
        metavar="PATH",
        help="a config.json of Hugging Face, or the folder of a checkpoint, in place of --model",
    )
    parser.add_argument(
        "--cluster",
        metavar="NAME",
        default=CLUSTER,
        help=f"one of 'mpisim list clusters' (default: {CLUSTER})",
    )
    parser.add_argument(
        "--set",
        metavar="model.KEY=VALUE",
        action="append",
        default=[],
        help="set a key of the model, as model.seq_len=8192 or model.lora_rank=16; with "
        "model.family=gpt the keys describe a model of your own; may be repeated",
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="how many (default: one node)")
    parser.add_argument(
        "--framework",
        metavar="NAME",
        help="one of 'mpisim list frameworks': what it does where the plan says nothing",
    )
    parser.add_argument("--framework-version", metavar="V", help="(default: the newest known)")
    parser.add_argument(
        "--recipe",
        choices=("none", "performance"),
        help="whether also what the framework's recipes for performance set",
    )
    parser.add_argument("--all", action="store_true", help="write every key, with what it means")
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write an experiment file, or print it."""
    from ..experiment.choices import MAX_GPUS
    from .example import example

    if args.gpus is not None and not 1 <= args.gpus <= MAX_GPUS:
        raise UsageError(f"--gpus is {args.gpus}; it must be from 1 to {MAX_GPUS}")
    if args.overwrite and args.file is None:
        raise UsageError("--overwrite needs a file to write: mpisim new FILE")
    path = args.config or (args.model if _is_path(args.model) else None)
    folder = Path(args.file or "").parent
    name = path or args.model
    framework = {
        "name": args.framework,
        "version": args.framework_version,
        "recipe": args.recipe,
    }
    chosen = {key: value for key, value in framework.items() if value is not None}
    if chosen and args.framework is None:
        option = "--recipe" if args.framework_version is None else "--framework-version"
        raise UsageError(f"{option} is given without --framework: of which one?")
    found = example(
        name,
        args.cluster,
        args.gpus,
        config=path is not None,
        folder=folder,
        framework=chosen,
        changes=_changes(args.set),
        every=args.all,
    )
    _write(found.text, args)
    for line in found.notes:
        print(f"mpisim: {line}", file=sys.stderr)
    return 0


def _changes(texts: list[str]) -> dict[str, Any]:
    """Options ``--set`` → keys of ``[model]``."""
    from ..experiment.changes import changed_key, with_changes
    from ..experiment.plan_keys import renamed

    for text in texts:
        if changed_key(text)[0] != "model" or len(changed_key(text)) < 2:
            key, _, value = text.partition("=")
            now = renamed(key.strip()) or key.strip()
            raise UsageError(
                f"--set {text}: mpisim new takes keys of [model], and chooses the plan for it; "
                f"'mpisim run FILE --set {now}={value.strip()}' changes others"
            )
    found: dict[str, Any] = with_changes({}, "--set", texts).get("model", {})
    return found


def _is_path(name: str) -> bool:
    """Whether a model is named by a path: it has folders, or the ending of a config.json.

    ``ViT-B/16`` and ``Qwen/Qwen3-8B`` are models, where there is no such folder.
    """
    from ..experiment.model_presets import find_model

    if not name.endswith(".json") and Path(name).name == name:
        return False
    if Path(name).exists():
        return True
    try:
        find_model(name)
    except InputError:
        return True
    return False


def _write(text: str, args: argparse.Namespace) -> None:
    from ..base.files import write_whole

    if args.file is None:
        print(text, end="")
        return
    with write_whole(args.file, overwrite=args.overwrite) as file:
        file.write(text.encode())
    print(f"{args.file} is written; run it with: mpisim run {args.file}")

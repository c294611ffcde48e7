"""``mpisim search``: which plan, which cluster, how many GPUs?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import UsageError, one_of
from .output import (
    add_monitor_option,
    add_overwrite_option,
    add_set_option,
    check_files,
    check_outputs,
)

if TYPE_CHECKING:
    from ..search import Answer, SearchSpace
    from ..search.records import Records

__all__ = ["add_parser", "add_vary_option", "run", "with_varied"]

EXAMPLES = """\
examples:
  mpisim search mine.toml                              what its table [search] says
  mpisim search mine.toml --vary plan.tp=auto --vary plan.pp=auto --vary plan.micro_batch=1,2,4
  mpisim search mine.toml --vary auto -o found.h5      everything that a plan can choose, kept
  mpisim search -o found.h5 --resume                   go on with it
  mpirun -n 8 mpisim search mine.toml --vary auto      candidates shared by eight processes
  mpisim search mine.toml --vary cluster.nodes=16,32,64 --objective step_time --objective gpus
  mpisim search mine.toml --objective usd_per_token --objective step_time --draw front.png
  mpisim search mine.toml --set job.tokens=1T --limit job_time='30 days' --objective job_usd \\
      --vary cluster.preset=dgx-h100,dgx-a100 --vary cluster.nodes=32..96..32
"""


def add_parser(subparsers: Any) -> None:
    """Add the parser of ``mpisim search``."""
    parser = subparsers.add_parser(
        "search",
        help="find the best plans, or clusters, for an experiment",
        description="Vary keys of an experiment, and print which combinations are the best. Those "
        "that cannot be among them, by a proven bound, are not simulated; those that do not fit "
        "into memory neither. What is shown is what simulating all of them would show.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="an experiment, which may have a table [search]"
    )
    add_set_option(parser)
    add_vary_option(parser)
    parser.add_argument(
        "--objective",
        metavar="NAME",
        action="append",
        default=[],
        help="step_time (default), tokens_per_second, tokens_per_second_per_gpu, gpus, memory, "
        "usd_per_token, energy_per_token, usd_per_hour, power, price, and of the job of [job] "
        "job_time, job_usd; the first ranks, several show a front",
    )
    parser.add_argument(
        "--limit",
        metavar="NAME=MOST",
        action="append",
        default=[],
        help="the most that a candidate may have: step_time=2 (s), memory=60 (GiB), "
        "gpus=512, power='2 MW', "
        "usd_per_hour, price, job_time='30 days', job_usd=5M; "
        "the same as --set search.max_NAME=MOST",
    )
    parser.add_argument(
        "--each",
        metavar="KEY",
        help="show the best of each value of a key, too, as of each cluster.preset",
    )
    parser.add_argument("--top", type=int, metavar="N", help="how many to show (default: 10)")
    parser.add_argument("-o", "--output", metavar="STORE", help="keep all that is found (HDF5)")
    parser.add_argument("--resume", action="store_true", help="go on with the search kept in STORE")
    parser.add_argument("--json", metavar="FILE", help="also write the answer to this file (JSON)")
    parser.add_argument(
        "--draw", metavar="PICTURE", help="draw the front: .png, .svg or .pdf (matplotlib)"
    )
    add_overwrite_option(parser)
    add_monitor_option(parser)
    parser.set_defaults(run=run, collective=True)


def add_vary_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--vary``: see `with_varied`."""
    parser.add_argument(
        "--vary",
        metavar="KEY=VALUES",
        action="append",
        default=[],
        help="vary a key, as plan.tp=1,2,4, plan.pp=auto, cluster.nodes=8..64..8; 'auto' alone "
        "varies the plan; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Search, and print the answer; the first process prints."""
    _check(args)
    from ..base.files import write_json
    from ..base.picture import check_picture
    from ..mpi.parallel import collective_errors
    from ..report.drawing import drawing_for
    from .launch import without_launcher, world

    comm = world()
    begun: tuple[SearchSpace, Records | None] | None = None
    from ..search import answer, explore, write_store
    from ..search.answer import answer_lines
    from ..search.picture import check_front, draw_front

    with collective_errors(comm):
        if comm.rank == 0:
            begun = _begun(args)
            check_files(args, but=("output",) if args.resume else ())
            if args.draw is not None:
                check_picture("--draw", args.draw, overwrite=args.overwrite)
                check_front(begun[0])
    space, known = comm.bcast(begun, root=0)
    replaces = args.overwrite or args.resume
    go_on = f"mpisim search -o {args.output} --resume"
    told = without_launcher()  # mpirun passes on nothing that is printed after Ctrl-C

    def keep(records: Records) -> None:
        nonlocal replaces, told
        if args.output is not None:
            write_store(args.output, space, records, overwrite=replaces)
            if not told:
                words = (
                    f"{args.output} has what is found so far; if interrupted, go on with: {go_on}"
                )
                print(f"mpisim: {words}", file=sys.stderr)
            replaces = told = True

    try:
        records = explore(space, comm, known=known, show=True, each_round=keep)
        found: Answer = answer(space, records, comm, show=True)
    except BaseException:
        if comm.rank == 0 and args.output is not None and Path(args.output).exists():
            print(
                f"mpisim: what was found is in {args.output}; go on with: {go_on}",
                file=sys.stderr,
            )
        raise
    if comm.rank == 0:
        if args.output is not None:
            write_store(args.output, space, records, found.as_json(), overwrite=True)
        if args.json is not None:
            write_json(args.json, found.as_json(), overwrite=args.overwrite)
        if args.draw is not None:
            draw_front(space, records, found, args.draw, overwrite=args.overwrite)
        drawing = drawing_for(sys.stdout, launched=not without_launcher())
        print("\n".join(answer_lines(space, found, drawing)))
        for path in (args.json, args.draw):
            if path is not None and Path(path).is_file():  # devices have no name to come back to
                print(f"{path} is written")
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse options that do not go together, before anything is loaded."""
    check_outputs(args)
    if args.resume and args.output is None:
        raise UsageError("--resume needs the search to go on with: -o STORE")
    new = (args.file, args.vary, args.set, args.objective, args.limit, args.each, args.top)
    if args.resume and any(new):
        raise UsageError("--resume goes on with what STORE says; give nothing else besides -o")
    if not args.resume and args.file is None:
        raise UsageError("what to search is missing: mpisim search FILE")


def _begun(args: argparse.Namespace) -> tuple[SearchSpace, Records | None]:
    """Return the space that is asked for, and what is known of it already."""
    from dataclasses import replace

    from ..experiment.changes import changed_key
    from ..experiment.load import load_tables
    from ..search import read_search, read_store
    from .other_files import expected

    if args.resume:
        space, records, _ = read_store(args.output)
        return space, records
    with expected([args.file], ("experiment",)):
        source, tables = load_tables(args.file, args.set)
    search = tables.setdefault("search", {})
    if isinstance(search, dict):
        if args.objective:
            search["objectives"] = args.objective
        if args.top is not None:
            search["top"] = args.top
        if args.each is not None:
            search["each"] = args.each
        for text in args.limit:
            name, most = _limit(text)
            search[f"max_{name}"] = most
        if not search:
            del tables["search"]
    tables = with_varied(tables, args.vary)
    changes = tuple(each for each in args.set if changed_key(each)[0] != "search")
    return replace(read_search(tables, source), changes=changes), None


def _limit(text: str) -> tuple[str, Any]:
    """Return what an option ``--limit`` limits, and the most of it."""
    from ..search.choice import LIMITS, MEANT

    name, equals, most = (part.strip() for part in text.partition("="))
    if not equals or not most:
        raise UsageError(f"--limit {text}: not of the form NAME=MOST, as power='2 MW'")
    name = name.removeprefix("max_")
    if name not in LIMITS:
        suggestion = " or ".join(repr(each) for each in MEANT.get(name, ()) if each in LIMITS)
        near = one_of(name, LIMITS)
        if suggestion:
            near = f" (did you mean {suggestion}?)" + near[near.index(";") :]
        raise UsageError(f"--limit {text}: there is no limit of {name!r}{near}")
    return name, _parsed(most)


def with_varied(tables: dict[str, Any], options: Sequence[str]) -> dict[str, Any]:
    """Tables of a file, options ``--vary`` → the tables with these keys in ``[search.vary]``.

    Keys that the file varies and no option names stay.

    Parameters
    ----------
    tables : dict
    options : sequence of str
        Each KEY=VALUES, or ``auto``.

    Raises
    ------
    UsageError
        If an option is not of the form, or varies what another does.
    """
    given: dict[str, Any] = {}
    for option in options:
        key, values = _varied(option)
        if key in given:
            raise UsageError(f"--vary {option}: {key} is varied twice; give its values in one")
        given[key] = values
    search = tables.get("search", {})
    if not given or not isinstance(search, dict):  # what is no table is refused where it is read
        return tables
    known = search.get("vary")
    vary = {**known, **given} if isinstance(known, dict) else given
    return {**tables, "search": {**search, "vary": vary}}


def _varied(text: str) -> tuple[str, Any]:
    """Return the key and the values of an option ``--vary``."""
    if text == "auto":
        return "plan", "auto"
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise UsageError(f"--vary {text}: not of the form TABLE.KEY=VALUE,VALUE")
    if values.strip() == "auto":
        return key.strip(), "auto"
    numbers = values.split("..")
    if len(numbers) in (2, 3) and all(each.strip().isdecimal() for each in numbers):
        names = ("from", "to", "step")
        return key.strip(), dict(zip(names, map(int, numbers), strict=False))
    return key.strip(), [_parsed(value) for value in values.split(",")]


def _parsed(text: str) -> Any:
    """Return a value of the command line: TOML, or else a text."""
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text.strip()

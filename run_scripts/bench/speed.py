#!/usr/bin/env python3
"""Whole commands on one process and more → what they take, beside a stored table.

    source run_scripts/env.sh
    .venv/bin/python run_scripts/bench/speed.py [--only WORDS] [--repeat N] [--timeout S]
    .venv/bin/python run_scripts/bench/speed.py --refresh        write the table

Exits with 1 where something takes over 15 % more than in the table, or fails though it has a row
there, or where a case has other digests on other numbers of processes. Needs an idle machine, the
table's.

Unless a case says otherwise it is GPT-3 175B with tp 8, pp 16 and 64 micro-batches a replica. Ranks
that provably do the same are simulated once (*folded*), or *each*. Communications share *links* or
take as long as *alone*; by *default* what overlaps is slower, too. *jitter*: 2 % on every kernel;
*spread*: 2 % between GPUs; *slow-N*: N GPUs, each with a speed of its own; *nics*: all NICs of
different bandwidths; *spine*: that, and leaves of 64 NICs under one spine, oversubscribed 4:1.

Columns: wall time (median) and its ratio to the table's; peak memory of the largest process; rows
of all ranks; the simulate phase in ns a row, and its ratio where a case is about that; exchanges
between processes; digest.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, get_type_hints

from commands import Failed, gpt, taken

REPOSITORY = Path(__file__).resolve().parent.parent.parent
TABLE = Path(__file__).with_name("speed.csv")
AT_MOST = 1.15
"""Times what the table says."""
MPISIM = (sys.executable, "-m", "mpisim")

LINKS = ("overlap.model=off",)
ALONE = (*LINKS, "network.contention=false")
DEEPSEEK = ("cluster.nodes=512", "plan.dp=256", "plan.global_batch=30720")
PAIR = (1, 2)
EXPERIMENT, SPINE, TRACES = "mine.toml", "spine.toml", "et"
PROGRAM, RESULT = "step.h5", "result.h5"
"""Files that cases read and write, in a folder of their own."""


class Case(NamedTuple):
    """Words behind `mpisim`, and on how many processes they run."""

    title: str
    words: tuple[str, ...]
    processes: tuple[int, ...] = (1,)
    experiment: str = ""
    """The text of the file that they name."""
    an_operation: bool = False
    """Whether it is about the cost of an operation: ns a row are compared, too."""


class Row(NamedTuple):
    """What a case took on some number of processes."""

    case: str
    processes: int
    seconds: float
    megabytes: float
    rounds: int
    rows: int
    ns_a_row: float
    digest: str
    date: str
    machine: str


# --- cases --------------------------------------------------------------------------------------


def cases() -> Iterator[Case]:
    """Yield all cases."""
    yield Case("start", (), (1, 8))
    for spine in (False, True):
        for gpus in (256, 512, 1_024, 2_048, 4_096, 8_192):
            text = gpt(gpus, cluster=SPINE) + _nics_by_digits(gpus) if spine else gpt(gpus)
            title = f"gpt {gpus} each links" + " spine" * spine
            processes = (1, 2, 4) if (gpus, spine) == (8_192, False) else (1,)
            yield _run(title, text, *LINKS, on=processes)._replace(an_operation=True)
    yield _run("gpt 8192 each default", gpt(8_192), on=PAIR)
    yield _run("gpt-tp4-pp32 6144 each links", gpt(6_144, tp=4, pp=32), *LINKS, on=PAIR)
    yield _run("llama 16384 each links", "llama3-405b-16384-h100", *LINKS, on=PAIR)
    yield _run("deepseek 4096 each links", "deepseek-v3-2048-h800", *DEEPSEEK, *LINKS, on=PAIR)
    yield _run("gpt 8192 alone jitter", gpt(8_192), "variation.kernels=0.02", *ALONE, on=PAIR)
    for gpus in (2_048, 4_096):
        yield _run(f"gpt {gpus} default spread", gpt(gpus), "variation.gpus=0.02", on=PAIR)
    for n in (1, 8, 64, 512):
        yield _run(f"gpt 4096 folded default slow-{n}", gpt(4_096) + _slow(n, 4_096))
    yield _run("gpt 131072 folded alone", gpt(131_072), *ALONE)
    yield _run("gpt 131072 folded default", gpt(131_072))
    yield _run("gpt 1024 folded default micro-batches-4096", gpt(1_024, micro_batches=4_096))
    yield _run("gpt 4096 folded default nics", gpt(4_096) + _nics(4_096))
    yield Case("chakra 8192 import", ("program", "import", TRACES, "-o", PROGRAM, "--overwrite"))
    yield _run("chakra 8192 run", PROGRAM, "cluster.preset=dgx-h100")


def _run(title: str, experiment: str, *changes: str, on: tuple[int, ...] = (1,)) -> Case:
    """A name or the text of an experiment → a run, each rank by itself if the title says so."""
    text = experiment if "\n" in experiment else ""
    words = ["run", EXPERIMENT if text else experiment, "-o", RESULT, "--overwrite"]
    words += [] if experiment == PROGRAM else ["--allow-oom"]
    words += ["--no-fold"] if "each" in title.split() else []
    for change in changes:
        words += ["--set", change]
    return Case(title, tuple(words), on, text)


def _slow(n: int, gpus: int) -> str:
    """So many slow GPUs, far apart → the table of an experiment that makes them so."""
    ranks = range(0, gpus, gpus // n)
    lines = [f"{rank} = {0.9 - 0.0001 * i:.4f}" for i, rank in enumerate(ranks)]
    return "\n".join(["[variation.speeds]", *lines, ""])


def _nics(gpus: int) -> str:
    """Return the table of an experiment that slows every NIC by a part of its own, up to half."""
    return _slowed((f"{i // 8}.nic{i % 8}", 50 * (i + 1) / gpus) for i in range(gpus))


def _nics_by_digits(gpus: int) -> str:
    """Return such a table with some 40 changes: slower by each digit of a node, and by the NIC."""
    slowed, nodes = [(f"*.nic{i}", 0.5117 * (i + 1)) for i in range(8)], gpus // 8
    for place, percent in enumerate((0.5903, 0.3701, 0.2309, 0.1307)):
        numbers = range(10**place if place else 0, nodes)
        for digit in sorted({number // 10**place % 10 for number in numbers}):
            slowed.append((f"*{digit}{'?' * place}.nic*", percent * (digit + 1)))
    return _slowed(slowed)


def _slowed(nics: Iterable[tuple[str, float]]) -> str:
    """Patterns of NICs, and by how many percent they are slower → the table of an experiment."""
    lines = [f'"links.node{nic}->*.bandwidth" = "{100 - part:.4f} %"' for nic, part in nics]
    return "\n".join(["[network.changes]", *lines, ""])


def _inputs(case: Case, folder: Path) -> None:
    """Write what a case reads into a folder."""
    (folder / EXPERIMENT).write_text(case.experiment)
    if SPINE in case.experiment:
        from mpisim.data import text

        fabric = 'kind = "fat-tree"\nleaf = 64\noversubscription = 4'
        found = text("clusters/dgx-h100.toml").partition('kind = "rail-fat-tree"\nleaf = 32')
        assert found[1], "the fabric of dgx-h100 has changed"
        (folder / SPINE).write_text(found[0] + fabric + found[2])
    if case.title.startswith("chakra") and not (folder / TRACES).exists():
        _write_traces(folder / TRACES)
    if case.words[:2] == ("run", PROGRAM) and not (folder / PROGRAM).exists():
        taken([*MPISIM, "program", "import", TRACES, "-o", PROGRAM], folder=folder)


def _write_traces(folder: Path) -> None:
    """Write Chakra's traces of one all-reduce of 16 MiB, a file a rank."""
    from mpisim.formats.chakra_schema import CollectiveType, NodeType, add, delimited, messages

    node = messages().Node(id=1, name="all-reduce", type=NodeType.COMM_COLL_NODE)
    add(node, "is_cpu_op", "bool_val", False)
    add(node, "comm_type", "int64_val", CollectiveType.ALL_REDUCE)
    add(node, "comm_size", "int64_val", 16 << 20)
    content = delimited(messages().GlobalMetadata(version="0.0.4")) + delimited(node)
    folder.mkdir()
    for rank in range(8_192):
        (folder / f"all-reduce.{rank}.et").write_bytes(content)


# --- measuring ----------------------------------------------------------------------------------


def measured(case: Case, processes: int, folder: Path, repeat: int, limit: float) -> Row:
    """Run a case several times → the medians."""
    command = ["mpirun", "-n", str(processes)] if processes > 1 else []
    runs, phases = [], []
    for _ in range(repeat):
        runs.append(taken([*command, *MPISIM, *case.words], limit, folder))
        phases.append(_simulate_phase(folder / RESULT) if RESULT in case.words else 0.0)
    printed = " ".join(runs[0].output.split())
    counts = re.search(r" ([\d,]+) rounds? of exchange, ([\d,]+) rows", printed)
    digest = re.search(r"\bdigest (\w+)", printed)
    rounds, rows = (int(each.replace(",", "")) for each in counts.groups()) if counts else (0, 0)
    return Row(
        case=case.title,
        processes=processes,
        seconds=round(statistics.median(each.seconds for each in runs), 3),
        megabytes=round(max(each.memory for each in runs) / 1e6, 1),
        rounds=rounds,
        rows=rows,
        ns_a_row=round(1e9 * statistics.median(phases) / max(rows, 1), 3),
        digest=digest[1] if digest else "",
        date=datetime.date.today().isoformat(),
        machine=_machine(),
    )


def _simulate_phase(result: Path) -> float:
    """A result file → the seconds of its simulate phase."""
    import h5py

    with h5py.File(result) as file:
        return float(file["wall/simulate"][()])


def _machine() -> str:
    """Return the processor's name and the number of its cores."""
    file = Path("/proc/cpuinfo")
    names = re.search(r"model name\s*: (.*)", file.read_text()) if file.exists() else None
    return f"{names[1] if names else platform.machine()}, {os.cpu_count()} cores"


# --- the table ----------------------------------------------------------------------------------


def read(path: Path) -> dict[tuple[str, int], Row]:
    """A table → its rows; none where there is no table."""
    if not path.exists():
        return {}
    kinds = get_type_hints(Row)
    with path.open(newline="", encoding="utf-8") as file:
        found = [Row(**{k: kinds[k](v) for k, v in row.items()}) for row in csv.DictReader(file)]
    return {(row.case, row.processes): row for row in found}


def write(rows: Iterable[Row], path: Path) -> None:
    """Rows → the table, whole or not at all."""
    from mpisim.base.csv_files import write_table

    write_table(path, Row._fields, rows, overwrite=True)


def slower(row: Row, old: Row | None, an_operation: bool) -> list[str]:
    """What a case takes, now and in the table → a line for each figure that grew too much."""
    figures = [("s", row.seconds, old.seconds)] if old else []
    if old and an_operation:
        figures.append(("ns a row", row.ns_a_row, old.ns_a_row))
    return [
        f"{row.case} on {row.processes}: {was:g} -> {now:g} {unit}, x {now / was:.2f}"
        for unit, now, was in figures
        if was and now > AT_MOST * was
    ]


def apart(rows: Iterable[Row]) -> list[str]:
    """Rows → a line for each case whose digests differ between numbers of processes."""
    digests: dict[str, dict[str, list[int]]] = {}
    for row in rows:
        digests.setdefault(row.case, {}).setdefault(row.digest, []).append(row.processes)
    return [
        f"{case}: " + ", ".join(f"{digest} on {on}" for digest, on in found.items())
        for case, found in digests.items()
        if len(found) > 1
    ]


# --- the command --------------------------------------------------------------------------------


def main() -> int:
    """Measure and print → 0, or 1 if anything is amiss."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="WORDS", default="", help='as "8192 each on 2"')
    parser.add_argument("--repeat", type=int, metavar="N", default=5, help="median of N (5)")
    parser.add_argument("--timeout", type=float, metavar="S", default=600, help="a run may take")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--table", type=Path, metavar="FILE", default=TABLE)
    parser.add_argument("--refresh", action="store_true", help="write what is measured there")
    args = parser.parse_args()
    if args.repeat < 1:
        parser.error("--repeat: at least 1")
    if not (chosen := list(_chosen(args.only))):
        parser.error(f"--only {args.only!r}: no case has all of these words")
    folders = ("mpisim", "kernels", "topo", "data")
    subprocess.run([sys.executable, "-m", "compileall", "-q", *folders], cwd=REPOSITORY, check=True)
    table, amiss = read(args.table), []
    found: dict[tuple[str, int], Row] = {}
    if others := {row.machine for row in table.values()} - {_machine()}:
        print(f"rows of the table are of another machine: {'; '.join(sorted(others))}")
    print("  wall s  x table      MB         rows   ns/row  x table  rounds  digest    case")
    with tempfile.TemporaryDirectory() as folder:
        for case, processes in chosen:
            old, title = table.get((case.title, processes)), f"{case.title} on {processes}"
            try:
                _inputs(case, Path(folder))
                row = measured(case, processes, Path(folder), args.repeat, args.timeout)
            except Failed as failure:
                print(f"{'failed':>8}  {title}: {failure}", flush=True)
                amiss += [f"{title}: failed"] if old else []
                continue
            found[case.title, processes] = row
            amiss += [] if args.refresh else slower(row, old, case.an_operation)
            print(_line(row, old, case.an_operation), flush=True)
    amiss += apart(found.values())
    if args.json:
        args.json.write_text(json.dumps([row._asdict() for row in found.values()], indent=2) + "\n")
    if args.refresh:
        keys = [(case.title, processes) for case, processes in _chosen("")]
        rows = table | found
        write([rows[key] for key in keys if key in rows], args.table)
    print("".join(f"AMISS: {line}\n" for line in amiss), end="")
    return 1 if amiss else 0


def _chosen(words: str) -> Iterator[tuple[Case, int]]:
    """Yield the cases that have all words, with each number of processes."""
    for case in cases():
        for processes in case.processes:
            if set(words.split()) <= {*case.title.split(), "on", str(processes)}:
                yield case, processes


def _line(row: Row, old: Row | None, an_operation: bool) -> str:
    """Return a line of the printed table."""
    ratios = [row.seconds / old.seconds] if old else []
    ratios += [row.ns_a_row / old.ns_a_row] if old and old.ns_a_row and an_operation else []
    times, costs = [*(f"{each:9.2f}" for each in ratios), f"{'-':>9}", f"{'-':>9}"][:2]
    moved = " (another digest than in the table)" if old and old.digest != row.digest else ""
    return (
        f"{row.seconds:8.2f}{times} {row.megabytes:7.0f} {row.rows:12,} {row.ns_a_row:8.2f}"
        f"{costs} {row.rounds:7}  {row.digest[:8]:8}  {row.case} on {row.processes}{moved}"
    )


if __name__ == "__main__":
    sys.exit(main())

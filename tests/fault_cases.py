"""The fault table: bad inputs, the command that meets them, what it must say, its exit code.

`CASES` is the table of :mod:`bad_inputs`, every damage of every file of :mod:`seeds`, and
wrong words on the command line of every command. ``fault_table.py`` runs all of them on
1, 2 and 4 processes of every MPI it finds and writes ``docs/reliability.md``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bad_files import whole_job, write
from bad_inputs import TABLE, Bad
from seeds import SEEDS, Seed, seed

__all__ = ["CASES", "Case"]


@dataclass(frozen=True)
class Case:
    """A bad input.

    Attributes
    ----------
    group, name : str
    args : list of str
        ``@`` stands for the folder that `make` fills.
    code : int
        The exit code that is right.
    says : tuple of str
        Fragments of the line, in this order.
    make : callable
        Writes the input.
    """

    group: str
    name: str
    args: list[str]
    code: int
    says: tuple[str, ...]
    make: Callable[[Path], object]

    def prepared(self, folder: Path) -> list[str]:
        """Write the input into a new folder and return the arguments."""
        folder.mkdir(parents=True)
        self.make(folder)
        return [word.replace("@", str(folder)) for word in self.args]

    def wrong(self, folder: Path, code: int, line: str) -> str:
        """Say what is wrong with an exit code and the line of the error; nothing if all is well."""
        if code != self.code:
            return f"exit code {code}, not {self.code}"
        at = 0
        for part in self.says:
            at = line.find(part.replace("@", str(folder)), at)
            if at < 0:
                return f"does not say {part!r}: {line.replace(str(folder), '@')[:200]}"
        return ""


# --- files ------------------------------------------------------------------------------------


def _absent(path: Path) -> None:
    path.unlink()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _other(path: Path) -> None:
    """Put a small picture in the place of the file."""
    path.write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(256)) * 8)


def _halved(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no such file": _absent,
    "a folder": _folder,
    "empty": lambda path: path.write_bytes(b""),
    "cut in half": _halved,
    "a picture": _other,
    "zeros": lambda path: path.write_bytes(b"\0" * 5000),
}

UNDERSTOOD = {
    ("measured collectives", "cut in half"): "rows are lines",
    ("nccl-tests, printed", "cut in half"): "what was printed so far counts, and it says so",
    ("kernel measurements", "cut in half"): "rows are lines",
}
"""Damages after which a file is still one, and why."""


def _damaged(base: Seed, damage: str) -> Case:
    def make(folder: Path) -> None:
        base.write(folder)
        DAMAGES[damage](folder / base.file)

    says = ("@",) if base.name != "overlap constants" else ("o.toml",)
    return Case("files", f"{base.name}: {damage}", list(base.args), 2, says, make)


FILES = [
    _damaged(each, damage)
    for each in SEEDS
    for damage in DAMAGES
    if (each.name, damage) not in UNDERSTOOD
    if each.name != "Chakra's groups"  # these traces are mpisim's own, which say their groups
]

# --- words ------------------------------------------------------------------------------------


def _nothing(folder: Path) -> None:
    pass


def _words(command: str, code: int, *says: str, make: Callable[[Path], object] = _nothing) -> Case:
    return Case("command line", command, command.split(), code, says, make)


def _there(folder: Path) -> None:
    """A good job, pairs, and what stands in the way of outputs."""
    whole_job(folder)
    for name in ("overlapping pairs", "program", "kernel measurements", "measured steps"):
        seed(name).write(folder)
    shutil.copy(folder / "p.h5", folder / "there.h5")
    write(folder / "there.toml", "precious = 1\n")
    (folder / "folder").mkdir()


WORDS = [
    _words("rnu", 2, "'rnu' is not one of", "did you mean 'run'?"),
    _words("run --seed 3", 2, "unknown option '--seed' (did you mean '--seeds'?)"),
    _words("run --seeds 0", 2, "--seeds is 0"),
    _words("run --seeds two", 2, "--seeds", "'two'"),
    _words("run --top -3", 2, "--top is -3"),
    _words("run --set plan.tp", 2, "--set plan.tp"),
    _words("run --set plan.tq=8", 2, "unknown key 'tq' in [plan]"),
    _words("run --set plan.tp=two", 2, "plan.tp", "'two'"),
    _words("run --set plan.tp=3", 2, "tp"),
    _words("run --set plan.tp=0", 2, "plan.tp", "0"),
    _words("run --set cluster.preset=dgx-h1000", 2, "dgx-h1000", "did you mean 'dgx-h100'?"),
    _words("run --set model.preset=lama-3-8b", 2, "lama-3-8b", "did you mean 'llama-3-8b'?"),
    _words("run --set model.layers=1e3", 2, "model.layers"),
    _words("run --set nothing.at=3", 2, "unknown key 'nothing'"),
    _words("run --set variation.speeds.99=0.5", 2, "99"),
    _words("run --timeline", 2, "--timeline needs a file"),
    _words("run --overwrite", 2, "--overwrite needs a file"),
    _words("run no-such-experiment", 2, "no-such-experiment: there is no such file, nor"),
    _words("run a b", 2, "unexpected argument 'b'"),
    _words("new --model gpt5", 2, "gpt5"),
    _words("new --cluster nowhere", 2, "nowhere"),
    _words("new --gpus 0", 2, "0"),
    _words("new --gpus seven", 2, "--gpus", "'seven'"),
    _words("list planets", 2, "'planets' is not one of"),
    _words("topo", 2, "ACTION"),
    _words("topo show", 2, "CLUSTER"),
    _words("topo show nowhere", 2, "nowhere"),
    _words("topo show dgx-h100 --nodes 0", 2, "--nodes is 0"),
    _words("topo show dgx-h100 --nodes -2", 2, "-2"),
    _words("topo show dgx-h100 --set links.nothing=cut", 2, "links.nothing"),
    _words("topo show dgx-h100 --nic-bandwidth fast", 2, "fast"),
    _words("comm", 2, "--cluster"),
    _words("comm all_reduce --cluster dgx-h100", 2, "--size"),
    _words("comm all_reduce --cluster dgx-h100 --size 1X", 2, "1X"),
    _words("comm all_reduce --cluster dgx-h100 --size 0", 2, "0"),
    _words("comm all_reduse --cluster dgx-h100 --size 1M", 2, "all_reduse", "did you mean"),
    _words("comm all_reduce --cluster dgx-h100 --size 1M --ranks 0-99", 2, "99"),
    _words("comm all_reduce --cluster dgx-h100 --size 1M --set NCCL_ALGO=Star", 2, "Star"),
    _words("comm all_reduce --cluster dgx-h100 --size 1M --gpus-per-node 9", 2, "9"),
    _words("replay", 2, "PATH"),
    _words("replay @/job --scale-comm -1", 2, "--scale-comm", make=whole_job),
    _words("replay @/job --delay 9:1", 2, "rank 9", make=whole_job),
    _words("report", 2, "FILE"),
    _words("report @/job", 2, "@/job", make=whole_job),
    _words("program", 2, "ACTION"),
    _words("program rnu", 2, "'rnu' is not one of", "did you mean 'run'?"),
    _words("program run @/p.h5 --cluster nowhere", 2, "nowhere", make=seed("program").write),
    _words("program run @/p.h5 --set network.model=nccl", 2, "network", make=seed("program").write),
    _words("program import @/job -o @/o.h5", 2, "@/job", make=whole_job),
    _words("program import @/none -o @/o.h5", 2, "@/none"),
    _words("program export @/p.h5 -o @/e --format otf", 2, "otf", make=seed("program").write),
    _words("program show @/p.h5 --rank 9", 2, "there is no rank 9", make=seed("program").write),
    _words("program show @/p.h5 --rows -1", 2, "-1", make=seed("program").write),
    _words("trace", 2, "ACTION"),
    _words("trace show @/none", 2, "@/none"),
    _words("validate", 2, "KIND"),
    _words("validate traces @/none", 2, "@/none"),
    _words("validate kernels @/none", 2, "@/none"),
    _words("validate collectives @/none", 2, "@/none"),
    _words("validate e2e @/none", 2, "@/none"),
    _words("validate kernels @/k.csv --model oracle", 2, "oracle", make=_there),
    _words("validate e2e @/s.csv --where planet=mars", 2, "planet", make=_there),
    _words("validate e2e @/s.csv --limit 0", 2, "--limit", make=_there),
    _words("calibrate", 2, "KIND"),
    _words("calibrate kernels @/none -o @/o", 2, "@/none"),
    _words("calibrate collectives @/none -o @/o", 2, "@/none"),
    _words("calibrate overlap @/none -o @/o", 2, "@/none"),
    _words("calibrate e2e @/none -o @/o", 2, "@/none"),
    _words("calibrate overlap @/pairs.csv", 2, "-o", make=_there),
    _words("run --set plan.pp=2 --set plan.vpp=1 --set plan.pipeline=zb-v", 2, "vpp = 2"),
    _words("search", 2, "FILE"),
    _words("search llama3-8b-8-h100 --vary plan.tq=1,2", 2, "unknown key 'tq'", "did you mean"),
    _words("search llama3-8b-8-h100 --vary plan.tp=", 2, "plan.tp"),
    _words("search @/none.toml --vary plan.tp=1", 2, "@/none.toml"),
    _words("sensitivity llama3-8b-8-h100 --factors nan", 2, "the factor nan is not allowed"),
    _words("profile @/none.toml", 2, "@/none.toml"),
    _words("shard llama3-8b-8-h100", 2, "llama3-8b-8-h100"),
    _words("memory @/none.toml", 2, "@/none.toml"),
    _words("job llama3-8b-8-h100", 2, "[job]"),
    _words("job llama3-8b-8-h100 --set job.tokens=-1", 2, "tokens"),
    _words("extrapolate @/none --dp 2", 2, "@/none"),
    _words("capture --world-size 0 -- @/train.py", 2, "@/train.py: there is no such script"),
    _words("compare @/none.h5 @/none.h5", 2, "@/none.h5"),
    _words("watch @/none", 2, "@/none"),
    _words("packets all_reduse --cluster dgx-h100 --size 1M", 2, "all_reduse", "did you mean"),
    _words(
        "packets all_reduce --cluster dgx-h100 --size 1M --congestion hpcc --set pint_base=1.1",
        2,
        "pint_base has no effect with congestion 'hpcc'",
    ),
    _words("comm all_reduce --cluster dgx-h100 --size 1M --nodes 99999999999", 2, "--nodes is"),
    _words("packets all_reduce --cluster dgx-h100 --size 1M --spines 9999999", 2, "--spines is"),
    _words("packets @/none.csv --cluster dgx-h100", 2, "@/none.csv"),
    _words("decentralized triosim-p2-vgg16-ddp --graph rign", 2, "rign", "did you mean"),
    _words("decentralized triosim-p2-vgg16-ddp --graph ring --slow 10-1", 2, "--slow", "10-1"),
    _words("decentralized triosim-p2-vgg16-ddp --graph ring --backup 9", 2, "9"),
    # Outputs in the way, or that cannot be: told before the work, as wrong usage.
    _words("run -o @/there.h5", 2, "@/there.h5: exists already", make=_there),
    _words("run -o @/no/r.h5", 2, "@/no/r.h5: there is no folder @/no"),
    _words("run -o @/folder", 2, "@/folder: is a folder", make=_there),
    _words("run --json @/no/r.json", 2, "@/no/r.json: there is no folder @/no"),
    _words("run --save-program @/there.h5", 2, "@/there.h5: exists already", make=_there),
    _words("new @/there.toml", 2, "@/there.toml: exists already", make=_there),
    _words("new @/no/e.toml", 2, "@/no/e.toml: there is no folder @/no"),
    _words("topo show dgx-h100 --draw @/no/x.svg", 2, "@/no/x.svg: there is no folder @/no"),
    _words("topo show dgx-h100 --json @/no/x", 2, "@/no/x: there is no folder @/no"),
    _words("calibrate overlap @/pairs.csv -o @/there.toml", 2, "@/there.toml: exists", make=_there),
    _words("calibrate overlap @/pairs.csv -o @/no/x", 2, "@/no/x: there is no folder", make=_there),
    _words("program export @/p.h5 -o @/no/x", 2, "there is no folder @/no", make=_there),
    _words("validate kernels @/k.csv --json @/no/x", 2, "@/no/x: there is no", make=_there),
    _words("validate e2e @/s.csv --json @/no/x", 2, "@/no/x: there is no", make=_there),
]


def _of_table(bad: Bad) -> Case:
    return Case("inputs", bad.name, bad.args, bad.code, tuple(bad.says), bad.make)


CASES = [*map(_of_table, TABLE), *FILES, *WORDS]

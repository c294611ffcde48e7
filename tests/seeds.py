"""A folder → a small valid file of every format that is read, and the command that reads it.

What tests of damaged input start from: every damage of every file ends in one line.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bad_files as bad
import measured_steps
import networkx
import test_aicb
import test_calibrate
import test_chakra
import test_cli_collectives
import test_clusters
import test_huggingface
import test_nsys
import test_overlap_pairs
import test_simai
import test_topology_files
import test_triosim
from execution_traces import MM, Writer, tensor

from mpisim.cli import main
from mpisim.formats import write_chakra

__all__ = ["SEEDS", "Seed", "seed"]


_place = tempfile.TemporaryDirectory(prefix="seeds")
_made: dict[str, Path] = {}


@dataclass(frozen=True)
class Seed:
    """A file that is read.

    Attributes
    ----------
    name : str
        The format.
    file : str
        The file in the folder that gets damaged; others may lie beside it.
    args : tuple of str
        The command that reads it; ``@`` stands for the folder.
    make : callable
        Writes the files into a folder.
    """

    name: str
    file: str
    args: tuple[str, ...]
    make: Callable[[Path], Any]

    def write(self, folder: Path) -> None:
        """Write the files into a folder; they are made once and copied from then on."""
        if self.name not in _made:
            _made[self.name] = Path(_place.name) / str(len(_made))
            _made[self.name].mkdir()
            self.make(_made[self.name])
        shutil.copytree(_made[self.name], folder, dirs_exist_ok=True)

    def command(self, folder: Path) -> list[str]:
        """Return the arguments of the command for files in `folder`."""
        return [word.replace("@", str(folder)) for word in self.args]


EXPERIMENT = """\
title = "small"

[model]
preset = "llama-3-8b"
layers = 2
seq_len = 1024

[plan]
tp = 2
pp = 1
dp = 4
zero = 1
micro_batch = 1
global_batch = 8
precision = "bf16"
recompute = "none"

[cluster]
preset = "dgx-h100"
nodes = 1

[network.changes]
"links.node0.nic3->*.bandwidth" = "50 %"

[variation]
kernels = 0.01
speeds = { 3 = 0.9 }
"""

SMALL = ("model.layers=2", "plan.global_batch=8", "model.seq_len=1024")


def _text(name: str, text: str | bytes) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return make


def _run(*words: str, within: Callable[[Path], Any] = lambda folder: None) -> Any:
    """Let mpisim itself write the file."""

    def make(folder: Path) -> None:
        within(folder)
        with contextlib.redirect_stdout(io.StringIO()):
            code = main([word.replace("@", str(folder)) for word in words])
        assert code == 0, words

    return make


def _configuration(folder: Path) -> None:
    (folder / "config.json").write_text(test_huggingface.CONFIGS["deepseek-v3"])
    text = EXPERIMENT.replace('preset = "llama-3-8b"', 'hf_config = "config.json"')
    (folder / "e.toml").write_text(text.replace("layers = 2", "layers = 2\ndense_layers = 1"))


def _execution_trace(folder: Path) -> None:
    writer = Writer()
    outer = writer.add("## forward ##", scope=7)
    writer.add("aten::mm", [tensor(5), tensor(6, 8)], [tensor(7)], MM, outer, seq_id=3)
    writer.add("aten::cat", [[tensor(5), tensor(7)], 0], [tensor(8, 8)], "aten::cat(Tensor[] t)")
    writer.write(folder / "et.json")


def _graph(folder: Path) -> None:
    graph = networkx.Graph()
    for i in range(3):
        graph.add_node(f"g{i}", kind="gpu")
    networkx.add_path(graph, graph.nodes, bandwidth="10GB/s", latency=1e-6)
    networkx.write_graphml(graph, folder / "net.graphml")


def _cluster_with_graph(folder: Path) -> None:
    (folder / "ring.toml").write_text(test_topology_files.RING)
    (folder / "mine.toml").write_text(test_topology_files.CLUSTER)


def _program(folder: Path) -> None:
    bad.program(folder / "p.h5", bad.GOOD, bad.GOOD)


def _chakra(folder: Path) -> None:
    write_chakra(test_chakra.pair(), folder / "et", "et")


def _result(folder: Path, *words: str) -> None:
    _program(folder)
    _run("program", "run", "@/p.h5", "-o", "@/r.h5", *words)(folder)


def _kernels(folder: Path) -> None:
    lines = ["gpu,model,op,tp,M,N,K,median_ms,min_ms"]
    for i in range(60):
        m, n, k = 64 << i % 6, 128 << i % 5, 256 << i % 4
        lines.append(f"A100-80GB,m,op,1,{m},{n},{k},{2e-11 * m * n * k / 1.5 + 5e-3:.6f},0")
    (folder / "k.csv").write_text("\n".join(lines) + "\n")


def _sums(folder: Path) -> None:
    """Write measured sums of tensors, whose formula is fitted in a tenth of a product's time."""
    lines = ["gpu,model,op,tp,tokens,width,median_ms"]
    for tokens, width in itertools.product((64, 512, 4096, 32768, 65536), (1024, 4096, 16384)):
        time = 6 * tokens * width / 1.8e9 + 5e-3
        lines.append(f"A100-80GB,m,add,1,{tokens},{width},{time:.6f}")
    (folder / "v.csv").write_text("\n".join(lines) + "\n")


def _whole_models(folder: Path) -> None:
    row = "H100-SXM-80GB,bert_large,inf,512,8,,24,69.8,69.8,0,fp32\n"
    (folder / "w.csv").write_text(f"{test_calibrate.HEADER}\n{row}")


def _collectives(folder: Path) -> None:
    test_cli_collectives.table(folder)


def _log(name: str) -> Callable[[Path], Any]:
    return lambda folder: shutil.copy(test_cli_collectives.LOGS / name, folder / name)


def _pairs(folder: Path) -> None:
    rows = test_overlap_pairs.rows(40)
    for i, row in enumerate(rows):
        row |= {"kernel_slowdown": 1.05 + 0.01 * (i % 7), "comm_slowdown": 1.1 + 0.01 * (i % 5)}
    test_overlap_pairs.table(folder / "pairs.csv", rows)


def _steps(folder: Path) -> None:
    row = {**measured_steps.VTRAIN, "layers": 2}
    measured_steps.table(folder / "s.csv", row, {**row, "id": "second", "step_time_ms": 70.0})


ALL_REDUCE = ("comm", "all_reduce", "--cluster", "dgx-h100", "--size", "1M")
KERNELS = ("validate", "kernels", "@/k.csv")
COLLECTIVES = ("validate", "collectives")
IMPORT = ("program", "import")
LAYERS = [test_simai.layer(fwd=(100, "ALLREDUCE", 8), wg=(5, "ALLGATHER", 8)) for _ in range(3)]

SEEDS = (
    Seed("experiment", "e.toml", ("run", "@/e.toml"), _text("e.toml", EXPERIMENT)),
    Seed(
        "Hugging Face configuration",
        "config.json",
        ("run", "@/e.toml", "--allow-oom"),
        _configuration,
    ),
    Seed("cluster", "c.toml", ("topo", "show", "@/c.toml"), _text("c.toml", test_clusters.OWN)),
    Seed("cluster with a graph", "mine.toml", ("topo", "show", "@/mine.toml"), _cluster_with_graph),
    Seed(
        "topology",
        "t.toml",
        ("topo", "show", "@/t.toml"),
        _text("t.toml", test_topology_files.RING),
    ),
    Seed("GraphML", "net.graphml", ("topo", "show", "@/net.graphml"), _graph),
    Seed(
        "Kineto trace",
        "t.json",
        ("replay", "@/t.json"),
        _text("t.json", json.dumps(bad.kineto(0, 1))),
    ),
    Seed(
        "Kineto trace, compressed",
        "t.json.gz",
        ("replay", "@/t.json.gz"),
        _text("t.json.gz", gzip.compress(json.dumps(bad.kineto(0, 1)).encode(), mtime=0)),
    ),
    Seed("execution trace", "et.json", ("trace", "show", "@/et.json"), _execution_trace),
    Seed(
        "Nsight Systems export",
        "n.sqlite",
        ("replay", "@/n.sqlite"),
        lambda folder: test_nsys.two_ranks().write(folder / "n.sqlite"),
    ),
    Seed("Chakra", "et/et.0.et", (*IMPORT, "@/et", "-o", "@/out.h5"), _chakra),
    Seed("Chakra's groups", "et/et.json", (*IMPORT, "@/et", "-o", "@/out.h5"), _chakra),
    Seed(
        "SimAI",
        "workload.txt",
        (*IMPORT, "@/workload.txt", "-o", "@/out.h5"),
        lambda folder: test_simai.written(folder, test_simai.HYBRID, *LAYERS),
    ),
    Seed(
        "AICB",
        "workload.csv",
        (*IMPORT, "@/workload.csv", "-o", "@/out.h5"),
        _text("workload.csv", "\n".join([test_aicb.COLUMNS, *test_aicb.ZERO3, ""])),
    ),
    Seed(
        "TrioSim's operators",
        "trace.csv",
        (*IMPORT, "@/trace.csv", "-o", "@/out.h5"),
        test_triosim.written,
    ),
    Seed(
        "TrioSim's tensors",
        "tensor.csv",
        (*IMPORT, "@/trace.csv", "-o", "@/out.h5"),
        test_triosim.written,
    ),
    Seed("program", "p.h5", ("program", "run", "@/p.h5"), _program),
    Seed("results", "r.h5", ("report", "@/r.h5"), _result),
    Seed("kernel measurements", "k.csv", KERNELS, _kernels),
    Seed(
        "kernel calibration",
        "k.toml",
        ("validate", "kernels", "@/v.csv", "--calibration", "@/k.toml"),
        _run("calibrate", "kernels", "@/v.csv", "-o", "@/k.toml", within=_sums),
    ),
    Seed("whole models", "w.csv", ("validate", "kernels", "@/w.csv"), _whole_models),
    Seed("measured collectives", "rows.csv", (*COLLECTIVES, "@/rows.csv"), _collectives),
    Seed(
        "nccl-tests, printed",
        "all_reduce_8.log",
        (*COLLECTIVES, "@/all_reduce_8.log"),
        _log("all_reduce_8.log"),
    ),
    Seed(
        "nccl-tests, JSON",
        "alltoall_16.json",
        (*COLLECTIVES, "@/alltoall_16.json"),
        _log("alltoall_16.json"),
    ),
    Seed(
        "collective calibration",
        "c.toml",
        (*ALL_REDUCE, "--calibration", "@/c.toml"),
        _run(
            "calibrate",
            "collectives",
            "@/all_reduce_8.log",
            "-o",
            "@/c.toml",
            within=_log("all_reduce_8.log"),
        ),
    ),
    Seed(
        "overlapping pairs",
        "pairs.csv",
        ("calibrate", "overlap", "@/pairs.csv", "-o", "@/o"),
        _pairs,
    ),
    Seed(
        "overlap constants",
        "o.toml",
        ("run", *(w for c in SMALL for w in ("--set", c)), "--set", "overlap.calibration=@/o.toml"),
        _run("calibrate", "overlap", "@/pairs.csv", "-o", "@/o.toml", within=_pairs),
    ),
    Seed("measured steps", "s.csv", ("validate", "e2e", "@/s.csv"), _steps),
    Seed(
        "predicted steps",
        "p.json",
        ("validate", "e2e", "@/s.csv", "--predicted", "@/p.json"),
        _run("validate", "e2e", "@/s.csv", "--json", "@/p.json", within=_steps),
    ),
)


def seed(name: str) -> Seed:
    """Return the file of a format."""
    return next(each for each in SEEDS if each.name == name)

"""Names of files → small inputs for the commands of README.md and docs/.

    python tests/doc_inputs.py NAME ...

For ``run_scripts/documents.py``. A name that ends in ``/`` is a folder of recorded traces of 8
ranks; one in ``.pickle`` a memory snapshot; ``pairs.csv`` holds measured pairs for
``mpisim calibrate overlap``, ``config.json`` a model, other tables some rows of the measured steps
in $SHARED, or where documents.py looks for them. All other files are those that a document writes
out.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path

SHOWN = "tt-l8b-8g-eager-bf16"


def traces(folder: Path) -> None:
    """Write the traces of a made-up job of 8 ranks."""
    from mpi4py import MPI
    from recorded import recordable_program

    from mpisim.engine import simulate
    from mpisim.traces.export import export_kineto

    program = recordable_program(1, n_ranks=8, n_events=60)
    export_kineto(program, simulate(program, MPI.COMM_SELF), folder, comm=MPI.COMM_SELF)


def snapshot(path: Path) -> None:
    """Write the memory snapshot of four steps of a made-up network, each with longer sequences."""
    from mpisim.formats.torch_snapshot import write_snapshot
    from mpisim.memory.allocations import Allocations

    layers, width, mib = 24, 4096, 1 << 20
    labels = [
        "weights",
        *(f"model.py:{40 + i} layer {i}" for i in range(layers)),
        "model.py:90 loss",
    ]
    rows = [(0, -1, 96 * mib, 0) for _ in range(layers)]
    at = 1
    for step in range(4):
        tokens = 4096 + 480 * step
        last = at + 8 * layers
        for layer in range(layers):
            begin, end = at + 2 * layer, last - 2 * layer
            rows += [(begin, end, 2 * tokens * width * times, 1 + layer) for times in (1, 3, 1, 4)]
            rows += [(begin + 1, begin + 1, 4 * tokens * width, 1 + layer)]
        rows.append((at + 2 * layers, at + 2 * layers + 1, 12 * tokens * 32000, 1 + layers))
        at = last + 1
    begins, ends, sizes, label = zip(*rows, strict=True)
    ms = 1_000_000_000
    table = Allocations.of_lifetimes(
        [ms * each for each in begins],
        [-1 if each < 0 else ms * each for each in ends],
        sizes,
        label=label,
        labels=labels,
        timed=True,
    )
    write_snapshot(path, table, overwrite=True)


def pairs(path: Path) -> None:
    """Write measured pairs that follow the packaged constants, but for noise."""
    from test_overlap_pairs import of_law, packaged_constants

    of_law(path, 60, packaged_constants(), noise=0.02)


def steps(path: Path) -> None:
    """Write every 90th row of the table of measured steps, and the one that documents show."""
    from documents import shared_folder

    shared = os.environ.get("SHARED") or shared_folder()
    if shared is None:
        sys.exit(f"{path}: its rows are measured steps, of a folder that SHARED has to name")
    source = Path(shared) / "groundtruth" / "e2e" / "all.csv"
    with source.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
        heads = reader.fieldnames or []
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, heads)
        writer.writeheader()
        shown = (row for i, row in enumerate(rows) if i % 90 == 0 or row["id"] == SHOWN)
        writer.writerows(shown)


def config(path: Path) -> None:
    """Write the configuration of a Hugging Face model: Llama-3.1-8B's sizes."""
    sizes = {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    }
    path.write_text(json.dumps(sizes), encoding="utf-8")


def written_out(name: str) -> str:
    """The name of a file that a document writes out → its content."""
    from documents import blocks, documents

    found = [
        block.text
        for document in documents()
        for block in blocks(document)
        if block.kinds.get("file") == name
    ]
    if len(found) != 1:
        sys.exit(
            f"{name}: no document writes out a file of that name; other inputs are a folder NAME/, "
            "*.pickle, *.csv, config.json"
        )
    return found[0] + "\n"


def main(names: list[str]) -> None:
    """Make the inputs of these names in the working folder."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "run_scripts"))
    if not names or any(name.startswith("-") for name in names):
        sys.exit(__doc__)
    for name in names:
        path = Path(name)
        if name.endswith("/"):
            traces(path)
        elif path.suffix == ".pickle":
            snapshot(path)
        elif path.name == "pairs.csv":
            pairs(path)
        elif path.name == "config.json":
            config(path)
        elif path.suffix == ".csv":
            steps(path)
        else:
            path.write_text(written_out(name), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

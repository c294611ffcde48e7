"""Payloads of report pages for tests: any number of stages, rows, ranks; names that attack."""

from __future__ import annotations

from typing import Any

import numpy as np

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=document.title='owned'>",
    "javascript:document.title='owned'",
    "<!--<script>",
    "]]>&amp;\"'`${document.title='owned'}\\",
    "\u202egnp.exe \u05e9\u05dc\u05d5\u05dd \u0627\u0644\u0633\u0644\u0627\u0645",
    "null \x00 bell \x07 escape \x1b[31m",
    "half \ud800 a pair \udc00",
    "lines \u2028 apart \u2029",
    "long " + "x" * 10_000,
    "__proto__",
    "constructor",
)

US = 1_000_000
FORWARD = ("norm", "qkv", "attention", "projection", "feed-forward in", "feed-forward out")
PARTS = ("compute", "wire", "waiting", "idle")
HELD = (("parameters", 6e9, 0), ("gradients", 1.2e10, 0), ("activations", 9e9, 3e10))
PHASES = ["none", "forward", "backward", "weight", "recompute", "optimizer"]
KINDS = ["kernel", "copy", "collective", "send", "recv", "host", "host wait"]
COLUMNS = (
    "begin",
    "duration",
    "wait",
    "name",
    "kind",
    "phase",
    "layer",
    "micro_batch",
    "bytes",
    "communicator",
)


def one_f_one_b(stages: int, stage: int, batches: int) -> list[tuple[str, int]]:
    """Order of the passes of a stage: (forward or backward, micro-batch)."""
    warm = min(stages - stage - 1, batches)
    order = [("forward", i) for i in range(warm)]
    for i in range(batches - warm):
        order += [("forward", warm + i), ("backward", i)]
    return order + [("backward", i) for i in range(batches - warm, batches)]


def pipeline(
    stages: int = 4,
    batches: int = 8,
    layers: int = 3,
    *,
    ranks: int = 40,
    names: tuple[str, ...] = (),
    seed: int = 0,
) -> dict[str, Any]:
    """Payload of a step with 1F1B; `names` stand in for all names: of kernels, ranks, links."""
    random = np.random.default_rng(seed)
    called = lambda i, name: names[i % len(names)] if names else name  # noqa: E731
    texts = [called(i, name) for i, name in enumerate([*FORWARD, "gradient", "adam", "all-reduce"])]
    texts += [called(9, "send"), called(10, "receive")]
    begins: dict[tuple[str, int, int], int] = {}
    lanes: list[list[list[tuple[int, ...]]]] = [[[], []] for _ in range(stages)]
    clock = [10 * US] * stages
    left = [one_f_one_b(stages, stage, batches) for stage in range(stages)]
    while any(left):
        for stage in range(stages):
            if not left[stage]:
                continue
            way, batch = left[stage][0]
            source = stage - 1 if way == "forward" else stage + 1
            if 0 <= source < stages and (way, source, batch) not in begins:
                continue
            left[stage].pop(0)
            ready = begins.get((way, source, batch), 0)
            compute, wires = lanes[stage]
            if ready > clock[stage]:
                took = ready + 5 * US - clock[stage]
                wires.append(
                    (clock[stage], took, took - 5 * US, 10, 4, 1, -1, batch, 1 << 24, stage)
                )
            now = max(clock[stage], ready + 5 * US)
            phase = 1 if way == "forward" else 2
            for layer in range(layers):
                for n in range(len(FORWARD)):
                    took = int(random.integers(20, 90) * US * phase)
                    name = n if phase == 1 else 6
                    row = (now, took, 0, name, 0, phase, stage * layers + layer, batch, -1, -1)
                    compute.append(row)
                    now += took + 2_000
            begins[way, stage, batch] = now
            clock[stage] = now
    whole = max(clock) + 900 * US
    rows: list[tuple[int, ...]] = []
    groups = []
    for stage, (compute, wires) in enumerate(lanes):
        compute.append((max(clock) + 400 * US, 500 * US, 0, 7, 0, 5, -1, -1, -1, -1))
        end = clock[stage]
        wires.append(
            (end, max(clock) - end + 300 * US, max(clock) - end, 8, 2, 5, -1, -1, 1 << 28, 0)
        )
        streams = []
        for name, lane in (("compute", compute), ("communication", wires)):
            streams.append({"name": name, "first": len(rows), "count": len(lane)})
            rows += lane
        title, subtitle = called(stage, f"stage {stage}"), f"rank {stage}, one of {stages}"
        groups.append(
            {
                "title": title,
                "subtitle": subtitle,
                "rank": stage,
                "stage": stage,
                "streams": streams,
            }
        )
    table = np.array(rows, dtype=np.int64).T
    kinds = {"kind": np.uint8, "phase": np.uint8, "layer": np.int16}
    columns = {key: table[i].astype(kinds.get(key, np.int64)) for i, key in enumerate(COLUMNS)}
    last = groups[-1]["streams"][0]
    on_path = np.arange(last["first"], last["first"] + last["count"])
    begin = columns["begin"][on_path]
    shares = random.dirichlet((8, 2, 1, 0.5))
    return {
        "title": called(0, "A pipeline"),
        "subtitle": called(1, f"1 step on {ranks} GPUs"),
        "headline": {
            "step": f"{whole / 1e9:.3f} ms",
            "error": "± 8.1 %",
            "facts": [
                ["Throughput", called(2, "77,908 tokens/s")],
                ["Memory", called(3, "fits: 64.0 GiB ± 2.1 of 79.0 GiB")],
                ["GPUs", str(ranks)],
            ],
        },
        "whole_ps": int(whole),
        "parts": {
            "names": [called(i, name) for i, name in enumerate(PARTS)],
            "kinds": list(PARTS),
            "rows": [
                {"name": called(i, name), "gpus": ranks, "ps": (whole * shares).tolist()}
                for i, name in enumerate(["mean", *(f"stage {s}" for s in range(stages))])
            ],
        },
        "path": {
            "by_kind": [[called(4, "kernels"), int(whole * 0.9), len(on_path)]],
            "by_rank": [[called(5, "rank 3"), int(whole), len(on_path)]],
            "names": texts,
            "kinds": ["kernels"],
            "pieces": {
                "begin": begin,
                "end": begin + columns["duration"][on_path],
                "rank": np.full(len(on_path), stages - 1, np.int32),
                "kind": np.zeros(len(on_path), np.uint8),
                "name": columns["name"][on_path].astype(np.int32),
                "row": on_path.astype(np.int32),
            },
            "cut": "",
        },
        "timeline": {
            "names": texts,
            "phases": PHASES,
            "kinds": KINDS,
            "groups": groups,
            "communicators": [called(i, f"tp {i}") for i in range(stages)],
            "rows": columns,
            "cut": called(6, "One rank of each stage is shown."),
        },
        "tables": [
            ranks_table(ranks, names, random),
            {
                "id": "path_by_name",
                "title": called(7, "Critical path by name"),
                "note": called(8, "The lines add up to the step."),
                "columns": [
                    {"key": "name", "title": called(9, "Name"), "type": "text", "help": ""},
                    {"key": "total", "title": "Time", "type": "time", "help": ""},
                    {"key": "share", "title": "Share", "type": "percent", "help": ""},
                ],
                "data": {
                    "name": texts,
                    "total": np.arange(1, len(texts) + 1) * 10**9,
                    "share": np.linspace(0.01, 0.2, len(texts)),
                },
            },
        ],
        "memory": {
            "capacity": 80 << 30,
            "note": called(2, "Of the memory model."),
            "groups": [
                {
                    "title": called(stage, f"stage {stage}"),
                    "times": np.linspace(0, whole, 60).astype(np.int64),
                    "parts": [
                        {
                            "name": called(i, name),
                            "bytes": (size + swing * random.random(60)).astype(np.int64),
                        }
                        for i, (name, size, swing) in enumerate(HELD)
                    ],
                }
                for stage in range(stages)
            ],
        },
        "links": {
            "names": [called(i, f"node0.gpu{i}->node0.nvswitch") for i in range(12)],
            "levels": ["NVLink"] * 12,
            "counts": np.full(12, 64),
            "capacity": np.full(12, 3.7e11),
            "busy": random.random(12),
            "utilisation": (random.random(1200) ** 3).astype(np.float32),
            "bins": 100,
            "note": called(3, "Links that are used alike are one line."),
        },
        "sensitivities": {
            "note": called(4, "The rest moves the step by less than 0.1 %."),
            "rows": [
                {"name": called(0, "speed of matrix products"), "key": "kernels.speed",
                 "now": "989 TFLOP/s",
                 "elasticity": -0.61, "minus10": 0.067, "plus10": -0.056, "double": -0.33},
                {"name": called(1, "bandwidth of NICs"), "now": "50 GB/s",
                 "elasticity": -0.18, "minus10": 0.02, "plus10": -0.0164, "double": -0.09},
                {"name": called(2, "latency of launches"), "now": "8 µs", "elasticity": 0.04,
                 "minus10": -0.004, "plus10": 0.004, "double": 0.05},
            ],
        },
        "statements": [
            {"title": "Assumptions", "items": [called(i, f"assumption {i}") for i in range(12)]},
            {"title": "Memory", "items": [called(5, "It fits."), "  part    GiB", "  total  64.0"]},
        ],
        "experiment": "\n".join(names) or '[model]\nname = "llama3-8b"\n',
        "compare": None,
        "why": {},
    }  # fmt: skip


def ranks_table(ranks: int, names: tuple[str, ...], random: np.random.Generator) -> dict[str, Any]:
    """Table of so many ranks, each of which took another time."""
    texts = [f"{i} {names[i % len(names)]}" if names else f"rank {i}" for i in range(ranks)]
    return {
        "id": "ranks",
        "title": "Ranks",
        "note": "",
        "columns": [
            {"key": "ranks", "title": "Ranks", "type": "text", "help": "ranks with the same times"},
            {"key": "count", "title": "Count", "type": "number", "help": ""},
            {"key": "compute", "title": "Compute", "type": "time", "help": ""},
            {"key": "memory", "title": "Memory", "type": "bytes", "help": ""},
            {"key": "busy", "title": "Busy", "type": "percent", "help": ""},
            {"key": "rate", "title": "Rate", "type": "rate", "help": ""},
        ],
        "data": {
            "ranks": texts,
            "count": np.arange(ranks),
            "compute": random.permutation(ranks) * 10**9 + 5 * 10**11,
            "memory": random.integers(1 << 33, 1 << 36, ranks),
            "busy": np.where(np.arange(ranks) % 7 == 3, np.nan, random.random(ranks)),
            "rate": random.random(ranks) * 4e11,
        },
    }


def comparison(names: tuple[str, ...] = ()) -> dict[str, Any]:
    """Payload of two runs."""
    called = lambda i, name: names[i % len(names)] if names else name  # noqa: E731
    rows = [
        [called(0, "kernels"), 800 * 10**9, 700 * 10**9, -100 * 10**9],
        [called(1, "communications"), 41 * 10**9, 61 * 10**9, 20 * 10**9],
        [called(2, "launches"), 10**6, 10**6, 0],
    ]
    return {
        "title": called(3, "Two runs"),
        "subtitle": called(4, "a.h5 and b.h5"),
        "headline": None,
        "whole_ps": 841 * 10**9,
        "compare": {
            "a": called(5, "a.h5"), "b": called(6, "b.h5"),
            "a_ps": 841 * 10**9, "b_ps": 761 * 10**9, "a_error": "± 8.1 %", "b_error": "± 8.0 %",
            "verdict": called(2, "B is 80.000 ms shorter, −9.51 %; the error bars overlap."),
            "lists": [{"title": called(7, "Critical path by kind"), "rows": rows}],
            "keys": [[called(8, "plan.tp"), called(9, "8"), called(10, "4")]],
        },
        "statements": [],
        "experiment": "",
        "why": {},
    }  # fmt: skip

"""Files of nccl-tests' option ``-J`` (JSON), to runs (`run.Run`)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from mpisim.base.errors import InputError

from .nccl_tests import PROGRAM, version_text
from .run import Rank, Row, Run, settings_of

__all__ = ["is_json", "read_json"]

WORDS = re.compile(r"NCCL_[A-Z0-9_]+=")


def is_json(text: str) -> bool:
    """Whether a text starts as a JSON object does."""
    return text.lstrip().startswith("{")


def read_json(text: str, file: str) -> list[Run]:
    """Read a file of nccl-tests' option ``-J``; several may stand one after the other.

    Parameters
    ----------
    text : str
    file : str
        Its path.

    Raises
    ------
    InputError
        If it is not JSON, or not what nccl-tests writes.
    """
    decoder = json.JSONDecoder()
    runs: list[Run] = []
    at = 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        line = text.count("\n", 0, at) + 1
        try:
            contents, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{file}, line {line}: not valid JSON: {error}") from error
        try:
            runs.append(_run(contents, file, line))
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            why = f"no {error} where it should be" if isinstance(error, KeyError) else str(error)
            raise InputError(
                f"{file}, line {line}: not a JSON file of nccl-tests (option -J): {why}"
            ) from error
    return runs


def _run(contents: Mapping[str, Any], file: str, line: int) -> Run:
    config, results = contents["config"], contents["results"]
    programs = PROGRAM.findall(" ".join(map(str, contents.get("args", [])[:1])))
    variables = [
        tuple(each.split("=", 1)) for each in contents.get("env", []) if WORDS.match(str(each))
    ]
    ranks = tuple(
        Rank(
            number=int(each["rank"]),
            group=int(each["group"]),
            host=str(each["hostname"]),
            device=f"{each['device']} [{each['device_hex']}]",
            gpu=str(each["device_info"] or ""),
        )
        for each in config["devices"]
    )
    found = [_row(each, line, i) for i, each in enumerate(results, 1)]
    return Run(
        file=file,
        line=line,
        program=programs[0] if programs else "",
        ranks=ranks,
        devices=_devices(config, ranks),
        version=version_text(int(contents["nccl_version"])),
        settings=settings_of((name, value) for name, value in variables),
        aggregated=int(config.get("aggregated_iterations", 1)),
        rows=tuple(each for each in found if each is not None),
        cut=found.count(None),
    )


def _devices(config: Mapping[str, Any], ranks: tuple[Rank, ...]) -> int:
    """Return the GPUs of the group of rank 0.

    The file lists the first device of every process; each has as many as threads times GPUs.
    """
    first = min(ranks, key=lambda each: each.number)
    processes = sum(each.group == first.group for each in ranks)
    return processes * int(config["nthreads"]) * int(config["ngpus"])


def _row(entry: Mapping[str, Any], line: int, number: int) -> Row | None:
    """Return a row, or None where it has no time out of place."""
    times = entry["out_of_place"]
    if times is None:
        return None
    if "time" not in times:
        raise ValueError(
            "its times are of the CPU (option -C); times of the communications are needed"
        )
    seconds = float(times["time"]) * 1e-6
    if not 0 <= seconds < math.inf or int(entry["size"]) < 0:
        raise ValueError(f"row {number} has {entry['size']} bytes in {times['time']} us")
    return Row(
        line=line + number,
        size=int(entry["size"]),
        count=int(entry["count"]),
        kind=str(entry["type"]),
        reduction=str(entry["redop"]),
        root=int(entry["root"]),
        seconds=seconds,
        bandwidth=float(times["alg_bw"]) * 1e9,
        bus=float(times["bus_bw"]) * 1e9,
        wrong=float(times.get("nwrong") or 0),
    )

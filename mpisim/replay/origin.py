"""What a replay was made of ↔ text: its files and changes, so that it can be made again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from ..base.errors import InputError
from ..base.frozen import frozen
from .what_if import WhatIf

__all__ = ["Pricing", "ReplayOrigin", "is_origin", "read_origin"]

Origin = TypeVar("Origin")


@frozen
class Pricing:
    """Names of what a job is priced again by.

    Attributes
    ----------
    price : {"changed", "all"}
        Whether recorded times are scaled, or models alone count.
    gpu, cluster, recorded_gpu : str or None
    measured : str or None
        A table of the user's times; absolute in texts.
    """

    price: str
    gpu: str | None = None
    cluster: str | None = None
    recorded_gpu: str | None = None
    measured: str | None = None


@frozen
class ReplayOrigin:
    """Files and changes of a replay.

    Attributes
    ----------
    paths : tuple of str
        Trace files or folders of them; absolute in texts.
    allow_missing : bool
        Whether ranks of the job may be missing.
    what : WhatIf
        Changes to its times.
    pricing : Pricing or None
        What it is priced again by.
    """

    paths: tuple[str, ...]
    allow_missing: bool
    what: WhatIf
    pricing: Pricing | None = None

    @classmethod
    def of(
        cls,
        paths: Iterable[Path | str],
        allow_missing: bool,
        what: WhatIf,
        pricing: Pricing | None = None,
    ) -> ReplayOrigin:
        """Paths, as they were given → origin with absolute ones.

        Parameters
        ----------
        paths : iterable of paths
        allow_missing : bool
        what : WhatIf
        pricing : Pricing, optional
        """
        if pricing is not None:
            files = {
                name: os.path.abspath(value)
                for name in ("measured", "gpu", "cluster")
                if (value := getattr(pricing, name)) is not None and _is_file(name, value)
            }
            pricing = replace(pricing, **files)
        return cls(tuple(os.path.abspath(path) for path in paths), allow_missing, what, pricing)

    @property
    def text(self) -> str:
        """As JSON, for `read`."""
        return json.dumps({"replay": asdict(self)})

    @classmethod
    def is_text(cls, text: str) -> bool:
        """Whether a text is that of a replay."""
        return is_origin(text, "replay")

    @classmethod
    def read(cls, text: str, source: str) -> ReplayOrigin:
        """Text → origin; see `read_origin`."""
        return read_origin(text, "replay", source, cls._of_table)

    @classmethod
    def _of_table(cls, found: dict[str, Any]) -> ReplayOrigin:
        what, priced = found["what"], found.get("pricing")
        return cls(
            tuple(map(str, found["paths"])),
            bool(found["allow_missing"]),
            WhatIf(
                **{
                    **what,
                    "kernels": tuple((str(name), float(f)) for name, f in what["kernels"]),
                    # JSON has texts for keys.
                    "delay": {int(rank): float(s) for rank, s in what["delay"].items()},
                    "cap_rank_gap": {
                        int(rank): float(s) for rank, s in what["cap_rank_gap"].items()
                    },
                }
            ),
            None if priced is None else Pricing(**priced),
        )


def is_origin(text: str, kind: str) -> bool:
    """Text kept in a results file → whether it is an origin of a kind: a table of that name."""
    try:
        return kind in json.loads(text)
    except (TypeError, ValueError):
        return False


def read_origin(
    text: str, kind: str, source: str, make: Callable[[dict[str, Any]], Origin]
) -> Origin:
    """Text kept in a results file → origin.

    Parameters
    ----------
    text : str
    kind : str
        See `is_origin`.
    source : str
        The file that holds it, for messages.
    make : callable
        From the table of that name.

    Raises
    ------
    InputError
        If it is no such text.
    """
    try:
        return make(json.loads(text)[kind])
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{source}: the {kind} job kept in it is damaged: {error}") from error


def _is_file(name: str, value: str) -> bool:
    """Whether an option names a file: a table always, hardware where it is no preset."""
    return name == "measured" or value.endswith(".toml")

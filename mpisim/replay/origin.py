"""What a replay was made of ↔ text: its files and changes, so that it can be made again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from ..base.errors import InputError
from ..base.frozen import frozen
from .what_if import WhatIf

__all__ = ["ReplayOrigin"]


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
    """

    paths: tuple[str, ...]
    allow_missing: bool
    what: WhatIf

    @classmethod
    def of(cls, paths: Iterable[Path | str], allow_missing: bool, what: WhatIf) -> ReplayOrigin:
        """Paths, as they were given → origin with absolute ones.

        Parameters
        ----------
        paths : iterable of paths
        allow_missing : bool
        what : WhatIf
        """
        return cls(tuple(os.path.abspath(path) for path in paths), allow_missing, what)

    @property
    def text(self) -> str:
        """As JSON, for `read`."""
        return json.dumps({"replay": asdict(self)})

    @classmethod
    def is_text(cls, text: str) -> bool:
        """Whether a text is that of a replay."""
        try:
            return "replay" in json.loads(text)
        except (TypeError, ValueError):
            return False

    @classmethod
    def read(cls, text: str, source: str) -> ReplayOrigin:
        """Text → origin.

        Parameters
        ----------
        text : str
        source : str
            The file that holds it, for messages.

        Raises
        ------
        InputError
            If it is no such text.
        """
        try:
            found = json.loads(text)["replay"]
            what = found["what"]
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
            )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise InputError(f"{source}: the replay kept in it is damaged: {error}") from error

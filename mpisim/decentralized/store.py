"""Files of decentralized training: what the report says, and when every iteration ended.

title, experiment, numbers   texts; numbers is the JSON of `mpisim.decentralized.text.as_json`
draw0/, …                    factors; of baseline/ and protocol/ entered and ended (ps), by worker;
                             -1: a skipped iteration
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..base.hdf5 import create_file, open_file, reading_kept
from ..base.hdf5_data import read_json_text, write_column, write_json_text, write_texts
from .comparison import Comparison
from .text import as_json

__all__ = ["FORMAT", "read_comparison", "write_comparison"]

FORMAT, VERSION = "mpisim-decentralized", 1


def write_comparison(path: str | Path, found: Comparison, *, overwrite: bool = False) -> None:
    """Write a comparison; the file appears whole or not at all. Local.

    Parameters
    ----------
    path : str or Path
    found : Comparison
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    with create_file(path, FORMAT, VERSION, overwrite=overwrite) as file:
        write_texts(file, "title", [found.experiment.title])
        write_texts(file, "experiment", [found.text])
        write_json_text(file, "numbers", as_json(found))
        for number, draw in enumerate(found.draws):
            group = file.create_group(f"draw{number}")
            write_column(group, "factors", np.array(draw.factors), "1")
            for name, outcome in (("baseline", draw.baseline), ("protocol", draw.protocol)):
                part = group.create_group(name)
                write_column(part, "entered", outcome.entered, "ps")
                write_column(part, "ended", outcome.ended, "ps")


def read_comparison(path: str | Path) -> dict[str, Any]:
    """File of a comparison → figures of `as_json`. Local.

    Raises
    ------
    InputError
        If it is no whole file of this format.
    """
    with open_file(path, FORMAT, VERSION) as file, reading_kept("comparison"):
        return dict(read_json_text(file, "numbers"))

"""Result files of jobs (HDF5): the figures of the report, and every run.

title, experiment, numbers   texts; numbers is the JSON of `mpisim.job.text.as_json`
runs/                        a column a part of the time (s), and one a count
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..base.hdf5 import create_file, open_file, reading_kept
from ..base.hdf5_data import read_json_text, read_texts, write_column, write_json_text, write_texts
from .monte_carlo import COUNTS, PARTS
from .outcome import JobOutcome
from .text import JobReport, as_json

__all__ = ["FORMAT", "read_job", "write_job"]

FORMAT, VERSION = "mpisim-job", 2


def write_job(
    path: str | Path, outcome: JobOutcome, title: str, text: str = "", *, overwrite: bool = False
) -> None:
    """Write a job; the file appears whole or not at all. Local.

    Parameters
    ----------
    path : str or Path
    outcome : JobOutcome
    title : str
        Of the experiment.
    text : str
        The experiment, to be kept.
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    with create_file(path, FORMAT, VERSION, overwrite=overwrite) as file:
        write_texts(file, "title", [title])
        write_texts(file, "experiment", [text])
        write_json_text(file, "numbers", as_json(outcome))
        group = file.create_group("runs")
        for number, name in enumerate(PARTS):
            column = np.ascontiguousarray(outcome.runs.parts[0][:, number])
            write_column(group, name.replace(" ", "_"), column, "s")
        for number, name in enumerate(COUNTS):
            column = np.ascontiguousarray(outcome.runs.counts[0][:, number])
            write_column(group, name.replace(" ", "_"), column)


def read_job(path: str | Path) -> JobReport:
    """File of a job → its title and numbers. Local.

    Raises
    ------
    InputError
        If it is no whole file of this format.
    """
    with open_file(path, FORMAT, VERSION) as file, reading_kept("job"):
        return JobReport(read_texts(file, "title", 1)[0], dict(read_json_text(file, "numbers")))

"""Constants fitted to steps as a TOML file with what each rests on."""

from __future__ import annotations

from ...base.quantity import Quantity
from ...base.toml import toml_key, toml_value
from ...prediction.step_constants import MULTIPLIERS, OVERHEAD, StepConstants

__all__ = ["written"]

HEAD = """\
# Constants fitted to measured training steps, written by: mpisim calibrate e2e
# Multipliers of times (overhead: a time); error: one standard deviation, relative. Constants that
# few families of steps speak for stay near 1. An experiment takes the file by [calibration] file.
"""


def written(constants: StepConstants) -> str:
    """Return the text of a file that `StepConstants.read` reads."""
    parts = [HEAD]
    if constants.model_error is not None:
        for name, table in vars(constants.model_error).items():
            lines = [_line(sort, number) for sort, number in table.items()]
            parts.append(f"[model_error.{name}]\n" + "".join(lines))
    for kind in (*MULTIPLIERS, OVERHEAD):
        table = getattr(constants, kind)
        if table:
            lines = [_line(key, table[key]) for key in sorted(table)]
            parts.append(f"[{kind}]\n" + "".join(lines))
    return "\n".join(parts)


def _line(key: str, number: Quantity) -> str:
    return f"{toml_key(key)} = {toml_value(vars(number))}\n"

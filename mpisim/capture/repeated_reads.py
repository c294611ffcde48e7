"""A line that reads a truth value again and again → whether the loop around it is to end.

A value that is not known is taken to be true. ``while alive.any()`` would never end: so a line that
has asked some times in a row, without a backward pass between, gets "false" once. A ``for`` loop
ends by itself: of a generation of tokens that would stop when all sequences have ended, all tokens
are generated.
"""

from __future__ import annotations

import dis
import sys
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

__all__ = ["RepeatedReads", "in_for_loop"]

_STEPPING = (str(Path(__file__).parent), "/torch/_", "/torch/utils/", "/torch/distributed/tensor")
"""Parts of paths of files that pass on what a line asks for."""

MAX_TRUE_BY_LINE = 4
"""Times in a row that one line of a loop that asks for a value is answered "true"."""

MAX_TRUE_BY_CALL = 1000
"""Times in a row that a line is, in calls that are another one each: of a loop around them.

So is a line of a ``for`` loop, which may go over something without an end.
"""


class RepeatedReads:
    """How often in a row one line of the script has read a truth value that is not known."""

    def __init__(self) -> None:
        self._last: Any = None
        self._alike = self._in_a_row = 0

    def interrupt(self) -> None:
        """Note that lines that ask from now on begin anew, as after a backward pass."""
        self._last = None

    def once_more(self) -> bool:
        """Note that a line asks → whether the loop around it is to end."""
        frame: Any = sys._getframe(1)
        while frame is not None and any(part in frame.f_code.co_filename for part in _STEPPING):
            frame = frame.f_back
        if frame is None:
            return False
        line = (frame.f_code, frame.f_lineno)
        again = line == self._last
        # Only debuggers look at the mark. By its address one call cannot be told from the next.
        same, frame.f_trace_lines = not frame.f_trace_lines, False
        same = same and not in_for_loop(frame.f_code, frame.f_lasti)
        self._alike = self._alike + 1 if again and same else 1
        self._in_a_row = self._in_a_row + 1 if again else 1
        self._last = line
        if self._in_a_row > MAX_TRUE_BY_CALL:
            self._in_a_row = 0
            return True
        return self._alike > MAX_TRUE_BY_LINE


def in_for_loop(code: CodeType, offset: int) -> bool:
    """Instruction of a function → whether the innermost loop around it is a ``for`` loop.

    Parameters
    ----------
    code : code
    offset : int
        In bytes, as ``frame.f_lasti`` has it.
    """
    around = [each for each in _loops(code) if each[0] <= offset <= each[1]]
    return bool(around) and min(around, key=lambda each: each[1] - each[0])[2]


@lru_cache(maxsize=1024)
def _loops(code: CodeType) -> list[tuple[int, int, bool]]:
    """Return where the loops of a function begin and end, and whether they are ``for`` loops.

    A loop ends with a jump to its beginning, and a ``for`` loop begins by asking its iterator.
    """
    instructions = list(dis.get_instructions(code))
    names = {each.offset: each.opname for each in instructions}
    return [
        (each.argval, each.offset, names.get(each.argval) == "FOR_ITER")
        for each in instructions
        if "JUMP_BACKWARD" in each.opname
    ]

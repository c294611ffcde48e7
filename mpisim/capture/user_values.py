"""Values that no captured tensor has: a script's question → what is taken for the answer.

A script may ask a tensor for its values (``if loss < best``). A capture has none: it takes what is
likely, or what the user gives for the line that asks, and lists each answer by its line.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from ..base.errors import InputError
from .repeated_reads import RepeatedReads

__all__ = ["UserValues"]

_OWN = (str(Path(__file__).parent), "/torch/", "<frozen", "<string>")
"""Parts of paths of files that are not the user's."""

_NEAR = 2
"""Lines behind a read in which an error is taken to come from it: ``if`` and ``raise``."""


class UserValues:
    """Answers to a script's questions for values, by the line that asks.

    Parameters
    ----------
    given : dict of str to float
        Place in the user's code (``train.py:42``) → what is read there.

    Attributes
    ----------
    used : set of str
        Places of `given` that were asked for.
    taken : Counter of str
        Sentences: place, question and answer, and how often each was given.
    last : tuple of (str, int, str)
        Of the last value that was not known: file and line that asked, and what was taken.
    own : list of str
        Parts of paths of files that are not the user's.
    """

    def __init__(self, given: dict[str, float]) -> None:
        self.given = given
        self.used: set[str] = set()
        self.taken: Counter[str] = Counter()
        self.last = "", 0, ""
        self.own = list(_OWN)
        self._repeated = RepeatedReads()

    def loop_ends(self) -> None:
        """Note a backward pass: a loop over batches ends with its step, so lines may ask again."""
        self._repeated.interrupt()

    def unknown(self, what: str, likely: Any) -> Any:
        """Return what is taken for a value that no tensor has, and list it.

        Parameters
        ----------
        what : str
            For people.
        likely : bool, int or float
            Taken unless the user gives another for the place that asks.
        """
        where = self._given_place() or self.user_line()
        value = likely
        if where in self.given:
            self.used.add(where)
            value = type(likely)(self.given[where])
        elif likely is True and self._repeated.once_more():
            value = False  # of a loop that ends when something is no longer true
        self.taken[f"{where}: {what} taken as {value}"] += 1
        file, line = self._innermost()
        self.last = file, line, f"{what} taken as {value}"
        return value

    def asked(self) -> bool:
        """Return whether the user has given a value for the line that is being executed."""
        return self._given_place() is not None

    def needed(self, what: str, unit: str) -> int:
        """Return a number that only the user can give.

        Parameters
        ----------
        what : str
            For people.
        unit : str
            What the number counts.

        Raises
        ------
        InputError
            If it is not given.
        """
        if self._given_place() is None:
            where, inside = self.user_line(), self._innermost_line()
            library = f", of {where}" if inside != where else ""
            raise InputError(
                f"{where}: {what} depends on values, which a capture does not have; give it: "
                f"--value {inside}={unit}{library}"
            )
        return int(self.unknown(what, 1))

    def evenly(self, what: str, taken: str = "") -> None:
        """List that something that depends on values is taken to be spread evenly.

        Parameters
        ----------
        what, taken : str
            For people: what it is, and the numbers that an even spread gives.
        """
        if taken:
            self.taken[f"{self.user_line()}: {what}, of an even spread, taken as {taken}"] += 1
        else:
            self.taken[f"{self.user_line()}: {what} taken as equally many"] += 1

    def user_line(self) -> str:
        """Return file and line of the user's code that is being executed."""
        frame: Any = sys._getframe(1)
        outer = "the script"
        while frame is not None:
            file = frame.f_code.co_filename
            if not any(part in file for part in self.own):
                if "site-packages" not in file and "/lib/python" not in file:
                    return f"{Path(file).name}:{frame.f_lineno}"
                outer = f"{Path(file).name}:{frame.f_lineno}"
            frame = frame.f_back
        return outer

    def _innermost(self) -> tuple[str, int]:
        """Return file and line of what asks: the user's code, or a library that it has called."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if not any(part in file for part in self.own):
                return file, frame.f_lineno
            frame = frame.f_back
        return "", 0

    def _innermost_line(self) -> str:
        """Return file and line of what asks, as `--value` names them."""
        file, line = self._innermost()
        return f"{Path(file).name}:{line}" if file else "the script"

    def behind(self, error: BaseException) -> str:
        """Error of the script → the value taken a few lines before it, and how to give another.

        Parameters
        ----------
        error : BaseException

        Returns
        -------
        str
            Empty if none was.
        """
        file, line, what = self.last
        frames = traceback.extract_tb(error.__traceback__)
        raised = [each.lineno or 0 for each in frames if each.filename == file]
        if not any(line <= each <= line + _NEAR for each in raised):
            return ""
        place = f"{Path(file).name}:{line}"
        return f"; at {place} {what}, and --value {place}=X gives another"

    def _given_place(self) -> str | None:
        """Return the line that asks, of the user's code or a library's, if a value is given."""
        if not self.given:
            return None
        places = (self._innermost_line(), self.user_line())
        return next((each for each in places if each in self.given), None)

"""Where steps of training begin and end, and which of them warm up: events → numbers of items.

A step ends where the script's first optimizer has made one, or the last of several that follow each
other before the next forward pass. The first step warms up. So do

- one in which another optimizer makes its first step, and with it its states;
- those on a stream aside, as PyTorch's documentation has them before a graph of CUDA is made
  ("Whole-network capture", docs/source/notes/cuda.rst of github:pytorch/pytorch), and all before
  a graph is made: what the job runs from there on is the graph.
"""

from __future__ import annotations

import weakref

__all__ = ["Ended", "Steps"]

MOST_WARM_UPS = 2
"""Steps that may warm up because another optimizer makes its first step in them, and times that
steps may be counted anew because a graph is made."""

MOST_ASIDE = 11
"""Steps on a stream aside that may warm up: as many as PyTorch's notes on CUDA ask for with
``DistributedDataParallel``. More are a script's that trains on such a stream."""


class Ended(BaseException):
    """All steps are recorded: the rest of the script is not run.

    No `Exception`, so that a script's own handlers let it pass.
    """


class Steps:
    """Ends of steps, in numbers of recorded items.

    Parameters
    ----------
    wanted : int
        Steps to be recorded after those that warm up.

    Attributes
    ----------
    ends : list of int
        Items before the end of each step so far, those before a graph was made left out.
    passed_over : int
        Steps that come before the recorded ones, at least.
    """

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.ends: list[int] = []
        self.passed_over = 1
        self._stepper: weakref.ref[object] | None = None
        self._stepped: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._last: list[tuple[str, int]] = []
        self._end: int | None = None
        self._aside = False
        self._since = 0
        self._begin = self._warmed = self._went_aside = self._renewed = 0

    def stepped(self, optimizer: object, at: int, *, aside: bool = False) -> None:
        """Note that an optimizer has made a step, or one of several in a step of training.

        Parameters
        ----------
        optimizer : object
            The first that ends one tells the steps.
        at : int
            Items so far.
        aside : bool
            On another stream than the default one.
        """
        if self._since and (self._stepper is None or self._stepper() is None):
            self._stepper = weakref.ref(optimizer)
        first = self._stepper is not None and optimizer is self._stepper() and self._since
        if first or self._end is not None:  # others may follow it, before the next forward pass
            self._end, self._aside = at, aside
        new = optimizer not in self._stepped
        number = self._stepped.setdefault(optimizer, len(self._last))
        self._last[number : number + 1] = [(type(optimizer).__name__, at)]
        if new and len(self.ends) == 1 and self._warmed < MOST_WARM_UPS:
            self._begin = self.ends.pop()  # it makes its states: this step warms up, too
            self._warmed += 1

    def backward_begins(self) -> None:
        """Note that a backward pass begins."""
        self._since += 1

    def begins(self) -> None:
        """Note a forward pass: the step before ended where its optimizer did, for the last time.

        All ranks of a pipeline end steps there, whatever they receive before their forward passes.

        Raises
        ------
        Ended
            If it was the last that is wanted.
        """
        if self._end is None:
            return
        self.ends.append(self._end)
        self._end, self._since = None, 0
        if self._aside and self._went_aside < MOST_ASIDE:
            self._went_aside += 1
        elif len(self.ends) >= self.wanted + self.passed_over:
            raise Ended

    def graph_made(self, at: int) -> None:
        """Note that a graph was made, of so many items so far: what came before it warmed up."""
        if not self.ends and self._end is None:
            return
        if self._renewed < MOST_WARM_UPS:
            self._renewed += 1
            self.ends, self._end, self._since = [], None, 0
            self._begin = at

    def bounds(self) -> tuple[list[int], bool]:
        """Return where the recorded steps begin and end, and whether a step before warmed up.

        The last that are wanted, or the only one there is.
        """
        if len(self.ends) == 1:
            return [self._begin, *self.ends], False
        return self.ends[-self.wanted - 1 :], True

    def idle(self) -> list[str]:
        """Return the classes of optimizers that have made steps, but none in the recorded ones."""
        begin = self.bounds()[0][0]
        return sorted({name for name, at in self._last if at <= begin})

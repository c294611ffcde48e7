"""Where steps of training begin and end, and which of them warm up: events → numbers of items.

A step ends where the script's first optimizer has made one, or the last of several that follow each
other before the next forward pass. The first step warms up. So do

- one in which another optimizer makes its first step, and with it its states;
- those on a side stream, as PyTorch's documentation has them before a CUDA graph is captured
  ("Whole-network capture", docs/source/notes/cuda.rst of github:pytorch/pytorch), and all before
  a graph is captured: what the job runs from there on are replays of the graph.
"""

from __future__ import annotations

import weakref

__all__ = ["Ended", "Steps"]

MOST_OPTIMIZER_WARM_UPS = 2
"""Steps that may warm up because another optimizer makes its first step in them: those of a script
with an optimizer for each of three parts, as a GAN with an encoder. More are new optimizers."""

MOST_CAPTURED_GRAPHS = 2
"""CUDA graphs after whose capture the count of steps may start again: one of the training step, and
one of the evaluation or of another batch shape. A script with more captures graphs as it trains."""

MOST_SIDE_STREAM_STEPS = 11
"""Steps on a side stream that may warm up: as many as PyTorch's notes on CUDA ask for with
``DistributedDataParallel``. More are a script's that trains on such a stream."""


class Ended(BaseException):
    """Raised when all steps are recorded, so that the rest of the script is not run.

    No `Exception`, so that a script's own handlers let it pass.
    """


class Steps:
    """Ends of steps, in numbers of recorded items.

    Parameters
    ----------
    wanted : int
        Steps to be recorded after the warm-up steps.
    warm_up : int, optional
        Warm-up steps, at least. By default 1, or none before one step that a script makes alone.

    Attributes
    ----------
    ends : list of int
        Items before the end of each step so far, those before a graph was captured left out.
    """

    def __init__(self, wanted: int, warm_up: int | None = None) -> None:
        self.ends: list[int] = []
        self._wanted, self._warm_up = wanted, warm_up or 1
        self._asked = wanted, warm_up
        self._stepper: weakref.ref[object] | None = None
        self._stepped: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._last: list[tuple[str, int]] = []
        self._end: int | None = None
        self._on_side_stream = False
        self._backward_passes = 0
        self._begin = self._not_counted = 0
        self._optimizer_warm_ups = self._side_stream_steps = self._captured_graphs = 0

    def warm_up_at_least(self, steps: int) -> None:
        """Have so many steps warm up, or more that were asked for, before the recorded ones.

        Parameters
        ----------
        steps : int
        """
        self._warm_up = max(self._warm_up, steps)

    def stepped(self, optimizer: object, at: int, *, side_stream: bool = False) -> None:
        """Note that an optimizer has made a step, or one of several in a step of training.

        Parameters
        ----------
        optimizer : object
            The first that ends one tells the steps.
        at : int
            Items so far.
        side_stream : bool
            On another stream than the default one.
        """
        if self._backward_passes and (self._stepper is None or self._stepper() is None):
            self._stepper = weakref.ref(optimizer)
        first = self._stepper is not None and optimizer is self._stepper() and self._backward_passes
        if first or self._end is not None:  # others may follow it, before the next forward pass
            self._end, self._on_side_stream = at, side_stream
        new = optimizer not in self._stepped
        number = self._stepped.setdefault(optimizer, len(self._last))
        self._last[number : number + 1] = [(type(optimizer).__name__, at)]
        if new and len(self.ends) == 1 and self._optimizer_warm_ups < MOST_OPTIMIZER_WARM_UPS:
            self._begin = self.ends.pop()  # it makes its states: this step warms up, too
            self._optimizer_warm_ups += 1
            self._not_counted += 1

    def backward_begins(self) -> None:
        """Note that a backward pass begins."""
        self._backward_passes += 1

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
        self._end, self._backward_passes = None, 0
        if self._on_side_stream and self._side_stream_steps < MOST_SIDE_STREAM_STEPS:
            self._side_stream_steps += 1
        elif len(self.ends) >= self._wanted + self._warm_up:
            raise Ended

    def graph_captured(self, at: int) -> None:
        """Note that a graph of so many items so far was captured: what came before it warmed up."""
        if not self.ends and self._end is None:
            return
        if self._captured_graphs < MOST_CAPTURED_GRAPHS:
            self._captured_graphs += 1
            self._not_counted += len(self.ends) + (self._end is not None)
            self.ends, self._end, self._backward_passes = [], None, 0
            self._begin = at

    def missing(self) -> str:
        """Return what the steps so far lack of those that were asked for; empty: nothing.

        One step alone is recorded where no more, and no warm-up steps, were asked for.
        """
        wanted, asked = self._asked
        warm_up = asked or 1
        if (wanted == 1 and asked is None) or len(self.ends) >= wanted + warm_up:
            return ""
        made = f"{len(self.ends) or 'no'} step{'' if len(self.ends) == 1 else 's'}"
        if self._not_counted:
            made += (
                f" after {self._not_counted} that make the states of an optimizer or come before a "
                "CUDA graph"
            )
        return f"made {made}; --warm-up {warm_up} and --steps {wanted} need {wanted + warm_up}"

    def bounds(self) -> tuple[list[int], bool]:
        """Return where the recorded steps begin and end, and whether a step before warmed up.

        The last that are wanted, or the only one there is.
        """
        if len(self.ends) == 1:
            return [self._begin, *self.ends], False
        return self.ends[-self._wanted - 1 :], True

    def idle(self) -> list[str]:
        """Return the classes of optimizers that have made steps, but none in the recorded ones."""
        begin = self.bounds()[0][0]
        return sorted({name for name, at in self._last if at <= begin})

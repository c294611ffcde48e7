"""Shares of some work, as they are done → how long the rest takes, only where estimates agree.

Equal shares are taken to need equal times. The time left follows twice, from the mean speed so far
and from that of the latter half of the time. Where the two agree that is one number, where they
differ a range, and where they differ by more than `MAX_RATIO` there is no estimate. An estimate
that was shown is kept, and counts down, until measurements contradict it. Where the work turns out
to be slower, there is none until it has taken twice as long: no number is seen to grow again and
again.
"""

from __future__ import annotations

import itertools

__all__ = ["TimeLeft", "time_text"]

MIN_SECONDS = 10.0
"""Before that there is no estimate, nor before `MIN_SHARE` and `MIN_UPDATES`."""

MIN_SHARE = 0.02

MIN_UPDATES = 3

AGREEMENT = 1.3
"""Largest ratio of two estimates that are one number."""

MAX_RATIO = 3.0
"""Largest ratio of two estimates that are shown as a range."""

TOLERANCE = 0.25
"""An estimate that was shown is kept while it is off by at most this share of the time left."""

MAX_SAMPLES = 128
"""Times that are remembered; of more every second is dropped."""


class TimeLeft:
    """How long some work still takes.

    Parameters
    ----------
    total : float
        The value of `done` at the end; 0 if it is not known.
    begun : float
        When the work began, in s of any clock.
    """

    def __init__(self, total: float, begun: float) -> None:
        self.total = total
        self._samples = [(0.0, begun)]
        self._last = (0.0, begun)
        self._spacing = 0.0
        self._n_updates = 0
        self._end: float | None = None  # that was shown
        self._silent_until = begun

    def update(self, done: float, now: float) -> None:
        """Learn how much is done.

        Parameters
        ----------
        done : float
            Never less than before.
        now : float
            In s of the same clock.
        """
        if done <= self._last[0]:
            return
        self._n_updates += 1
        self._last = (done, now)
        if now - self._samples[-1][1] < self._spacing:
            return
        self._samples.append(self._last)
        if len(self._samples) > MAX_SAMPLES:
            self._samples = self._samples[::2]
            self._spacing = 2 * (now - self._samples[0][1]) / MAX_SAMPLES

    def seconds(self, now: float) -> tuple[float, float] | None:
        """Return the least and the most time left, in s; equal where the estimates agree.

        None where there is no estimate.

        Parameters
        ----------
        now : float
            In s of the same clock.
        """
        done, at = self._last
        begun = self._samples[0][1]
        known = self.total > 0 and self._n_updates >= MIN_UPDATES and at - begun >= MIN_SECONDS
        if not known or not MIN_SHARE <= done / self.total < 1:
            return None
        left = self.total - done
        mean = (at - begun) / done * left
        half = (at + begun) / 2
        recent = (at - half) / (done - self._done_by(half)) * left
        low, high = (max(0.0, each - (now - at)) for each in sorted((mean, recent)))
        if self._end is not None and not 0 < self._end - now >= low - TOLERANCE * high:
            self._end, self._silent_until = None, now + (now - begun)
        if now < self._silent_until or high <= 0:
            return None
        ratio = max(mean, recent) / min(mean, recent)
        if ratio > MAX_RATIO:
            return None
        if self._end is None or self._end - now > high + TOLERANCE * high:
            self._end = now + (low + high) / 2
        if ratio > AGREEMENT:
            return low, high
        return self._end - now, self._end - now

    def _done_by(self, time: float) -> float:
        """Return how much was done by some time, between two samples in proportion."""
        samples = [*self._samples, self._last]
        for (before, begin), (after, end) in itertools.pairwise(samples):
            if end >= time:
                share = (time - begin) / (end - begin) if end > begin else 1.0
                return before + share * (after - before)
        return samples[-1][0]


def time_text(seconds: float) -> str:
    """Duration → text as coarse as an estimate is.

    Parameters
    ----------
    seconds : float

    Examples
    --------
    >>> [time_text(each) for each in (3.4, 89, 300, 7500)]
    ['3 s', '89 s', '5 min', '2 h 5 min']
    """
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def left_text(left: tuple[float, float] | None) -> str:
    """Least and most seconds left (`TimeLeft.seconds`) → text; empty where there is no estimate.

    Examples
    --------
    >>> left_text((300.0, 300.0)), left_text((180.0, 480.0)), left_text(None)
    ('about 5 min left', '3 to 8 min left', '')
    """
    if left is None:
        return ""
    low, high = (time_text(_coarse(each)) for each in left)
    if low == high:
        return f"about {low} left"
    low, unit, high_unit = low.partition(" ")[0], low.partition(" ")[2], high.partition(" ")[2]
    return f"{low} to {high} left" if unit == high_unit else f"{low} {unit} to {high} left"


def _coarse(seconds: float) -> float:
    """Round seconds as a person would say them: to 5 s, then 10 s."""
    if seconds < 10:
        return max(1.0, round(seconds))
    step = 5.0 if seconds < 60 else 10.0
    return step * round(seconds / step) if seconds < 99.5 else seconds

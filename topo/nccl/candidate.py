"""`Candidate`: one algorithm with one protocol, the tuner's estimate and the expected time.

A `Candidate` has two models of its time, which are kept apart.

- `TunerEstimate`: what NCCL *believes*, with the constants of its source and the speeds of its
  channel search (src/graph/tuning.cc). `TunerRanking` evaluates it; the lowest is NCCL's choice.
- `Candidate.seconds`: the time to *expect* of the hardware ::

      seconds  = overhead + bytes / rate
      rate     = min(bandwidth, channels used × bandwidth of a channel)
      overhead = start latency + loss of a pipeline of chunks + filling of a chain

Invariants
----------
1. A time is continuous in the size and never falls as it grows. Channels used are constant or
   proportional to the bytes, so that bytes / rate is constant or grows. The start latency has a
   factor that rises from 0 to 1 with bytes over channels used, which does not fall either. The loss
   is the root of a multiple of bytes / rate. Filling, b f / (b + f), grows with b.
2. `due_to_latency` is the derivative of a time by a common factor of all latencies: a root of
   latency times bytes over bandwidth counts by half.
3. Of equal estimates the first candidate wins, as in NCCL, whose loop takes a later pair only if it
   is faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpisim.base.frozen import frozen

from .rccl import SizeRange

__all__ = ["N_SIZES", "Candidate", "TunerEstimate", "TunerRanking"]

Floats = np.float64 | NDArray[np.float64]

Sizes = float | Floats

_SIZE_LOGARITHMS = np.arange(6, 33)
"""Of the sizes for which a correction is given: 64 bytes and on, the last for all larger ones."""

N_SIZES = len(_SIZE_LOGARITHMS)

_SIZE_POWERS = 2.0 ** _SIZE_LOGARITHMS[1:]


@frozen
class TunerEstimate:
    """NCCL's tuner estimate of a candidate: its latency and bandwidth.

    Attributes
    ----------
    latency, bandwidth : float
        Seconds, and bytes per second.
    plateau_from, plateau_factor : float
        Size from which the tuner believes in so much longer a latency.
    correction : float64, shape (27,), optional
        Factor of the bandwidth by size (`_SIZE_LOGARITHMS`).
    """

    latency: float
    bandwidth: float
    plateau_from: float
    plateau_factor: float
    correction: NDArray[np.float64] | None


@frozen
class Candidate:
    """One algorithm with one protocol, for one operation on one group.

    Attributes
    ----------
    algorithm : str
    protocol : int
    channels : int
        Of the communicator.
    bytes_per_channel : int
        Bytes a channel must have before one more is used; 0: all are.
    tuner : TunerEstimate
    latency : float
        Seconds, of messages that a network sends at once.
    bandwidth : float
        Bytes per second with all channels.
    bulk : float
        Seconds that larger messages add to the latency.
    growth : float
        Power of the size, over `eager`, with which `bulk` grows.
    eager : float
        Size from which messages are large: half of it still travels at once. Between the two,
        which no table distinguishes, the latency of large messages sets in by degrees.
    pace : float
        Latency that every chunk of a pipeline meets again, times its tree's crossings; seconds.
    spread : float
        How much of it counts: see `_pipeline_loss`.
    channel_bandwidth : float
        Payload one channel can move, bytes per second.
    fill : float
        Bytes that pass before a pipeline is full, all channels together.
    """

    algorithm: str
    protocol: int
    channels: int
    bytes_per_channel: int
    tuner: TunerEstimate
    latency: float
    bandwidth: float
    bulk: float
    growth: float
    eager: float
    pace: float
    spread: float
    channel_bandwidth: float
    fill: float

    def seconds(self, bytes: Sizes) -> Floats:
        """Return the expected time, for one size or an array of them."""
        return self.overhead(bytes) + bytes / self.rate(bytes)

    def channels_used(self, bytes: Sizes) -> Floats:
        """Return the number of channels that carry a message, not rounded."""
        if not self.bytes_per_channel:
            return np.float64(self.channels)
        wanted = np.maximum(np.divide(bytes, self.bytes_per_channel), 1.0)
        return np.minimum(wanted, self.channels)

    def rate(self, bytes: Sizes) -> Floats:
        """Message size in bytes → bandwidth in bytes per second, latency left out."""
        by_channels = self.channels_used(bytes) * self.channel_bandwidth
        rate: Floats = np.minimum(self.bandwidth, by_channels)
        return rate

    def overhead(self, bytes: Sizes) -> Floats:
        """Return the seconds in which no bytes flow."""
        overhead = self._start_latency(bytes) + self._pipeline_loss(bytes)
        if not self.fill:
            return overhead
        # Chunks shrink with the message: a small one fills with little, a large one with whole
        # buffers.
        filling: Floats = np.asarray(bytes * self.fill / (bytes + self.fill) / self.bandwidth)
        return overhead + filling

    def due_to_latency(self, bytes: Sizes) -> Floats:
        """Return the seconds that latencies of twice the length would add.

        To first order: what a pipeline loses is due to its latency and its bandwidth in equal
        parts.
        """
        return self._start_latency(bytes) + 0.5 * self._pipeline_loss(bytes)

    def _start_latency(self, bytes: Sizes) -> Floats:
        """Return the latency of a message of some size.

        What a message that is not sent at once costs beyond one that is grows with its size where
        the CPU reads every line of it, looking for flags (LL): that passes from node to node before
        the next may send.
        """
        if not self.bulk:
            return np.float64(self.latency)
        more: Floats = np.float64(self.bulk)
        if self.growth:
            more = more * np.maximum(np.divide(bytes, self.eager), 1.0) ** self.growth
        part = np.divide(bytes, self.eager * self.channels_used(bytes))
        return self.latency + np.clip(2 * part - 1, 0.0, 1.0) * more

    def _pipeline_loss(self, bytes: Sizes) -> Floats:
        """Return the time that a pipeline of chunks loses.

        A pipeline whose steps take `pace` together moves what would take t in chunks: few of them,
        and the last steps wait long for the first; many, and each costs its steps. The best number
        loses 2 (pace t)^1/2. Steps that vary lose as much of the same form, and each crossing of a
        tree adds its own: on 16 and on 64 nodes of Alps a crossing costs the same. `spread` stands
        for all of these.
        """
        if not self.spread:
            return np.float64(0.0)
        lost: Floats = self.spread * np.sqrt(self.pace * bytes / self.rate(bytes))
        return lost


class TunerRanking:
    """The tuner's times of candidates, side by side: the lowest is the library's choice.

    Parameters
    ----------
    candidates : list of Candidate
        In NCCL's order: of equally fast ones it takes the first.
    ranges : sequence of SizeRange
        What RCCL takes by the size in place of the fastest candidate; the last that holds a size
        wins. Empty for NCCL.
    """

    def __init__(self, candidates: list[Candidate], ranges: Sequence[SizeRange] = ()) -> None:
        self.candidates = candidates
        estimates = [each.tuner for each in candidates]
        self._latency = np.array([[each.latency] for each in estimates])
        self._longer = np.array(
            [
                [(each.plateau_factor - 1) * each.latency if each.plateau_factor > 1 else 0.0]
                for each in estimates
            ]
        )
        self._plateau_from = np.array([[each.plateau_from] for each in estimates])
        self._has_plateau = bool(self._longer.any())
        even = np.ones(N_SIZES)
        self._per_byte = 1 / np.array(
            [
                each.bandwidth * (even if each.correction is None else each.correction)
                for each in estimates
            ]
        )
        self._instead = [(each, self._taken(each)) for each in ranges]

    def estimates(self, bytes: Sizes) -> NDArray[np.float64]:
        """Return the tuner's times, shape (candidates, sizes), seconds."""
        sizes = np.atleast_1d(bytes)
        column = _SIZE_POWERS.searchsorted(sizes, "right")
        times: NDArray[np.float64] = self._per_byte[:, column] * sizes
        times += self._latency
        if self._has_plateau:
            times += self._longer * (sizes >= self._plateau_from)
        return times

    def chosen(self, bytes: Sizes) -> NDArray[np.int64]:
        """Return the indices of the library's choices, shape (sizes,)."""
        return self._in_range(self.estimates(bytes).argmin(axis=0), bytes)

    def order(self, bytes: float) -> list[int]:
        """Return the indices of all candidates for one size: the choice, then by their times."""
        estimates = self.estimates(bytes)
        by_time = estimates[:, 0].argsort(kind="stable").tolist()
        (first,) = self._in_range(estimates.argmin(axis=0), bytes).tolist()
        return [first, *(each for each in by_time if each != first)]

    def choice(self, bytes: float) -> Candidate:
        """Return the library's choice for one size."""
        return self.candidates[int(self.chosen(bytes)[0])]

    def _in_range(self, fastest: NDArray[np.int64], bytes: Sizes) -> NDArray[np.int64]:
        """Return the candidates that run in place of the fastest ones at some sizes."""
        found, sizes = fastest, np.atleast_1d(bytes)
        for each, instead in self._instead:
            found = np.where((sizes > each.above) & (sizes <= each.most), instead[fastest], found)
        return found

    def _taken(self, wanted: SizeRange) -> NDArray[np.int64]:
        """Return the index of what runs in place of each candidate, itself where it cannot run."""
        index = {(each.algorithm, each.protocol): i for i, each in enumerate(self.candidates)}
        return np.array(
            [
                index.get((wanted.algorithm or each.algorithm, wanted.protocol), i)
                for i, each in enumerate(self.candidates)
            ]
        )

"""PYTORCH_CUDA_ALLOC_CONF as text → settings of PyTorch's caching allocator.

The grammar, the defaults and the bounds are those of c10/core/AllocatorConfig.cpp and
c10/cuda/CUDAAllocatorConfig.cpp of PyTorch 2.9 and later. Options that do not change which memory
of the GPU is used (pinned host memory, locks, sharing between processes) are accepted and kept out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..base.errors import InputError, one_of
from ..base.frozen import frozen

__all__ = ["AllocatorSettings", "parse_settings"]

MIB = 1 << 20

UNLIMITED = (1 << 64) - 1
"""`max_split_size` where none is given."""

LARGE_SEGMENT = 20 * MIB

LEAST_LARGE_SEGMENT = 10 * MIB
"""Segments of the large pool are larger than this."""

INTERVALS = 16
"""Sizes from 1 MiB to 64 GiB, by powers of two, that can be rounded differently."""

WITHOUT_EFFECT = frozenset(
    {
        "expandable_segments_handle_type",
        "graph_capture_record_stream_reuse",
        "pinned_free_catch_all",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
    }
)
"""Options that leave the memory of the GPU as it is."""

SETTINGS = (
    "backend",
    "expandable_segments",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "per_process_memory_fraction",
    "roundup_power2_divisions",
)
"""Options that are heeded."""

NAME = "PYTORCH_CUDA_ALLOC_CONF"


@frozen
class AllocatorSettings:
    """Settings of the caching allocator, sizes in bytes.

    Attributes
    ----------
    max_split_size : int
        Blocks of this size or more are not split.
    max_non_split_rounding : int
        How much larger than a request a block that is not split may be.
    garbage_collection_threshold : float
        Share of the memory allowed above which cached blocks are freed; 0: never. PyTorch heeds it
        only where `memory_fraction` is set.
    roundup_power2_divisions : tuple of int
        Parts that the space between two powers of two is divided into, for sizes below 2 MiB, from
        2 MiB to 4 MiB, …, from 32 GiB on; 0 and 1: sizes are multiples of 512 bytes.
    expandable_segments : bool
    large_segment_size : int
        Segment that requests over 1 MiB and under 10 MiB are cut from.
    memory_fraction : float or None
        Share of the GPU that the process may reserve
        (`torch.cuda.set_per_process_memory_fraction`).
    """

    max_split_size: int = UNLIMITED
    max_non_split_rounding: int = LARGE_SEGMENT
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: tuple[int, ...] = (0,) * INTERVALS
    expandable_segments: bool = False
    large_segment_size: int = LARGE_SEGMENT
    memory_fraction: float | None = None

    def divisions(self, size: int) -> int:
        """Return the parts that sizes between the powers of two around one are divided into."""
        return self.roundup_power2_divisions[min(max(size.bit_length() - 21, 0), INTERVALS - 1)]


def parse_settings(text: str, name: str = NAME) -> AllocatorSettings:
    """Text of PYTORCH_CUDA_ALLOC_CONF (or PYTORCH_ALLOC_CONF) → settings.

    Parameters
    ----------
    text : str
        Options as ``expandable_segments:True,max_split_size_mb:128``; empty: the defaults.
    name : str
        What the text is, for messages.

    Raises
    ------
    InputError
        If PyTorch would not take it.

    Examples
    --------
    >>> parse_settings("expandable_segments:True").expandable_segments
    True
    """
    given = dict(_options(text, name))
    values: dict[str, object] = {}
    segment = LARGE_SEGMENT
    if "large_segment_size_mb" in given:
        segment = _whole(given, "large_segment_size_mb", name) * MIB
        if segment <= LEAST_LARGE_SEGMENT:
            raise InputError(
                f"{name}: large_segment_size_mb is {segment // MIB}; it must be more than "
                f"{LEAST_LARGE_SEGMENT // MIB}"
            )
        values["large_segment_size"] = segment
    values["max_non_split_rounding"] = segment
    for key, field in (
        ("max_split_size_mb", "max_split_size"),
        ("max_non_split_rounding_mb", "max_non_split_rounding"),
    ):
        if key in given:
            size = _whole(given, key, name) * MIB
            if size < segment:
                raise InputError(
                    f"{name}: {key} is {size // MIB}; it must be {segment // MIB} or more"
                )
            values[field] = min(size, UNLIMITED)
    if "garbage_collection_threshold" in given:
        share = _number(given, "garbage_collection_threshold", name)
        if not 0 < share < 1:
            raise InputError(
                f"{name}: garbage_collection_threshold is {share:g}; it must be between 0 and 1"
            )
        values["garbage_collection_threshold"] = share
    if "per_process_memory_fraction" in given:
        share = _number(given, "per_process_memory_fraction", name)
        if not 0 <= share <= 1:
            raise InputError(
                f"{name}: per_process_memory_fraction is {share:g}; it must be from 0 to 1"
            )
        values["memory_fraction"] = share
    if "expandable_segments" in given:
        word = given["expandable_segments"]
        if word not in ("True", "False"):
            raise InputError(f"{name}: expandable_segments is {word!r}; allowed: True, False")
        values["expandable_segments"] = word == "True"
    if given.get("backend", "native") != "native":
        raise InputError(
            f"{name}: backend is {given['backend']!r}; only PyTorch's own allocator is simulated: "
            "native"
        )
    if "roundup_power2_divisions" in given:
        values["roundup_power2_divisions"] = _divisions(given["roundup_power2_divisions"], name)
    return AllocatorSettings(**values)  # type: ignore[arg-type]


def _options(text: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield options and their values; commas inside brackets do not separate."""
    text = re.sub(r"\s+", "", text)
    if text.count("[") != text.count("]"):
        raise InputError(f"{name}: {text!r} has a bracket without its other half")
    for part in re.split(r",(?![^\[]*\])", text) if text else ():
        key, colon, value = part.partition(":")
        if key not in SETTINGS and key not in WITHOUT_EFFECT:
            raise InputError(f"{name}: there is no option {key!r}{one_of(key, SETTINGS)}")
        if not colon or not value:
            raise InputError(f"{name}: {part!r} is no option:value")
        yield key, value


def _whole(given: dict[str, str], key: str, name: str) -> int:
    if not given[key].isascii() or not given[key].isdigit():
        raise InputError(f"{name}: {key} is {given[key]!r}; it must be a whole number of MiB")
    return int(given[key])


def _number(given: dict[str, str], key: str, name: str) -> float:
    try:
        return float(given[key])
    except ValueError:
        raise InputError(f"{name}: {key} is {given[key]!r}; it must be a number") from None


def _divisions(text: str, name: str) -> tuple[int, ...]:
    """Return the divisions of each interval of sizes; ``8`` or ``[256:1,512:2,1024:4,>:8]``."""

    def power_of_two(word: str, what: str) -> int:
        if not word.isascii() or not word.isdigit() or int(word).bit_count() > 1:
            raise InputError(
                f"{name}: roundup_power2_divisions has {what} {word!r}; it must be a power of 2"
            )
        return int(word)

    if not text.startswith("["):
        return (power_of_two(text, "divisions") or 1,) * INTERVALS
    if not text.endswith("]"):
        raise InputError(
            f"{name}: roundup_power2_divisions is {text!r}; it must be a number, or as "
            "[256:1,512:2,1024:4,>:8]"
        )
    values = [0] * INTERVALS
    last = None
    for part in text[1:-1].split(","):
        size, colon, count = part.partition(":")
        if not colon:
            raise InputError(
                f"{name}: roundup_power2_divisions has {part!r}; it must be MiB:divisions"
            )
        divisions = power_of_two(count, "divisions")
        if size == ">":
            # After the last interval named, as PyTorch counts: from the second on if none was.
            first = (last or 0) + 1
            values[first:] = [divisions] * (INTERVALS - first)
            continue
        index = min(max(power_of_two(size, "a size of").bit_length() - 1, 0), INTERVALS - 1)
        if last is None:
            values[:index] = [divisions] * index
        values[index] = divisions
        last = index
    return tuple(values)

"""The errors reported to users, each with the exit code of the command line.

Every message stands alone: it names the file, key or row, says what was found and what is allowed.
An error is raised where the mistake is noticed, on one rank or on all; errors cross MPI (see
:func:`mpisim.mpi.parallel.collective_errors`), so each one pickles, subclasses with fields of their
own included.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "DeadlockError",
    "DestinationError",
    "InputError",
    "MatchError",
    "MpisimError",
    "OutputError",
    "ProgramError",
    "TraceError",
    "UsageError",
    "divides",
    "nearest",
    "one_of",
]

MIN_BEGINNING = 4
"""Letters of the shortest beginning for which errors offer the name that it begins."""


class MpisimError(Exception):
    """Base of every error that is reported in one line, without a traceback.

    Attributes
    ----------
    exit_code : int
        What the command line returns: 1 for failures at run time, 2 for bad input.
    """

    exit_code = 1

    def __reduce__(self) -> tuple[object, ...]:
        # The default calls the class with ``args``, which fails for a subclass whose constructor
        # takes other arguments than its message.
        return _rebuild, (type(self), self.args, self.__dict__)


class InputError(MpisimError):
    """Bad input of any kind: a file, a key, a row or a value."""

    exit_code = 2


class UsageError(InputError):
    """The program was called or launched in a way that cannot work."""


class ProgramError(InputError):
    """A program whose tables, bindings or communicators contradict themselves."""


class MatchError(ProgramError):
    """Operations on one communicator that do not match over its members."""


class DeadlockError(InputError):
    """No simulated rank can move and not all have finished."""


class TraceError(InputError):
    """A trace that cannot be read, or read and not understood."""


class OutputError(MpisimError):
    """A result that could not be written, such as to a disk that is full."""


class DestinationError(OutputError, UsageError):
    """An output that cannot be where it is requested: exists already, no folder, no permission."""

    exit_code = 2


def _rebuild(
    cls: type[MpisimError], args: tuple[object, ...], state: dict[str, object]
) -> MpisimError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Suggest the allowed name closest to a mistyped one.

    Parameters
    ----------
    name : str
        What was found.
    allowed : iterable of str
        What could have stood there.

    Returns
    -------
    str
        Text to append to a message, starting with a space; empty if nothing is close.

    Examples
    --------
    >>> nearest("bandwith", ["bandwidth", "latency"])
    " (did you mean 'bandwidth'?)"
    >>> nearest("colour", ["bandwidth", "latency"])
    ''
    >>> nearest("pt", ["dp", "tp"])
    " (did you mean 'tp'?)"
    >>> nearest("td", ["dp", "tp"])
    " (did you mean 'tp'?)"
    >>> nearest("qwen3-235b", ["qwen3-32b", "qwen3-235b-a22b"])
    " (did you mean 'qwen3-235b-a22b'?)"
    """
    import difflib

    allowed = list(allowed)
    close = [each for each in allowed if each.casefold() == name.casefold()]
    if len(name) >= MIN_BEGINNING:
        longer = (each for each in allowed if each.casefold().startswith(name.casefold()))
        close = close or sorted(longer, key=len)
    close = close or difflib.get_close_matches(name, allowed, n=1)
    close = close or [each for each in allowed if sorted(each) == sorted(name)]  # pt, tp
    if not close and len(name) == 2 and name.isalpha():  # td: tp; xp: none of dp, pp, tp
        alike = [each for each in allowed if len(each) == 2 and _differ_by_one(each, name)]
        close = alike if len(alike) == 1 else []
    return f" (did you mean '{close[0]}'?)" if close else ""


def _differ_by_one(name: str, other: str) -> bool:
    """Whether two names of the same length have one letter that differs."""
    return sum(a != b for a, b in zip(name, other, strict=True)) == 1


MAX_LISTED = 12
"""Names that are listed even where one of them is near."""


def one_of(name: str, allowed: Iterable[str], listed: str = "") -> str:
    """Say what a mistyped name could have been: the nearest, or else all that are allowed.

    Parameters
    ----------
    name : str
        What was found.
    allowed : iterable of str
        What could have stood there.
    listed : str
        Where all of them are listed, said in place of a long list.

    Returns
    -------
    str
        Text to append to a message, starting with a space or a semicolon.

    Examples
    --------
    >>> one_of("bandwith", ["bandwidth", "latency"])
    " (did you mean 'bandwidth'?); allowed: bandwidth, latency"
    >>> one_of("key7x", [f"key{i}" for i in range(75)], "mpisim new explains all keys")
    " (did you mean 'key7'?); mpisim new explains all keys"
    """
    allowed = list(allowed)
    near = nearest(name, allowed)
    if len(allowed) > MAX_LISTED and (near or listed):
        return near + (f"; {listed}" if listed else "")
    return f"{near}; allowed: {', '.join(allowed)}"


def divides(name: str, value: int, by_name: str, by: int) -> None:
    """Refuse a value that is not a multiple of another.

    Parameters
    ----------
    name : str
        Of the value, for the message.
    value : int
    by_name : str
        Of the divisor, for the message.
    by : int
        Divisor, not 0.

    Raises
    ------
    InputError
        Naming both.
    """
    if value % by:
        raise InputError(f"{name} is {value}, which is not a multiple of {by_name} = {by}")

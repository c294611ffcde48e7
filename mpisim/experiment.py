"""Experiments: which model, on which cluster, by which parallel plan.

An experiment is one TOML file with the tables ``[cluster]``, ``[model]`` and ``[plan]``, read into
frozen dataclasses. ``mpisim/data/experiments/default.toml`` is one, with every key explained.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from .errors import InputError
from .schema import Limits, build, defaults, parse

__all__ = ["ClusterChoice", "Experiment", "Model", "Plan", "defaulted", "load", "read"]

Count = Annotated[int, Limits(least=1, most=1_000_000)]
Large = Annotated[int, Limits(least=1, most=100_000_000)]

MOST_BLOCKS = 100_000
"""Layers × micro-batches of one copy; each takes about 40 rows."""

DEFAULT = "experiments/default.toml"


@dataclass(frozen=True)
class Model:
    """A GPT: a stack of equal layers between an embedding and a projection on the vocabulary.

    Attributes
    ----------
    layers, hidden, heads : int
        Number of layers, width, attention heads; `hidden` is a multiple of `heads`.
    feed_forward : int
        Inner width of the feed-forward block.
    vocabulary : int
        Entries, padded so that a plan divides them.
    sequence : int
        Tokens of a sequence.
    """

    layers: Annotated[int, Limits(least=1, most=30_000)]
    hidden: Count
    heads: Count
    feed_forward: Count
    vocabulary: Large
    sequence: Large

    def __post_init__(self) -> None:
        _divides("hidden", self.hidden, "heads", self.heads)

    @property
    def matrix_parameters(self) -> int:
        """Parameters of the layers' matrices and of the projection on the vocabulary.

        These, times 6 FLOPs a token, are the usual count of a training step's work.
        """
        h, f = self.hidden, self.feed_forward
        return self.layers * (4 * h * h + 2 * h * f) + self.vocabulary * h

    @property
    def parameters(self) -> int:
        """All parameters. The embedding and the projection share one matrix."""
        h, f = self.hidden, self.feed_forward
        biases = 3 * h + h + f + h
        norms = 4 * h
        return self.matrix_parameters + self.layers * (biases + norms) + 2 * h + self.sequence * h


@dataclass(frozen=True)
class Plan:
    """How the work is shared by the GPUs.

    Attributes
    ----------
    tensor : int
        GPUs that share one layer's matrices; neighbours in rank.
    data : int
        Copies of the model, each on its own part of the batch.
    sequence_parallel : bool
        Whether norms and dropout are shared by the `tensor` GPUs along the sequence: then each
        all-reduce becomes a reduce-scatter and an all-gather.
    micro_batch : int
        Sequences a copy works on at a time.
    global_batch : int
        Sequences of one step, a multiple of `data` × `micro_batch`.
    bucket : int
        Bytes of gradients that are reduced over the copies together.
    """

    tensor: Count
    data: Count
    micro_batch: Annotated[int, Limits(least=1, most=10_000)]
    global_batch: Large
    sequence_parallel: bool = True
    bucket: Annotated[int, Limits(least=1)] = 160_000_000

    def __post_init__(self) -> None:
        together = self.data * self.micro_batch
        _divides("global_batch", self.global_batch, "data × micro_batch", together)

    @property
    def gpus(self) -> int:
        """GPUs the plan uses."""
        return self.tensor * self.data

    @property
    def micro_batches(self) -> int:
        """Micro-batches of each copy in one step."""
        return self.global_batch // (self.data * self.micro_batch)


@dataclass(frozen=True)
class ClusterChoice:
    """Where it runs: a preset of ``mpisim/data/clusters.toml`` and how many of its nodes."""

    preset: str
    nodes: Count = 1


@dataclass(frozen=True)
class Experiment:
    """All of one experiment."""

    model: Model
    plan: Plan
    cluster: ClusterChoice
    title: str = "experiment"

    def __post_init__(self) -> None:
        model, tensor = self.model, self.plan.tensor
        # The shares of a matrix must be equal, or the slowest would set the pace unseen.
        for key in ("heads", "feed_forward", "vocabulary"):
            _divides(f"model.{key}", getattr(model, key), "plan.tensor", tensor)
        if self.plan.sequence_parallel:
            _divides("model.sequence", model.sequence, "plan.tensor", tensor)
        if model.layers * self.plan.micro_batches > MOST_BLOCKS:
            raise InputError(
                f"{model.layers} layers × {self.plan.micro_batches} micro-batches of a copy are "
                f"too many to write down: at most {MOST_BLOCKS}"
            )

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.plan.global_batch * self.model.sequence


def read(text: str, source: str) -> Experiment:
    """Read an experiment from TOML.

    Parameters
    ----------
    text : str
    source : str
        The name of the file, for messages.

    Raises
    ------
    InputError
        Naming the file and the key, what was found and what is allowed.
    """
    return build(Experiment, parse(text, source), source)


def defaulted(text: str) -> dict[str, object]:
    """Return the keys an experiment's text leaves to their defaults, with these.

    Examples
    --------
    >>> from mpisim.data import text
    >>> defaulted(text("experiments/default.toml").replace("bucket", "# bucket"))
    {'plan.bucket': 160000000}
    """
    return defaults(Experiment, parse(text, "experiment"))


def load(path: str | Path | None = None) -> tuple[str, Experiment]:
    """Load an experiment from a file, by default the one that comes with mpisim.

    Returns
    -------
    text : str
        The file's contents, to be kept with the results.
    experiment : Experiment

    Raises
    ------
    InputError
        If the file cannot be read or understood.
    """
    if path is None:
        from mpisim.data import text as packaged

        contents = packaged(DEFAULT)
        return contents, read(contents, Path(DEFAULT).name)
    try:
        contents = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file in UTF-8 (byte {error.start})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    return contents, read(contents, str(path))


def _divides(name: str, value: int, by_name: str, by: int) -> None:
    if value % by:
        raise InputError(f"{name} is {value}, which is not a multiple of {by_name} = {by}")

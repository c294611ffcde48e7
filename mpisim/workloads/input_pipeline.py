"""Input pipeline: image loading of the host for the next step → rows of the step.

    [data], the node's CPUs ─► InputPipeline ─► rows of a step

While a step runs the host prepares the batch of the next, and a copy engine takes it to the GPU. A
step begins when its batch has come, and so it ends when that of the next has: with a queue of
batches between the two, which all loaders have, a step takes as long as the GPU does or as the
host, whichever takes longer. That is the model of J. Mohan et al., "Analyzing and Mitigating Data
Stalls in DNN Training" (PVLDB 14(5), 2021), of data that lie in memory.

A node's rate is proportional to its cores, up to one core a worker; ``data/input.toml`` has the
images a second of a core, by loader. The process of each
GPU keeps a hardware thread of its own busy, launching kernels and waiting for them, which takes a
part of a core from the loader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from mpisim.kernels.operations import Copy

from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import Quantity, picoseconds
from ..base.schema import build
from ..experiment import Cnn, Dlrm, Experiment, Model, Transformer
from ..experiment.traced import Traced
from ..program import Phase, Program, Table
from ..topo import find_cluster
from .blocks import BlockBuilder
from .layout import Layout

__all__ = [
    "CHANNELS",
    "PREPARE",
    "InputPipeline",
    "image_side",
    "input_pipeline",
    "loads_images",
    "preparation_times",
    "prepares",
    "write_input",
    "write_wait",
]

FILE = "input.toml"

PREPARE, UPLOAD = "prepare next batch", "upload next batch"
"""Names of rows of the host."""

NEXT_BATCH = "next batch"
"""What the end of a step waits for."""

CHANNELS = 3
"""Numbers of a pixel."""


@frozen
class _Core:
    clock: Quantity
    scaling: Quantity
    per_gpu: Quantity
    busy: Quantity
    own_clock: Quantity


@frozen
class _Image:
    pixels: Quantity
    bytes: Quantity
    colour: Quantity


@frozen
class _Loader:
    title: str
    rate: Quantity
    upload: Quantity


@frozen
class _Figures:
    core: _Core
    image: _Image
    loaders: dict[str, _Loader]


@cache
def _figures() -> _Figures:
    return build(_Figures, packaged(FILE), FILE)


@frozen
class InputPipeline:
    """Speed of the host of a node at preparing images.

    Attributes
    ----------
    rate : float
        Images a second for each GPU of the node.
    upload : int
        Bytes of an image that go to its GPU; 0 where rows of the step have that copy.
    gpus : int
        GPUs of the node that are fed.
    cores : float
        Cores of the node at work for the loader.
    known : bool
        Whether the cluster or the experiment says how many cores there are.
    title : str
        The loader in words.
    numbers : mapping of str to Quantity
        Quantities that the rate is proportional to.
    """

    rate: float
    upload: int
    gpus: int
    cores: float
    known: bool
    title: str
    numbers: Mapping[str, Quantity]

    def duration(self, images: int) -> int:
        """Images for one GPU → time in which the host prepares them, in ps."""
        return picoseconds(images / self.rate)

    @property
    def text(self) -> str:
        """Description of the input pipeline, one line of text."""
        guess = "" if self.known else " (a guess: data.cores says)"
        return (
            f"input: {self.title} prepares {self.rate * self.gpus:,.0f} images/s a node, by "
            f"{self.cores:.4g} cores{guess}, while the step before runs; files lie in memory"
        )


def image_side(model: Model | Traced) -> int | None:
    """Model → side of the images that it takes, in pixels; None if it takes none.

    A U-Net's latents are not images that a loader decodes.
    """
    if isinstance(model, Cnn):
        return None if model.family == "unet" else model.image
    if isinstance(model, Transformer) and model.family == "vit":
        return model.image
    if isinstance(model, Traced):
        return model.image
    assert isinstance(model, Transformer | Cnn | Dlrm)
    return None


def loads_images(experiment: Experiment) -> bool:
    """Whether the host prepares the images of each step."""
    return experiment.data.images == "jpeg" and image_side(experiment.model) is not None


def input_pipeline(experiment: Experiment, replicas_gpus: int) -> InputPipeline | None:
    """Experiment → its input pipeline; None if it costs no time.

    Parameters
    ----------
    experiment : Experiment
    replicas_gpus : int
        GPUs of all replicas that take images: those of the first stage of the pipeline.
    """
    side = image_side(experiment.model)
    if not loads_images(experiment) or side is None:
        return None
    choice, figures = experiment.data, _figures()
    loader, image, core = figures.loaders[choice.loader], figures.image, figures.core
    node = find_cluster(experiment.cluster.preset).node
    host = node.tray if node is not None and node.tray else experiment.cluster.node_gpus
    gpus = max(1, min(host, replicas_gpus))
    cores = node.cores if node is not None else None
    clock = node.clock if node is not None else None
    known = choice.cores is not None or cores is not None
    if choice.cores is not None:
        cores = Quantity(choice.cores, "1", 0, "data.cores")
    if cores is None:
        cores = Quantity(core.per_gpu.value * host, "1", core.per_gpu.error, core.per_gpu.source)
    if choice.clock is not None:
        clock = Quantity(1000 * choice.clock, "MHz", 0, "data.clock")
    clock = core.own_clock if clock is None else clock
    # Threads of as many processes as there are cores, or more, share them with the loader's.
    taken = core.busy.value * min(gpus, cores.value)
    free = cores.value - taken
    workers = free if choice.workers is None else min(free, choice.workers * gpus)
    each = loader.rate.value * clock.si / core.clock.si * experiment.scale.data_loading
    if choice.megapixels is not None:
        each *= image.pixels.value / (1e6 * choice.megapixels)
    numbers = {
        f"rate of {choice.loader}": loader.rate,
        "rate of a core": core.scaling,
        "clock of the CPUs": clock,
    }
    if workers == free:
        numbers["cores of a node"] = cores
        numbers["cores that processes of GPUs keep busy"] = replace(
            core.busy, error=core.busy.error * taken / free
        )
    if choice.augmentation == "colour":
        each *= image.colour.value
        numbers["changes of colours"] = image.colour
    of_file = image.bytes.value
    if choice.megapixels is not None:
        of_file *= 1e6 * choice.megapixels / image.pixels.value
    pixels = CHANNELS * side**2
    upload = round(loader.upload.value * pixels or of_file)
    return InputPipeline(
        rate=each * workers / gpus,
        upload=0 if isinstance(experiment.model, Traced) and experiment.model.uploads else upload,
        gpus=gpus,
        cores=workers,
        known=known,
        title=loader.title,
        numbers=numbers,
    )


def write_input(block: BlockBuilder, layout: Layout, images: int) -> None:
    """Write the host's work for the next step, awaited as `NEXT_BATCH`.

    Parameters
    ----------
    block : BlockBuilder
        At the beginning of a step.
    layout : Layout
        Of an experiment that `loads_images`.
    images : int
        Images that a GPU takes in a step.
    """
    found = input_pipeline(layout.experiment, layout.grid.world // layout.grid.pp)
    assert found is not None
    block.tags(phase=Phase.INPUT, layer=-1)
    rows = [block.host_work(PREPARE, found.duration(images))]
    if found.upload:
        upload = Copy(found.upload * images, "host")
        time = block.pricing.estimate(UPLOAD, upload).duration
        rows.append(block.host_work(UPLOAD, time, bytes=upload.bytes))
    block.export(NEXT_BATCH, rows)


def prepares(program: Program, table: Table) -> NDArray[np.bool_]:
    """Table → mask of the rows that are the host's loading for the next step.

    Parameters
    ----------
    program : Program
        The program of `table`, for names of rows.
    table : Table
    """
    if PREPARE not in program.names:
        return np.zeros(len(table), np.bool_)
    return table.name == program.names.index(PREPARE)


def preparation_times(program: Program) -> set[int]:
    """Program → durations of the host's work for the next step, in ps; empty if there is none."""
    tables = (table for table in program.tables if table is not None)
    return {int(time) for each in tables for time in each.duration[prepares(program, each)]}


def write_wait(block: BlockBuilder) -> None:
    """Append a wait: the step ends once the next step's batch is on the GPU."""
    block.tags(phase=Phase.INPUT, layer=-1)
    block.host_wait([block.port(NEXT_BATCH)], "wait for next batch")

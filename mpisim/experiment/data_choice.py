"""Where the samples of a step come from: the table ``[data]`` of an experiment."""

from __future__ import annotations

from typing import Annotated, Literal

from ..base.frozen import frozen
from ..base.schema import Limits
from .models import Cnn, Count, Dlrm, Model, Transformer
from .traced import Traced

__all__ = ["DataChoice", "Loader", "image_side"]

Loader = Literal[
    "pillow", "pillow-simd", "opencv", "mxnet", "tf-data", "dali-cpu", "dali-gpu", "ffcv"
]


@frozen
class DataChoice:
    """Where the images of a step come from. Tokens that were made before cost nothing.

    Attributes
    ----------
    images : {"synthetic", "jpeg"}
        Made once and kept on the GPU, or prepared for each step by the CPUs of the node: decoded,
        cropped, resized, flipped and copied to the GPU, while the step before runs. They are
        taken to lie in the node's memory.
    loader : str
        The library that prepares them: "pillow" and "pillow-simd" by workers of PyTorch's
        DataLoader, "opencv" by workers in Python, "mxnet" (ImageRecordIter), "tf-data", "dali-cpu",
        "dali-gpu" (nvJPEG: the CPU decodes Huffman codes alone), "ffcv".
    workers : int, optional
        Threads or processes of the loader for each GPU; as many as there are cores if not given.
    augmentation : {"crop", "colour"}
        Crops and flips alone, or changes of colours as well.
    megapixels : float, optional
        Of a stored image, in the mean; that of ImageNet if not given. Decoding takes as long as
        there are pixels.
    cores : int, optional
        Cores of the CPUs of a node (of a tray of a rack) that the loader may use, in place of the
        cluster's.
    clock : float, optional
        Their base clock in GHz, in place of the cluster's.
    """

    images: Literal["synthetic", "jpeg"] = "synthetic"
    loader: Loader = "pillow"
    workers: Count | None = None
    augmentation: Literal["crop", "colour"] = "crop"
    megapixels: Annotated[float, Limits(least=0.001, most=1000)] | None = None
    cores: Count | None = None
    clock: Annotated[float, Limits(least=0.5, most=10)] | None = None


def image_side(model: Model | Traced) -> int | None:
    """Model → side of the images that it takes, in pixels; None of other models.

    A U-Net's latents are no images that anyone decodes.
    """
    if isinstance(model, Cnn):
        return None if model.family == "unet" else model.image
    if isinstance(model, Transformer) and model.family == "vit":
        return model.image
    assert isinstance(model, Transformer | Cnn | Dlrm | Traced)
    return None

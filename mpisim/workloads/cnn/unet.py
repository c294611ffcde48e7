"""The U-Net of Stable Diffusion 2 (arXiv:2112.10752), which predicts the noise of latent images.

After github:Stability-AI/stablediffusion, ``ldm/modules/diffusionmodules/openaimodel.py`` and
``ldm/modules/attention.py``, with the numbers of v2-inference.yaml: four levels of 320, 640, 1,280
and 1,280 channels with two residual blocks each on the way down and three on the way up, where
each also takes what the way down left; at the upper three levels a transformer block after every
residual block, whose tokens are pixels, with attention to each other, to 77 tokens of text and a
gated feed-forward block. A residual block adds a projection of the time step.

Attention is one kernel (FlashAttention), without a mask. With ``framework.fused`` a group
normalisation and the SiLU behind it are one kernel (NVIDIA's ``group_norm`` of Apex, channels
last), without they are two. Latents and texts come as they are: neither the autoencoder nor the
text encoder is part of the network.
"""

from __future__ import annotations

from mpisim.kernels.operations import Attention, Norm

from ...experiment.models import Cnn
from ..eager_modules import FP32, copy, elementwise
from ..operators import Compute, Layer, Operator, Parameter, Task
from .image_operators import Image, ImageOperators

__all__ = ["unet"]

LATENT = 4
"""Channels of latent images."""
CHANNELS = 320
"""Of the first level."""
MULTIPLES = (1, 2, 4, 4)
"""Channels of the levels, over those of the first."""
ATTENTION_LEVELS = 3
"""Levels, from the first, that have transformer blocks."""
TIME = 4 * CHANNELS
"""Features of a time step."""
HEAD = 64
GROUPS = 32
TEXT, TEXT_WIDTH = 77, 1024
"""Tokens of a text, and their features."""


def unet(m: ImageOperators, model: Cnn) -> list[Layer]:
    """Noisy latents, time steps and texts → loss.

    Parameters
    ----------
    m : ImageOperators
        Makes the operators, in the shapes of one rank.
    model : Cnn
        Of the U-Net family; its `image` is the side of the latents.

    Returns
    -------
    list of Layer
        In the order of execution, one for each residual block with what follows it.
    """
    image = Image(LATENT, model.image)
    operators = [m.images(image), _texts(m), *_time(m)]
    convolution, image = m.convolution(
        "conv in", image, CHANNELS, 3, padding=1, bias=True, first=True
    )
    layers = [Layer("stem", (*operators, convolution), "embedding", m.bytes(image), 0)]
    left = [image]

    for level, multiple in enumerate(MULTIPLES):
        for number in range(model.depth):
            name = f"down {level}.{number}"
            image = _block(m, layers, name, image, multiple * CHANNELS, level < ATTENTION_LEVELS)
            left.append(image)
        if level + 1 < len(MULTIPLES):
            before = m.bytes(image)
            convolution, image = m.convolution(
                f"down {level}", image, image.channels, 3, stride=2, padding=1, bias=True
            )
            left.append(image)
            layers.append(Layer(f"down {level}", (convolution,), "block", m.bytes(image), before))

    before = m.bytes(image)
    middle = [*_residual(m, "middle 0", image, image.channels), *_transformer(m, "middle", image)]
    middle += _residual(m, "middle 1", image, image.channels)
    layers.append(Layer("middle", tuple(middle), "block", before, before))

    for level, multiple in reversed(tuple(enumerate(MULTIPLES))):
        for number in range(model.depth + 1):
            name, other = f"up {level}.{number}", left.pop()
            joined = Image(image.channels + other.channels, image.side)
            # Backward two slices; that of the way down is added to what else comes there.
            slices = (
                elementwise("slice copies", 2 * m.bytes(joined)),
                elementwise("add gradients", 3 * m.bytes(other)),
            )
            first = m.concatenation([image, other], slices)
            attends = level < ATTENTION_LEVELS
            image = _block(m, layers, name, joined, multiple * CHANNELS, attends, first)
        if level:
            before = m.bytes(image)
            image = Image(image.channels, 2 * image.side)
            traffic = before + m.bytes(image)
            larger = Operator(
                "upsampling",
                (elementwise("upsampling", traffic),),
                (elementwise("upsampling backward", traffic),),
            )
            convolution, _ = m.convolution(
                f"up {level}", image, image.channels, 3, padding=1, bias=True
            )
            operators = [larger, convolution]
            layers.append(Layer(f"up {level}", tuple(operators), "block", m.bytes(image), before))

    convolution, out = m.convolution("conv out", image, LATENT, 3, padding=1, bias=True)
    operators = [*_group_norm(m, "norm out", image), convolution, _loss(m, out)]
    layers.append(Layer("head", tuple(operators), "head", 0, m.bytes(image)))
    return layers


def _block(
    m: ImageOperators,
    layers: list[Layer],
    name: str,
    image: Image,
    channels: int,
    attends: bool,
    first: Operator | None = None,
) -> Image:
    """Add the layer of a residual block, and of the transformer block behind it if `attends`."""
    out = Image(channels, image.side)
    operators = [*([first] if first else []), *_residual(m, name, image, channels)]
    if attends:
        operators += _transformer(m, name, out)
    layers.append(Layer(name, tuple(operators), "block", m.bytes(out), m.bytes(image)))
    return out


def _residual(m: ImageOperators, name: str, image: Image, channels: int) -> list[Operator]:
    """Image → image of `channels`: two convolutions, the time step between them, the residual."""
    out = Image(channels, image.side)
    size = m.bytes(out)
    one, _ = m.convolution(f"{name} conv1", image, channels, 3, padding=1, bias=True)
    two, _ = m.convolution(f"{name} conv2", out, channels, 3, padding=1, bias=True)
    shift = Operator(
        f"{name} time",
        (elementwise(f"{name} time", 2 * size),),
        (elementwise(f"{name} time backward", size),),
    )
    found = [
        m.add_gradients(image),
        *_group_norm(m, f"{name} norm1", image),
        one,
        m.activation(f"{name} time silu", m.batch * TIME),
        m.linear(f"{name} time projection", m.batch, TIME, channels),
        shift,
        *_group_norm(m, f"{name} norm2", out),
        two,
    ]
    if image.channels != channels:
        skip, _ = m.convolution(f"{name} skip", image, channels, 1, bias=True, input_kept=True)
        found.append(skip)
    return [*found, m.add(out)]


def _group_norm(m: ImageOperators, name: str, image: Image, *, silu: bool = True) -> list[Operator]:
    """Image → normalised groups of channels, with SiLU if `silu`."""
    rows, columns = m.batch * GROUPS, image.size // GROUPS

    def kernel(backward: bool) -> Norm:
        return Norm(rows, columns, "layer", backward, m.stored)

    norm = _normalisation(m, name, kernel(False), kernel(True), image.channels, m.bytes(image))
    if not silu or m.fused:
        return [norm]
    return [norm, m.activation(f"{name} silu", m.batch * image.size)]


def _normalisation(
    m: ImageOperators, name: str, forward: Norm, backward: Norm, width: int, size: int
) -> Operator:
    parameters = tuple(
        Parameter(f"{name} {what}", width, replicated=True, partial=True)
        for what in ("weight", "bias")
    )
    back: list[Task] = [
        Compute(f"{name} backward", backward),
        elementwise(f"{name} weight gradient", 2 * size, weight=True),
        *m.gradients(parameters, narrow=False),
    ]
    return Operator(name, (Compute(name, forward),), tuple(back), parameters, saved=size)


def _transformer(m: ImageOperators, name: str, image: Image) -> list[Operator]:
    """Pixels as tokens: attention to each other, to the text, a gated feed-forward block."""
    width, tokens = image.channels, image.side**2
    rows, size = m.batch * tokens, m.bytes(image)
    residual = [m.add_gradients(image), m.add(image)]

    def layer_norm(what: str) -> Operator:
        forward, backward = (Norm(rows, width, "layer", back, m.stored) for back in (False, True))
        return _normalisation(m, f"{name} {what}", forward, backward, width, size)

    def linear(what: str, inputs: int, outputs: int, *, bias: bool = True) -> Operator:
        return m.linear(f"{name} {what}", rows, inputs, outputs, bias=bias)

    def text_linear(what: str) -> Operator:
        # The text encoder is frozen.
        count = m.batch * TEXT
        return m.linear(f"{name} {what}", count, TEXT_WIDTH, width, first=True, bias=False)

    def attention(what: str, keys: int) -> Operator:
        heads = width // HEAD

        def kernel(backward: bool) -> Attention:
            return Attention(
                m.batch, heads, heads, tokens, keys, HEAD, HEAD, False, backward, m.dtype
            )

        return Operator(
            f"{name} {what}",
            (Compute(f"{name} {what}", kernel(False)),),
            (Compute(f"{name} {what} backward", kernel(True)),),
            saved=size,
        )

    gate = 2 * m.element * rows * 4 * width
    gelu = Operator(
        f"{name} geglu",
        (elementwise(f"{name} geglu", gate + gate // 2),),
        (elementwise(f"{name} geglu backward", 2 * gate + gate // 2),),
        saved=gate,
    )
    return [
        residual[0],
        *_group_norm(m, f"{name} transformer norm", image, silu=False),
        linear("in", width, width),
        residual[0],
        layer_norm("norm 1"),
        *(linear(f"self {what}", width, width, bias=False) for what in ("q", "k", "v")),
        attention("self-attention", tokens),
        linear("self out", width, width),
        residual[1],
        residual[0],
        layer_norm("norm 2"),
        linear("text q", width, width, bias=False),
        *(text_linear(f"text {what}") for what in ("k", "v")),
        attention("text attention", TEXT),
        linear("text out", width, width),
        residual[1],
        residual[0],
        layer_norm("norm 3"),
        linear("feed-forward in", width, 8 * width),
        gelu,
        linear("feed-forward out", 4 * width, width),
        residual[1],
        linear("out", width, width),
        residual[1],
    ]


def _texts(m: ImageOperators) -> Operator:
    """Copy of the texts' features to the GPU."""
    return Operator("texts", (copy("copy texts", m.element * m.batch * TEXT * TEXT_WIDTH),))


def _time(m: ImageOperators) -> list[Operator]:
    """Time steps → features."""
    return [
        m.linear("time 1", m.batch, CHANNELS, TIME, first=True),
        m.activation("time silu", m.batch * TIME),
        m.linear("time 2", m.batch, TIME, TIME),
    ]


def _loss(m: ImageOperators, image: Image) -> Operator:
    """Predicted and true noise → mean of squares, in fp32."""
    size = m.batch * image.size
    cast = [elementwise("loss cast", (m.element + FP32) * size)] if m.mixed else []
    back = [elementwise("loss cast backward", (m.element + FP32) * size)] if m.mixed else []
    return Operator(
        "loss",
        (*cast, elementwise("squares", 3 * FP32 * size), elementwise("mean", FP32 * size)),
        (elementwise("squares backward", 3 * FP32 * size), *back),
        saved=2 * FP32 * size,
    )

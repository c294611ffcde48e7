"""Training steps of a GPT, a Llama and ResNet-50: their times, and profiles of one step each.

A profile is a Kineto trace and an execution trace of PyTorch, the two files that
``mpisim replay`` takes for a rank.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

from .operators import Clock

COLUMNS = (
    *("gpu", "model", "layers", "hidden", "heads", "batch", "tokens", "vocabulary", "dtype"),
    *("median_us", "p10_us", "p90_us", "repeats"),
)


class Attention(nn.Module):
    """Causal attention, with fewer heads of keys and values if asked for."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, bias: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, hidden // heads
        self.into = nn.Linear(hidden, (heads + 2 * kv_heads) * self.size, bias=bias)
        self.out = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, hidden = x.shape
        counts = [self.heads, self.kv_heads, self.kv_heads]
        parts = self.into(x).split([count * self.size for count in counts], -1)
        q, k, v = (
            part.view(batch, tokens, count, self.size).transpose(1, 2)
            for part, count in zip(parts, counts)
        )
        grouped = self.heads != self.kv_heads
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.out(found.transpose(1, 2).reshape(batch, tokens, hidden))


class GptLayer(nn.Module):
    """Layer norms, attention, and two products with a GELU between."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads, heads, bias=True)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.down(F.gelu(self.up(self.second(x))))


class LlamaLayer(nn.Module):
    """RMS norms, grouped-query attention, and a gated feed-forward network."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        inner = 7 * hidden // 2
        self.first, self.second = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.attention = Attention(hidden, heads, max(1, heads // 4), bias=False)
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class LanguageModel(nn.Module):
    """An embedding, layers, a head, and the loss of the next token."""

    def __init__(
        self, layer: type[nn.Module], layers: int, hidden: int, heads: int, vocabulary: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(layer(hidden, heads) for _ in range(layers))
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        scores = self.head(x[:, :-1]).float().flatten(0, 1)
        return F.cross_entropy(scores, tokens[:, 1:].flatten())


class Bottleneck(nn.Module):
    """A block of ResNet-50 (arXiv:1512.03385), with the stride in its 3 × 3 convolution."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU(True)),
            *(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-50 and its loss; fewer blocks for trying it out."""

    def __init__(self, blocks: tuple[int, ...], classes: int = 1000) -> None:
        super().__init__()
        parts: list[nn.Module] = [
            *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)),
            nn.MaxPool2d(3, 2, 1),
        ]
        inputs = 64
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage
            for index in range(count):
                stride = 2 if stage and not index else 1
                parts.append(Bottleneck(inputs, width, stride))
                inputs = 4 * width
        self.body = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(inputs, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        target = torch.zeros(len(images), dtype=torch.long, device=images.device)
        return F.cross_entropy(self.head(self.body(images)).float(), target)


LANGUAGE = (
    # name, layer, layers, hidden, heads, batch, tokens
    ("gpt-124m", GptLayer, 12, 768, 12, 8, 1024),
    ("gpt-1.3b", GptLayer, 24, 2048, 16, 4, 2048),
    ("llama-1b", LlamaLayer, 16, 2048, 32, 4, 2048),
    ("llama-8b-4-layers", LlamaLayer, 4, 4096, 32, 2, 4096),
)
SMALL = (("gpt-tiny", GptLayer, 2, 64, 2, 1, 32), ("llama-tiny", LlamaLayer, 2, 64, 4, 1, 32))


def training(device: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield rows of `COLUMNS`, without the GPU, and write profiles into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    small = device != "cuda"
    vocabulary = 256 if small else 50304
    for name, layer, layers, hidden, heads, batch, tokens in SMALL if small else LANGUAGE:
        model: nn.Module = LanguageModel(layer, layers, hidden, heads, vocabulary).to(device)
        data = torch.randint(vocabulary, (batch, tokens), device=device)
        shape = {"layers": layers, "hidden": hidden, "heads": heads}
        row = {"model": name, **shape, "batch": batch, "tokens": tokens, "vocabulary": vocabulary}
        yield row | _measure(model, data, device, folder / name)
        del model, data
    model = ResNet((1, 1) if small else (3, 4, 6, 3)).to(device, memory_format=torch.channels_last)
    batch, side = (2, 32) if small else (128, 224)
    images = torch.randn(batch, 3, side, side, device=device)
    name = "resnet-tiny" if small else "resnet-50"
    yield {"model": name, "batch": batch} | _measure(model, images, device, folder / name)


def _measure(model: nn.Module, data: torch.Tensor, device: str, path: Path) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model(data)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    times = Clock(device, budget_ms=3000)(step)
    _profile(step, device, path)
    return {
        "dtype": "bf16",
        "median_us": round(times.median, 1),
        "p10_us": round(times.p10, 1),
        "p90_us": round(times.p90, 1),
        "repeats": times.repeats,
    }


def _profile(step: Callable[[], None], device: str, path: Path) -> None:
    """Write PATH_kineto.json.gz and PATH_et.json.gz of one step."""
    graph, trace = (path.parent / f"{path.name}_{kind}.json" for kind in ("et", "kineto"))
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    observer = ExecutionTraceObserver().register_callback(str(graph))
    with profile(activities=activities, record_shapes=True, execution_trace_observer=observer) as p:
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        p.step()
    p.export_chrome_trace(str(trace))
    for file in (graph, trace):
        if file.exists():
            file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes(), 9))
            file.unlink()

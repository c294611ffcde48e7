"""MPT as llm-foundry 0.5 trains it with Composer's FSDP1, its layers written anew.

Arguments: LAYERS WIDTH HEADS WORDS TOKENS BATCH MICRO_BATCHES amp|pure none|full.

FlashAttention in Triton and the fused cross-entropy of flash-attn are operators of shapes alone.
Sources, under github:mosaicml/llm-foundry: llmfoundry/models/mpt/modeling_mpt.py, models/layers;
scripts/train/benchmarking/submit_benchmarks.py: checkpoints without reentry, limit_all_gathers.
Under github:mosaicml/composer: optim/decoupled_weight_decay.py; _eval_train_metrics of
trainer/trainer.py and LanguageCrossEntropy of metrics/nlp.py; use_orig_params, and checkpoints that
stop early (2.1), which PyTorch 1.13.1 of the benchmark's image, of the "pure" runs, did not have.
"""

import functools
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn import functional

LAYERS, WIDTH, HEADS, WORDS, TOKENS, BATCH, MICRO_BATCHES = map(int, sys.argv[1:8])
PURE, FULL = sys.argv[8] == "pure", sys.argv[9] == "full"

library = torch.library.Library("flash_attn_triton", "DEF")
library.define("forward(Tensor q, Tensor k, Tensor v, bool causal) -> (Tensor, Tensor)")
library.define(
    "backward(Tensor g, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, bool causal)"
    " -> (Tensor, Tensor, Tensor)"
)
loss_library = torch.library.Library("xentropy", "DEF")
loss_library.define("forward(Tensor scores, Tensor words) -> (Tensor, Tensor)")
loss_library.define("backward(Tensor g, Tensor scores, Tensor lse, Tensor words) -> Tensor")


@torch.library.impl(library, "forward", "Meta")
def attend(q, k, v, causal):
    batch, tokens, heads, _ = q.shape
    return torch.empty_like(q), q.new_empty((batch, heads, tokens), dtype=torch.float32)


@torch.library.impl(library, "backward", "Meta")
def attend_backward(g, q, k, v, out, lse, causal):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


@torch.library.impl(loss_library, "forward", "Meta")
def entropy(scores, words):
    rows = scores.new_empty(scores.shape[:1], dtype=torch.float32)
    return rows, torch.empty_like(rows)


@torch.library.impl(loss_library, "backward", "Meta")
def entropy_backward(g, scores, lse, words):
    return torch.empty_like(scores)


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        out, lse = torch.ops.flash_attn_triton.forward(q, k, v, True)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, g):
        return torch.ops.flash_attn_triton.backward(g, *ctx.saved_tensors, True)


class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores, words):
        losses, lse = torch.ops.xentropy.forward(scores, words)
        ctx.save_for_backward(scores, lse, words)
        return losses

    @staticmethod
    def backward(ctx, g):
        scores, lse, words = ctx.saved_tensors
        return torch.ops.xentropy.backward(g.contiguous(), scores, lse, words), None


class LowPrecisionNorm(nn.LayerNorm):
    def forward(self, x):
        half = (each.to(torch.bfloat16) for each in (self.weight, self.bias))
        with torch.autocast("cuda", enabled=False):
            return functional.layer_norm(
                x.to(torch.bfloat16), self.normalized_shape, *half, self.eps
            )


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.Wqkv, self.out_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.Wqkv(x).chunk(3, dim=2)
        q, k, v = (each.unflatten(2, (HEADS, -1)) for each in (q, k, v))
        return self.out_proj(FlashAttention.apply(q, k, v).flatten(2))


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down_proj(functional.gelu(self.up_proj(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.attn = LowPrecisionNorm(WIDTH), Attention()
        self.norm_2, self.ffn = LowPrecisionNorm(WIDTH), Feed()

    def forward(self, x):
        x = x + self.attn(self.norm_1(x))
        return x + self.ffn(self.norm_2(x))


class MPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm_f = LowPrecisionNorm(WIDTH)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        x = self.wte(tokens) + self.wpe(places)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm_f(x), self.wte.weight)


class DecoupledAdamW(torch.optim.Optimizer):
    def __init__(self, params) -> None:
        super().__init__(params, {"lr": 1e-4})

    @torch.no_grad()
    def step(self):
        for param in (each for group in self.param_groups for each in group["params"]):
            if param.grad is None or not param.numel():
                continue
            state = self.state[param]
            if not state:
                state["mean"], state["square"] = torch.zeros_like(param), torch.zeros_like(param)
            param.mul_(1 - 1e-5)
            state["mean"].mul_(0.9).add_(param.grad, alpha=0.1)
            state["square"].mul_(0.95).addcmul_(param.grad, param.grad, value=0.05)
            away = (state["square"].sqrt() / 0.9).add_(1e-8)
            param.addcdiv_(state["mean"], away, value=-1e-4)


dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
with torch.device("meta"):
    model = MPT()
half, wide = torch.bfloat16, torch.float32
model = FullyShardedDataParallel(
    model,
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    mixed_precision=MixedPrecision(half, half if PURE else wide, half if PURE else wide),
    backward_prefetch=BackwardPrefetch.BACKWARD_POST,
    limit_all_gathers=True,
    use_orig_params=not PURE,
    device_id=torch.cuda.current_device(),
    param_init_fn=lambda module: module.to_empty(device="cuda", recurse=False),
)
if FULL:
    wrapped = functools.partial(checkpoint_wrapper, early_stop=not PURE)
    apply_activation_checkpointing(model, wrapped, lambda module: isinstance(module, Block))
optimizer = DecoupledAdamW(model.parameters())
cast = functools.partial(torch.autocast, "cuda", dtype=torch.bfloat16)
metrics = [  # LanguageCrossEntropy and LanguagePerplexity, of every micro-batch: use_train_metrics
    [torch.zeros((), device="cuda"), torch.zeros((), dtype=torch.int64, device="cuda")]
    for _ in range(2)
]
while True:
    optimizer.zero_grad()
    for _ in range(MICRO_BATCHES):
        tokens = torch.randint(0, WORDS, (BATCH, TOKENS)).cuda()
        words = tokens.roll(-1).view(-1)
        with cast():
            scores = model(tokens).view(-1, WORDS)
            loss = CrossEntropy.apply(scores, words).mean()
        (loss / MICRO_BATCHES).backward()
        with torch.no_grad(), cast():
            for metric in metrics:
                metric[0] += functional.cross_entropy(scores, words, reduction="sum")
                metric[1] += (words != -100).sum()
        del scores
    model.clip_grad_norm_(1.0)
    optimizer.step()

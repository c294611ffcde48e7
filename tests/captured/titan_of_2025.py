"""Llama 2 and 3 for torchtitan 0.1.0 of 2025: --experimental.custom_import titan_of_2025.

Tokens are drawn. RMS norms are the operators that PyTorch ran until 2.8 (rms_norm_symint of
aten/src/ATen/native/layer_norm.cpp); 2.9 brought a kernel for them. drawn_llama3_of_2024 computes
the loss without torch.compile, which train.py did until 2025 ("compiling loss function causes CUDA
errors, turning off for now").
"""

import torch
from torch.distributed.checkpoint.stateful import Stateful
from torch.nn import functional
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.components.tokenizer import Tokenizer
from torchtitan.models import llama3
from torchtitan.models.llama3 import TransformerModelArgs
from torchtitan.protocols.train_spec import TrainSpec, register_train_spec


def rms_norm(x, normalized_shape, weight=None, eps=None):
    wide = x.float()
    over = tuple(range(-len(normalized_shape), 0))
    scale = wide.pow(2).mean(over, keepdim=True).add_(eps or torch.finfo(x.dtype).eps).rsqrt()
    out = wide.mul(scale)
    return (out if weight is None else out.mul(weight)).type_as(x)


functional.rms_norm = rms_norm


class NoTokenizer(Tokenizer):
    def __init__(self, words):
        super().__init__()
        self._n_words = words

    def encode(self, *args, **kwargs):
        return []

    def decode(self, *args, **kwargs):
        return ""


class DrawnTokens(Stateful):
    def __init__(self, job):
        self.shape = (job.training.local_batch_size, job.training.seq_len)

    def __iter__(self):
        while True:
            tokens = torch.randint(0, 2048, self.shape)
            yield {"input": tokens}, tokens

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


LLAMA_2 = {
    "13B": TransformerModelArgs(dim=5120, n_layers=40, n_heads=40),
    "70B": TransformerModelArgs(
        dim=8192,
        n_layers=80,
        n_heads=64,
        n_kv_heads=8,
        ffn_dim_multiplier=1.3,
        multiple_of=4096,
    ),
}

LLAMA_3 = llama3.llama3_configs
of_2025 = llama3.build_cross_entropy_loss

for name, sizes, words, loss in (
    ("llama2", LLAMA_2, 32000, of_2025),
    ("llama3", LLAMA_3, 128256, of_2025),
    ("llama3_of_2024", LLAMA_3, 128256, lambda job_config: cross_entropy_loss),
):
    register_train_spec(
        TrainSpec(
            name=f"drawn_{name}",
            cls=llama3.Transformer,
            config=sizes,
            parallelize_fn=llama3.parallelize_llama,
            pipelining_fn=llama3.pipeline_llama,
            build_optimizers_fn=llama3.build_optimizers,
            build_lr_schedulers_fn=llama3.build_lr_schedulers,
            build_dataloader_fn=lambda job_config, **rest: DrawnTokens(job_config),
            build_tokenizer_fn=lambda job_config, words=words: NoTokenizer(words),
            build_loss_fn=loss,
        )
    )

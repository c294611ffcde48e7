"""Configurations of torchtitan with tokens that are drawn: --module titan --config llama3_8b."""

from dataclasses import dataclass

import torch
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.components.validate import Validator
from torchtitan.models.llama3 import config_registry
from torchtitan.tools.profiler import Profiler


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, *, tokenizer_path):
        super().__init__()

    def encode(self, *args, **kwargs):
        return []

    def decode(self, *args, **kwargs):
        return ""

    def get_vocab_size(self):
        return 128256


class DrawnTokens(BaseDataLoader):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, *, seq_len, local_batch_size, **kwargs):
        self.shape = (local_batch_size, seq_len)

    def __iter__(self):
        while True:
            tokens = torch.randint(0, 2048, self.shape)
            positions = torch.arange(self.shape[1]).expand(self.shape).contiguous()
            yield {"input": tokens, "positions": positions}, tokens

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def drawn(config, layers=None):
    config.tokenizer = NoTokenizer.Config()
    config.dataloader = DrawnTokens.Config()
    config.checkpoint = CheckpointManager.Config(enable=False)
    config.validator = Validator.Config(enable=False)
    config.profiler = Profiler.Config(enable_profiling=False)
    config.metrics.enable_tensorboard = False
    config.debug.enable_structured_logging = False
    if layers is not None:
        del config.model_spec.model.layers[layers:]
    return config


def llama3_8b():
    return drawn(config_registry.llama3_8b())


def llama3_8b_of_2_layers():
    return drawn(config_registry.llama3_8b(), 2)


def llama3_70b():
    return drawn(config_registry.llama3_70b())


def llama3_405b():
    return drawn(config_registry.llama3_405b())

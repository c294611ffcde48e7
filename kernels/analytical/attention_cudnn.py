"""cuDNN: the formula of :mod:`.attention` with constants of its own."""

from .attention import CONSTANTS, columns, seconds, shares

__all__ = ["CONSTANTS", "FAMILY", "columns", "seconds", "shares"]

FAMILY = "attention_cudnn"

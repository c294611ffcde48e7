"""cuDNN: the formula of :mod:`.attention` with constants of its own, and two more.

On Blackwell exponentials take as long as products of heads of 128, and run beside them: forward the
longer of the two counts, and part of the shorter. On the way back, where they do not, their share
is another; that of fp8 grows with what is cast to it of each score.
"""

from .attention import CONSTANTS as COMMON
from .attention import columns, seconds, shares
from .family import Constant

__all__ = ["CONSTANTS", "FAMILY", "columns", "seconds", "shares"]

FAMILY = "attention_cudnn"

CONSTANTS = (
    *COMMON,
    Constant("softmax_back", 0.9, 0.0, 8.0, "softmax on the way back"),
    Constant("hidden", 0.2, 0.0, 1.0, "share of the shorter of products and softmax, forward"),
)

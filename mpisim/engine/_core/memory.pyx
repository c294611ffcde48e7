"""Arrays as the compiled engine modules take them: see also memory.pxd."""

import numpy as np


def padded(array):
    """Return the array, or one element if it has none, so that the first has an address."""
    if not len(array):
        array = np.zeros((1, *array.shape[1:]), array.dtype)
    return np.ascontiguousarray(array)


def offsets(counts):
    """Sizes of consecutive parts → where each begins, and the total; int64."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])

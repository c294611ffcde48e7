"""The user's own PyTorch script, run without a GPU → what its ranks would issue → a program.

Read in this order:

- `recording`: what one rank leaves behind; `job`: what its process is told.
- `recorder`: streams, places, waits, launches and communications → items; `user_values`: what is
  taken for values that the script asks for.
- `device`: the GPU that the script sees.
- `cuda`, `autograd`, `distributed` with `process_groups`, `data_parallel`, `attention`, `compiled`,
  `dispatch` with `composite` and `data_dependent`: stand-ins of parts of PyTorch, which write
  into the recorder; `values`, `storages`, `parameters`, `device_memory`: what tensors hold that
  have no memory, what they are, and what they would take. They import torch, and only `process`
  imports them.
- `stand_ins`: libraries that need a GPU to be imported, or call kernels of their own.
- `origins`: which module, autograd node and parameters an item belongs to, kept by `kept_step` for
  `mpisim.extrapolate`.
- `process`: the process of one rank: stand-ins, then the script.
- `ranks`: which ranks are captured for which others.
- `lower`: recordings → a program; `memory`: recordings → what the allocator makes of them.
"""

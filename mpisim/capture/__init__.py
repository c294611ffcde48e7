"""The user's own PyTorch script, run without a GPU → what its ranks would issue → a program.

Read in this order:

- `recording`: what one rank leaves behind; `job`: what its process is told.
- `recorder`: streams, places, waits, launches and communications → items.
- `cuda`, `distributed`, `data_parallel`, `attention`, `dispatch`: stand-ins of PyTorch's parts,
  which write into the recorder. They import torch, and only `process` imports them.
- `process`: the process of one rank: stand-ins, then the script.
- `ranks`: which ranks are captured for which others.
- `lower`: recordings → a program.
"""

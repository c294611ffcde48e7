"""Traces → what they would be at another scale.

From a trace of several ranks, read in this order:

- `parallel_structure`: which communicators a job has, and the grid of axes that they form.
- `parallel_network`: NCCL's model, calibrated by what the recording measured.
- `parallel_growth`: the program of the job with more or fewer data-parallel replicas, or on another
  network.
- `parallel_shards`: the optimizer's kernels with shares of another size.
- `parallel_optimizer`: the optimizer sharded over the replicas, or no longer.
- `parallel_rounds`: rounds of a pipeline repeated for more micro-batches.
- `parallel_kernels`: kernels on another GPU.
- `parallel`: both together, from the files of a job to what is to be simulated, with what it says
  of itself.
"""

"""Libraries of kernels that a machine without a GPU cannot run → modules that record their calls.

Their kernels are compiled extensions, which take addresses of memory that captured tensors do not
have. In the captured process, and only there, ``import`` finds stand-ins of the same names: they
have the classes and functions that training uses, with the arguments, results and communications of
one version of the library, and record each kernel as an operator of `mpisim.operators.table`.

A stand-in is a module like any other: it imports PyTorch, which is there in the captured process,
has the library's classes and functions, and records by its constant `launch`, a `Launcher`. What is
recorded goes where `install` says: a process captures one rank.

Read in this order:

- `library`: what a stand-in is, how ``import`` finds it, and how a call is recorded.
- `multi_tensor`, `norms`: kernels that several libraries have.
- `flash_attention`, `apex`, `deepspeed`, `deep_ep` with `deep_ep_streams` and
  `deep_ep_low_latency`: a library each.
- `fp8`, `products`, `linears`, `split_parameters`, `experts`, `context_exchange`,
  `dot_product_attention`, `transformer_layers`, `whole_layers`, `transformer_engine`: Transformer
  Engine, the last with the names that programs import.
- `after_import`: what is changed in libraries that run as they are installed.
- `install`: all of them, in place.
"""

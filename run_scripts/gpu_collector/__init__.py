"""What ``collect_gpu.py`` measures on a GPU. Needs PyTorch to measure, and nothing of mpisim.

``sweep``
    Which kernels, as plain data.
``operators``
    The call of PyTorch for each, and its time.
``overlap``
    Kernels beside a kernel that moves data as communication does.
``launches``
    What a launch costs.
``training``
    Training steps with traces.
"""

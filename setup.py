"""What pyproject.toml cannot say: the list of packages and the compiled modules.

Both are found by looking, so a new subpackage or a new ``.pyx`` beside the others needs no edit
here. Everything else about the distribution stands in ``pyproject.toml``.
"""

import os
from pathlib import Path

from setuptools import Extension, find_packages, setup

# Top-level folders that are installed as subpackages of mpisim (the mapping itself is in
# pyproject.toml), so that nothing called "kernels" lands in site-packages.
MAPPED = ("kernels", "topo", "data")

CORES = (
    Path("mpisim/engine/_core"), Path("mpisim/overlap/_core"), Path("mpisim/workloads/_core"),
)  # fmt: skip

packages = find_packages(include=["mpisim", "mpisim.*"])
for name in MAPPED:
    packages.append(f"mpisim.{name}")
    packages.extend(f"mpisim.{name}.{sub}" for sub in find_packages(name))

extensions = [
    Extension(
        ".".join(path.with_suffix("").parts),
        [path.as_posix()],
        # No -march: a build must run on every node of a cluster. No contraction of a*b+c into a
        # fused operation: results must not depend on the compiler's mood. No debugging symbols:
        # they take longer than the code.
        extra_compile_args=["-O3", "-ffp-contract=off", "-g0"],
        include_dirs=[core.as_posix()],
        depends=[header.as_posix() for header in core.glob("*.h")],
    )
    for core in CORES
    for path in sorted(core.glob("*.pyx"))
]
processes = os.cpu_count() or 1
if extensions:
    from Cython.Build import cythonize

    extensions = cythonize(
        extensions, language_level=3, build_dir="build/cython", nthreads=processes
    )

setup(
    packages=packages,
    ext_modules=extensions,
    options={"build_ext": {"parallel": processes}},
)

"""What pyproject.toml cannot say: the list of packages and the compiled modules.

Both are found by looking, so a new subpackage or a new ``.pyx`` beside the others needs no edit
here. Everything else about the distribution stands in ``pyproject.toml``.
"""

import os
import runpy
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
built = runpy.run_path(str(ROOT / "mpisim/built.py"))  # importing it would need what mpisim needs
kept_tables = runpy.run_path(str(ROOT / "data/kept_tables.py"))
sources = [path.relative_to(ROOT).as_posix() for path in built["sources"](ROOT)]

# Top-level folders that are installed as subpackages of mpisim (the mapping itself is in
# pyproject.toml), so that nothing called "kernels" lands in site-packages.
MAPPED = ("kernels", "topo", "data")

packages = find_packages(include=["mpisim", "mpisim.*"])
for name in MAPPED:
    packages.append(f"mpisim.{name}")
    packages.extend(f"mpisim.{name}.{sub}" for sub in find_packages(name))


class Build(build_ext):
    """Compile, and parse what constants are read from.

    The digest of the sources is left beside binaries that stay in the checkout.
    """

    def run(self) -> None:
        stamp = ROOT / built["STAMP"]
        here = self.inplace or getattr(self, "editable_mode", False)
        if here:
            stamp.unlink(missing_ok=True)
        super().run()
        kept_tables["keep"](ROOT / "data" if here else Path(self.build_lib) / "mpisim/data")
        if here:
            stamp.write_text(built["digest"](ROOT))


def module_of(path: str) -> str:
    """Path of a source, from here → the name of its module."""
    name = path.removesuffix(".pyx").replace("/", ".")
    return f"mpisim.{name}" if name.partition(".")[0] in MAPPED else name


extensions = [
    Extension(
        module_of(path),
        [path],
        # No -march: a build must run on every node of a cluster. No contraction of a*b+c into a
        # fused operation: results must not depend on the compiler's mood. No debugging symbols:
        # they take longer than the code.
        extra_compile_args=["-O3", "-ffp-contract=off", "-g0"],
        include_dirs=[os.path.dirname(path)],
        depends=[header for header in sources if header.endswith(".h")],
    )
    for path in sources
    if path.endswith(".pyx")
]
processes = os.cpu_count() or 1

setup(
    packages=packages,
    ext_modules=cythonize(
        extensions, language_level=3, build_dir="build/cython", nthreads=processes
    ),
    cmdclass={"build_ext": Build},
    options={"build_ext": {"parallel": processes}},
)

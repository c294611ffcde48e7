"""The imports, those for type checking included: no circle, no arrow up, no unused export."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

LAYERS = (
    ("data",),
    ("base",),
    ("mpi",),
    ("kernels", "topo", "program"),
    ("schedules", "operators"),
    ("experiment",),
    ("workloads",),
    ("engine",),
    ("overlap", "results", "traces", "memory"),
    ("report", "formats", "capture"),
    ("prediction", "replay"),
    ("cost", "extrapolate"),
    ("simulate", "sensitivity", "export", "record"),
    ("decentralized", "job"),
    ("validate", "search", "page"),
    ("cli",),
)
"""Parts of mpisim from the ground up. A part imports from lower layers and from its own; parts of
one layer do not import each other unless `BESIDE` lists them."""

BESIDE = {("formats", "traces")}

FRONT = ("mpisim", "mpisim.__main__", "mpisim.built")
"""The door of the library (it names what lies inside), the command, and what set-up runs alone."""

MAPPED = {"kernels": "mpisim.kernels", "topo": "mpisim.topo", "data": "mpisim.data"}


def name_of(path: Path) -> str:
    """Path of a source file → name of its module."""
    first, *rest = path.relative_to(REPOSITORY).with_suffix("").parts
    parts = [MAPPED.get(first, first), *rest]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    name_of(path): path
    for folder in ("mpisim", "kernels", "topo", "data")
    for suffix in ("py", "pyx", "pxd")
    for path in sorted((REPOSITORY / folder).rglob(f"*.{suffix}"))
}

_WORD = re.compile(r"[A-Za-z_]\w*")

_CYTHON = re.compile(r"^\s*from\s+(\.*)([\w.]*)\s+c?import\s+([\w, ]*)", re.M)


def sources() -> list[Path]:
    """Return every source file: of the product, its tests and its scripts."""
    folders = (REPOSITORY / each for each in ("tests", "run_scripts"))
    return [*MODULES.values(), *(path for each in folders for path in sorted(each.rglob("*.py")))]


def statements(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Source file → (level, module, names) of every import in it, wherever it stands."""
    text = path.read_text()
    if path.suffix != ".py":
        for dots, module, names in _CYTHON.findall(text):
            yield len(dots), module, [name.split()[0] for name in names.split(",") if name.strip()]
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name, []


def imports(module: str, path: Path) -> set[str]:
    """Return the modules of mpisim that a module imports."""
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    found = set()
    for level, target, names in statements(path):
        if level:
            base = package.split(".")[: len(package.split(".")) - level + 1]
            target = ".".join([*base, *([target] if target else [])])
        found.update(
            each if each in MODULES else target for each in (f"{target}.{name}" for name in names)
        )
        found.add(target)
    return {each for each in found if each in MODULES and each != module} - {package, "mpisim"}


@pytest.fixture(scope="module")
def graph() -> nx.DiGraph:
    """Return the imports of every module: each file is parsed, which takes seconds."""
    return nx.DiGraph(
        (module, target) for module, path in MODULES.items() for target in imports(module, path)
    )


def exported(tree: ast.Module) -> list[str]:
    """Module → names in its `__all__`; none where it has none or computes it."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def annotations(tree: ast.Module) -> set[str]:
    """Module → words of the types of its functions' arguments and results, and of its fields."""
    types = [
        getattr(node, field)
        for node in ast.walk(tree)
        for field in ("annotation", "returns")
        if getattr(node, field, None) is not None
    ]
    return {word for each in types for word in _WORD.findall(ast.unparse(each))}


def part_of(module: str) -> str:
    """Name of a module → the part of mpisim it belongs to."""
    return module.split(".")[1]


def test_there_is_no_circle(graph: nx.DiGraph) -> None:
    circles = [sorted(each) for each in nx.strongly_connected_components(graph) if len(each) > 1]
    assert circles == []


def test_every_part_has_its_layer() -> None:
    layered = {part for layer in LAYERS for part in layer}
    assert {part_of(module) for module in MODULES if module not in FRONT} == layered


@pytest.mark.parametrize("part", [part for layer in LAYERS for part in layer])
def test_no_arrow_goes_up(part: str, graph: nx.DiGraph) -> None:
    height = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    up = [
        f"{module} imports {target}"
        for module, target in graph.edges
        if module not in FRONT and target not in FRONT
        if part_of(module) == part != part_of(target)
        if height[part_of(target)] >= height[part]
        if (part, part_of(target)) not in BESIDE
    ]
    assert up == []


@pytest.mark.parametrize("part", ["kernels", "topo"])
def test_top_level_folders_need_nothing_of_mpisim_but_its_base(
    part: str, graph: nx.DiGraph
) -> None:
    needed = {
        part_of(target)
        for module, target in graph.edges
        if module.startswith(f"mpisim.{part}.") or module == f"mpisim.{part}"
    }
    assert needed <= {part, "base", "data"}


def test_what_a_module_exports_is_used() -> None:
    words = {path: set(_WORD.findall(path.read_text())) for path in sources()}
    holders = Counter(word for found in words.values() for word in found)
    unused = [
        f"{path.relative_to(REPOSITORY)}: {name}"
        for path in words
        if path.suffix == ".py"
        for tree in [ast.parse(path.read_text())]
        for name in exported(tree)
        if holders[name] == 1 and name not in annotations(tree)
    ]
    assert unused == []

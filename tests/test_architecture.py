"""Allowed imports between packages, read from the syntax trees."""

import ast
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from conftest import ROOT
from helpers import output_of

PACKAGES = ("understudy", "models", "envs", "control")
OURS = (*PACKAGES, "trainer")
SOURCES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py")) + [ROOT / "trainer.py"]
# Package -> packages and modules of this project that it may import.
ALLOWED = {
    "understudy": ("understudy",),
    "models": ("models", "understudy"),
    "envs": ("envs", "understudy", "models.compiled", "models.machine", "models.proxies")
    + ("models.spaces", "models.state", "models.settings", "models.streams"),
    "control": ("control", "envs", "models", "understudy"),
    "trainer": ("control", "envs", "models"),
}
# Packages of control/; each imports only from packages before it.
LAYERS = ("cli", "storage", "loops", "films", "evolution", "reports", "lightning", "commands", "learn")
# Module -> beginnings of the only paths that may import it.
IMPORTERS = {
    "ray": ("control/commands/tune.py", "control/evolution/cluster.py"),
    "optuna": ("control/commands/tune.py", "control/reports/search.py"),
    "gymnasium": tuple(f"envs/{name}.py" for name in ("gymnasium_adapter", "wrappers", "names", "tensor_gym"))
    + ("control/loops/recordings.py",)
    + tuple(f"understudy/{name}.py" for name in ("__init__", "env", "program", "proxy", "rewards")),
    "mujoco": ("envs/gymnasium_adapter.py", "envs/names.py"),
    "vizdoom": ("envs/gymnasium_adapter.py", "envs/wrappers.py", "envs/names.py"),
    "numba": ("models/machine.py", "models/vectors.py", "control/loops/compiled.py", "control/lightning/lean.py"),
    "lightning": (),  # a second copy of pytorch_lightning's classes
    "pytorch_lightning": ("control/lightning/", "control/commands/train.py", "control/commands/trials.py"),
    "trainer": (),
}


@dataclass(frozen=True)
class Import:
    path: str
    line: int
    module: str
    in_function: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.module}"


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def syntax_tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: Path, types: bool = False) -> list[Import]:
    """Every import statement of a file, `from a import b` as a.b; with ``types`` also those for type checkers."""

    def visit(node: ast.AST, in_function: bool) -> Iterator[Import]:
        if isinstance(node, ast.expr):  # which holds no statements
            return
        if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(relative(path), node.lineno, alias.name, in_function)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                package = path.relative_to(ROOT).parts[: -node.level]
                module = ".".join([*package, *filter(None, [node.module])])
            else:
                module = str(node.module)
            for alias in node.names:
                yield Import(relative(path), node.lineno, f"{module}.{alias.name}", in_function)
        inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    return list(visit(syntax_tree(path), False))


@functools.cache
def all_imports() -> list[Import]:
    return [statement for path in SOURCES if path.exists() for statement in imports(path)]


def test_packages_import_only_allowed_packages() -> None:
    def is_allowed(statement: Import) -> bool:
        package = statement.path.split("/")[0].removesuffix(".py")
        return any(within(statement.module, allowed) for allowed in ALLOWED[package])

    our_imports = [statement for statement in all_imports() if statement.module.split(".")[0] in OURS]
    assert not [str(statement) for statement in our_imports if not is_allowed(statement)]


def test_packages_of_control_are_layered() -> None:
    control_imports = [
        statement
        for path in SOURCES
        if relative(path).startswith("control/")
        for statement in imports(path, types=True)
    ]
    upward = [
        statement for statement in control_imports
        if statement.module.split(".")[0] == "control" and statement.path.split("/")[1] in LAYERS
        and statement.module.split(".")[1] not in LAYERS[: LAYERS.index(statement.path.split("/")[1]) + 1]
    ]  # fmt: skip
    assert not [str(statement) for statement in upward]


def test_imports_have_no_cycles() -> None:
    graph: dict[str, set[str]] = {relative(path): set() for path in SOURCES}
    for path in SOURCES:
        for statement in imports(path, types=True):
            for module in (statement.module, statement.module.rpartition(".")[0]):
                file = f"{module.replace('.', '/')}.py"
                if statement.path in graph and file in graph and file != statement.path:
                    graph[statement.path].add(file)
    TopologicalSorter(graph).prepare()  # CycleError names the files


def test_searches_import_no_kind_of_proxy() -> None:
    """A new kind is a folder of models/proxies/ and a file of envs/."""
    kinds = [folder.name for folder in (ROOT / "models/proxies").iterdir() if (folder / "config.py").exists()]
    assert kinds
    packages = [f"{package}.{kind}" for kind in kinds for package in ("models.proxies", "envs")]
    general = ("control/evolution/", "control/lightning/", "control/loops/", "envs/make")
    statements = [statement for statement in all_imports() if statement.path.startswith(general)]
    assert not [str(statement) for statement in statements if any(within(statement.module, p) for p in packages)]


@pytest.mark.parametrize("module", IMPORTERS)
def test_external_modules_have_few_importers(module: str) -> None:
    module_imports = [statement for statement in all_imports() if within(statement.module, module)]
    assert not [str(statement) for statement in module_imports if not statement.path.startswith(IMPORTERS[module])]


def test_ray_is_imported_inside_functions() -> None:
    ray_imports = [statement for statement in all_imports() if within(statement.module, "ray")]
    assert not [str(statement) for statement in ray_imports if not statement.in_function]


def test_understudy_needs_three_libraries() -> None:
    """A file from the Hugging Face Hub needs a fourth, which only the function that downloads it imports."""
    allowed = {*sys.stdlib_module_names, "understudy", "numpy", "gymnasium", "safetensors"}
    of_it = [statement for statement in all_imports() if statement.path.startswith("understudy/")]
    hub = [statement for statement in of_it if statement.module.startswith("huggingface_hub")]
    assert [(statement.path, statement.in_function) for statement in hub] == [("understudy/files.py", True)]
    of_it = [statement for statement in of_it if statement not in hub]
    assert of_it and not [str(statement) for statement in of_it if statement.module.split(".")[0] not in allowed]


def test_evaluations_and_workers_start_without_lightning() -> None:
    """Nor do they import torch's compiler or, with one worker, Ray; each takes seconds."""
    code = """
import sys
import control.commands.evaluate, control.evolution.cluster, control.loops.compiled
from models.optim import Adam
from models.proxies.synthetic.config import Config
from models.registry import family
import torch
adam = Adam([weights := torch.ones(3, requires_grad=True)], lr=0.1)
weights.sum().backward()
adam.step(), adam.zero_grad()
config = Config(inner_steps=60, test_episodes=2, max_steps=20, proxy_hidden_size=17, compiled=False)
job = (config, "DDQN", family("DDQN").config(batch_size=9), "cartpole-200")
control.evolution.cluster.make_workers(job).run(None, [1], inner_steps=3)
slow = {"pytorch_lightning", "lightning_fabric", "torchmetrics", "torch._dynamo", "ray", "tensorboard"}
print(sorted(slow & sys.modules.keys()))
"""
    assert output_of(code) == "[]\n"

"""Checks which unit imports which, from the source alone (docs/architecture.md has the layers).

A *unit* is a folder of an app, or a module at the app's root. Each unit has a layer and imports its own layer and lower
layers only, and no two units import each other, directly or through others. Nor do two folders below a unit. The
modules of the HTTP client, which is a library of its own, do not import each other in a cycle either, not even for type
checkers.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

APPS = ("subscriptions", "deliveries")

#: The cellar: what every part may import of `pushhub`. The rest is the roof, which only `pushhub` imports.
OPEN_TO_ALL = frozenset({"common"})

#: The units of each app by layer, lowest first.
LAYERS: dict[str, tuple[frozenset[str], ...]] = {
    "subscriptions": (
        frozenset({"schemarules", "transforms"}),
        frozenset({"models", "signals"}),
        frozenset({"selectors", "resources", "quotas", "paging"}),
        frozenset({"iam", "identity"}),
        frozenset({"audit", "services"}),
        frozenset({"admin", "api", "cli", "console", "management", "rpc", "tasks"}),
        frozenset({"apps", "checks", "receivers", "urls"}),
    ),
    "deliveries": (
        frozenset({"rules"}),
        frozenset({"client", "models"}),
        frozenset({"store"}),
        frozenset({"backlog"}),
        frozenset({"telemetry"}),
        frozenset({"activity", "publish"}),
        frozenset({"deadletters", "pipeline", "pull", "retention", "transforming"}),
        frozenset({"push"}),
        frozenset({"backup", "diagnosis", "inspection"}),
        frozenset({"admin", "api", "management", "rpc", "tasks"}),
        frozenset({"apps", "receivers"}),
    ),
}
SURFACES = frozenset({"admin", "api", "cli", "console", "management", "rpc", "tasks"})

#: The units of the control plane that the data plane may import, and those that only its surfaces may import.
OPEN_TO_DELIVERIES = frozenset(
    {"audit", "iam", "identity", "models", "quotas", "resources", "selectors", "services", "signals", "transforms"}
)
OPEN_TO_SURFACES = frozenset({"api", "console", "paging", "rpc"})

#: Pure modules and folders get the clock, the dice and the data as arguments.
PURE = (
    "deliveries.rules",
    "subscriptions.schemarules",
    *(
        f"subscriptions.resources.{name}"
        for name in ("bounds", "descriptors", "endpoints", "fields", "filters", "masks")
    ),
)
IMPURE = frozenset(
    {"django", "rest_framework", "redis", "celery", "kombu", "requests", "socket", "asyncio", "time", "random"}
)
#: What a pure module may import of PushHub.
OPEN_TO_PURE = ("pushhub.common", *PURE)
#: The HTTP client knows neither Django nor Celery, and of PushHub only what is pure.
CLIENT = "deliveries.client"
#: The only module that may import the HTTP client.
CLIENT_ADAPTER = "deliveries.push.sending.httpclient"
#: Spark's executors run without Django and Redis.
TRANSFORMS = ("deliveries.telemetry.counting.arrowsums", "deliveries.telemetry.journal.columns")
FRAMEWORKS = frozenset({"django", "redis", "celery", "kombu", "rest_framework"})


@dataclass(frozen=True)
class Import:
    """`importer` imports `imported`, both as dotted module names."""

    importer: str
    imported: str
    line: int


@functools.cache
def imports_of(
    importer: str, source: str, *, is_package: bool = False, for_type_checkers: bool = False
) -> tuple[Import, ...]:
    """Return every import in a module's source, at any depth.

    Imports that only a type checker sees are left out unless `for_type_checkers` is set. Several checks ask for the
    same module, and to parse it takes most of their time.
    """
    return tuple(_imports_of(importer, source, is_package=is_package, for_type_checkers=for_type_checkers))


def _imports_of(importer: str, source: str, *, is_package: bool, for_type_checkers: bool) -> Iterator[Import]:
    tree = ast.parse(source)
    unseen = {id(node) for block in ast.walk(tree) if _is_for_type_checkers(block) for node in ast.walk(block)}
    if for_type_checkers:
        unseen = set()
    for node in ast.walk(tree):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.Import):
            yield from (Import(importer, alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(importer, node, is_package=is_package)
            yield from (Import(importer, f"{base}.{alias.name}", node.lineno) for alias in node.names)


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _base(importer: str, node: ast.ImportFrom, *, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = importer.split(".")
    parents = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*parents, *([node.module] if node.module else [])])


def modules_of(root: Path) -> dict[str, str]:
    """Return the source of every module of PushHub, without migrations, which are history."""
    sources = {}
    for folder in ("pushhub", *APPS):
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if "migrations" not in parts:
                sources[".".join(parts)] = path.read_text(encoding="utf-8")
    return sources


def all_imports(modules: Mapping[str, str]) -> Iterator[Import]:
    for name, source in modules.items():
        yield from imports_of(name.removesuffix(".__init__"), source, is_package=name.endswith("__init__"))


def violations(modules: Mapping[str, str]) -> list[str]:
    """Return a line for each forbidden import, and for each unit without a layer."""
    lines = [
        f"{import_.importer}:{import_.line} imports {import_.imported}: {reason}"
        for import_ in all_imports(modules)
        if (reason := _reason_against(import_))
    ]
    units = {tuple(name.split(".")[:2]) for name in modules}
    lines += [
        f"{app}.{unit} has no layer"
        for app, unit in sorted(units)
        if app in APPS and unit != "__init__" and _layer(app, unit) is None
    ]
    return lines


def unit_of(module: str) -> str:
    """Return the folder or root module that `module`, or a name in it, belongs to."""
    return ".".join(module.split(".")[:2])


def cycles(modules: Mapping[str, str], part_of: Callable[[str], str] = unit_of) -> list[list[str]]:
    """Return the groups of units that import each other, directly or by way of others."""
    targets: dict[str, set[str]] = {}
    for import_ in all_imports(modules):
        importer, imported = part_of(import_.importer), part_of(import_.imported)
        if importer != imported and imported.split(".")[0] in ("pushhub", *APPS):
            targets.setdefault(importer, set()).add(imported)
    return _cycles(targets)


def folder_cycles(modules: Mapping[str, str]) -> list[list[str]]:
    """Return the groups of folders that import each other. A module at the root of an app or of `pushhub` is alone."""
    folders = {name.rpartition(".")[0] for name in modules}

    def folder_of(module: str) -> str:
        while module.count(".") > 1 and module not in folders:
            module = module.rpartition(".")[0]
        return module

    return cycles(modules, folder_of)


def module_cycles(modules: Mapping[str, str], folder: str) -> list[list[str]]:
    """Return the groups of modules of a folder that import each other; imports for type checkers count too."""
    inside = {name: source for name, source in modules.items() if name.startswith(f"{folder}.")}
    targets: dict[str, set[str]] = {}
    for name, source in inside.items():
        for import_ in imports_of(name, source, for_type_checkers=True):
            # `from a.b import c` imports the module a.b.c, or the name c of the module a.b.
            for imported in (import_.imported, import_.imported.rpartition(".")[0]):
                if imported in inside:
                    targets.setdefault(name, set()).add(imported)
    return _cycles(targets)


def _cycles(targets: Mapping[str, set[str]]) -> list[list[str]]:
    reachable = {unit: _reachable(unit, targets) for unit in targets}
    groups = {
        frozenset(other for other in reachable[unit] if unit in reachable.get(other, ()))
        for unit in targets
        if unit in reachable[unit]
    }
    return sorted(sorted(group) for group in groups)


def _reachable(start: str, targets: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for target in targets.get(waiting.pop(), ()):
            if target not in seen:
                seen.add(target)
                waiting.append(target)
    return seen


def _reason_against(import_: Import) -> str:
    app, importer, *_ = [*import_.importer.split("."), ""]
    imported_app, imported, *_ = [*import_.imported.split("."), ""]
    if reason := _reason_of_outsiders(import_, imported_app):
        return reason
    if app == "pushhub":
        imports_app = importer in OPEN_TO_ALL and imported_app in APPS
        return "a common module imports no app" if imports_app else _wiring(importer, imported_app, imported)
    if imported_app == "pushhub":
        return _wiring("common", imported_app, imported)
    if app == imported_app:
        is_higher = (_layer(app, imported) or 0) > (_layer(app, importer) or 0)
        return "a lower layer imports a higher one" if is_higher else ""
    if imported_app == "deliveries":
        return "the control plane does not know the data plane"
    if imported_app == "subscriptions":
        allowed = imported in OPEN_TO_DELIVERIES or (imported in OPEN_TO_SURFACES and importer in SURFACES)
        return "" if allowed else "the data plane uses the services, selectors, rules and models of the control plane"
    return ""


def _reason_of_outsiders(import_: Import, package: str) -> str:
    """Return why modules that run outside of Django, or without side effects, may not import from a package."""
    is_pushhub = package in ("pushhub", *APPS)
    if import_.importer.startswith(TRANSFORMS) and package in FRAMEWORKS:
        return "a transform runs where neither Django nor Redis is"
    if import_.importer.startswith(PURE):
        if package in IMPURE:
            return "a pure rule takes its inputs as arguments"
        if is_pushhub and not import_.imported.startswith(OPEN_TO_PURE):
            return "a pure rule imports pure rules only"
    if import_.importer.startswith(CLIENT):
        if package in FRAMEWORKS:
            return "the HTTP client works without Django and Celery"
        if is_pushhub and not import_.imported.startswith((CLIENT, *OPEN_TO_PURE)):
            return "the HTTP client imports nothing of PushHub but pure rules"
    elif import_.imported.startswith(f"{CLIENT}.") and import_.importer != CLIENT_ADAPTER:
        return "only one module adapts the HTTP client to the worker"
    return ""


def _wiring(importer: str, imported_app: str, imported: str) -> str:
    is_open = not imported or imported in OPEN_TO_ALL
    is_wrong = imported_app == "pushhub" and importer in OPEN_TO_ALL and not is_open
    return "nothing imports wiring" if is_wrong else ""


def _layer(app: str, unit: str) -> int | None:
    return next((number for number, units in enumerate(LAYERS[app]) if unit in units), None)

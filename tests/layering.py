"""Checks who imports whom, from the source alone (DESIGN.md: "The rooms" and "Inside an app")."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

APPS = ("subscriptions", "deliveries")

#: The leaves of pushhub/: anybody may import them. What is not named here is wiring, which nobody else imports.
LEAVES = frozenset(
    {
        *("addresses", "background", "clock", "environment", "errors", "metrics", "names", "ports", "prepared"),
        *("principals", "protojson", "pushurls", "throttle"),
    }
)

#: Layers inside an app, lowest first: a module imports its own layer and lower ones. What lies at the top of an app's
#: folder and is not named here is a part of the services.
PURE, MODELS, MIDDLE, SERVICES, SURFACES, START = range(6)
LAYERS = {
    "rules": PURE,
    "policies": PURE,
    "filters": PURE,
    "fields": PURE,
    "masks": PURE,
    "endpoints": PURE,
    "pushed": PURE,
    "models": MODELS,
    "credentials": MODELS,
    "iammodels": MODELS,
    "schemamodels": MODELS,
    "schemarules": PURE,
    "signals": MODELS,
    "store": MODELS,
    "turns": MODELS,
    "outages": MODELS,
    "groupcommit": MODELS,
    "backlog": MIDDLE,
    "push": MIDDLE,
    "fanout": MIDDLE,
    "publishing": MIDDLE,
    "deadletters": MIDDLE,
    "activity": MIDDLE,
    "journal": MIDDLE,
    # The columns that the journal and Spark share.
    "pipeline.schemas": PURE,
    "iam": SERVICES,
    "services": SERVICES,
    "selectors": SERVICES,
    "api": SURFACES,
    "rpc": SURFACES,
    "tasks": SURFACES,
    "admin": SURFACES,
    "adminforms": SURFACES,
    "consoleadmin": SURFACES,
    "loginadmin": SURFACES,
    "treeadmin": SURFACES,
    "auditadmin": SURFACES,
    "credentialadmin": SURFACES,
    "policyadmin": SURFACES,
    "metricsadmin": SURFACES,
    "publishjobsadmin": SURFACES,
    "readonlyadmin": SURFACES,
    "management": SURFACES,
    "cli": SURFACES,
    "apps": START,
    "receivers": START,
}

#: What the data plane may use of the control plane; surfaces may also use the other app's surface.
OPEN_TO_DELIVERIES = frozenset(
    {
        "services",
        "selectors",
        "policies",
        "filters",
        "fields",
        "snapshots",
        "schemas",
        "models",
        "signals",
        "iam",
        "quotas",
    }
)
#: And what its surfaces may use besides.
OPEN_TO_SURFACES = frozenset({"api", "rpc", "paging", "resources", "consoleadmin"})

#: Pure rules get the clock, the dice and the data as arguments.
IMPURE = frozenset(
    {"django", "rest_framework", "redis", "celery", "kombu", "requests", "socket", "asyncio", "time", "random"}
)
#: Where Spark runs there is neither Django nor Redis.
NOT_IN_TRANSFORMS = frozenset({"django", "redis", "celery", "kombu", "rest_framework"})
TRANSFORMS = ("deliveries.pipeline.transforms", "deliveries.pipeline.schemas")


@dataclass(frozen=True)
class Import:
    """`importer` imports `imported`, both as dotted module names."""

    importer: str
    imported: str
    line: int


def imports_of(importer: str, source: str, *, is_package: bool = False) -> Iterator[Import]:
    """Every import in a module's source, wherever it stands, but for those a type checker alone sees."""
    tree = ast.parse(source)
    unseen = {id(node) for block in ast.walk(tree) if _is_for_type_checkers(block) for node in ast.walk(block)}
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
    """Every module of the three rooms with its source, but for migrations, which are history."""
    found = {}
    for room in ("pushhub", *APPS):
        for path in sorted((root / room).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if "migrations" not in parts:
                found[".".join(parts)] = path.read_text(encoding="utf-8")
    return found


def violations(modules: Mapping[str, str]) -> list[str]:
    """One line for each import that goes the wrong way."""
    found = []
    for name, source in modules.items():
        is_package = name.endswith("__init__")
        importer = name.removesuffix(".__init__")
        for one in imports_of(importer, source, is_package=is_package):
            reason = _reason_against(one)
            if reason:
                found.append(f"{one.importer}:{one.line} imports {one.imported}: {reason}")
    return found


def _reason_against(one: Import) -> str:
    room, *inside = one.importer.split(".")
    other, *rest = one.imported.split(".")
    if room == "pushhub":
        return _leaf_reason(inside, other, rest)
    here = inside[0] if inside else ""
    if one.importer.startswith(TRANSFORMS) and other in NOT_IN_TRANSFORMS:
        return "a transform runs where neither Django nor Redis is"
    if layer(room, here) == PURE and other in IMPURE:
        return "a pure rule takes its inputs as arguments"
    if other == "pushhub" and rest and rest[0] not in LEAVES:
        return "nobody imports wiring"
    if other == room:
        return _app_reason(room, here, rest)
    if room == "subscriptions" and other == "deliveries":
        return "the control plane does not know the data plane"
    if room == "deliveries" and other == "subscriptions":
        return _neighbour_reason(here, rest)
    return ""


def _leaf_reason(inside: list[str], other: str, rest: list[str]) -> str:
    if not inside or inside[0] not in LEAVES:
        return ""
    if other in APPS:
        return "a leaf imports no app"
    if other == "pushhub" and rest and rest[0] not in LEAVES:
        return "nobody imports wiring"
    return ""


def _app_reason(room: str, here: str, rest: list[str]) -> str:
    there = rest[0] if rest else ""
    if there and layer(room, ".".join(rest[:2])) > layer(room, here):
        return "a lower layer imports a higher one"
    return ""


def _neighbour_reason(here: str, rest: list[str]) -> str:
    there = rest[0] if rest else ""
    if layer("deliveries", here) == PURE and there not in ("policies", "filters"):
        return "a pure rule imports pure rules only"
    if there in OPEN_TO_DELIVERIES or (there in OPEN_TO_SURFACES and layer("deliveries", here) == SURFACES):
        return ""
    return "of the control plane, the data plane uses services, selectors, policies, models and signals"


def layer(room: str, name: str) -> int:
    """The layer of what lies at the top of an app's folder under `name`, or of a module one level below."""
    return LAYERS.get(name, LAYERS.get(name.partition(".")[0], SERVICES))

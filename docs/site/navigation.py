"""The pages of the guide, in the order in which a newcomer needs them."""

from __future__ import annotations

#: Caption and pages. A page is docs/<name>.md, or the file of that name in capitals at the top of the repository.
PAGES = [
    ("Use it", ["console", "cli", "emulator", "transforms", "schemas", "receivers/README", "pipeline"]),
    ("Run it", ["settings", "backup", "upgrading", "monitoring/README", "metrics", "celery", "iam", "identity"]),
    ("Understand it", ["architecture", "reliability", "flow-control", "push-client", "security", "design"]),
    ("Look it up", ["compatibility", "spec", "performance", "measurements", "changelog", "contributing"]),
]
#: Pages whose file has another name.
FILES = {"performance": "bench/README.md", "measurements": "bench/NOTES.md"}
CHINESE_FOLDER = "zh_Hans"
CHINESE: list[tuple[str, list[str]]] = []

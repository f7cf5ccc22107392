"""The pages of the guide, in the order in which a newcomer needs them."""

from __future__ import annotations

#: Caption and pages. A page is docs/<name>.md, or the file of that name in capitals at the top of the repository.
PAGES = [
    ("Start", ["first-push", "push", "authentication", "pull"]),
    (
        "Use",
        [
            "ordering",
            "dead-letters",
            "filters",
            "transforms",
            "schemas",
            "console",
            "cli",
            "emulator",
            "pipeline",
            "spark",
        ],
    ),
    (
        "Operate",
        [
            "sizing",
            "scale",
            "deployment",
            "systemd",
            "upgrading",
            "backup",
            "pipeline-operations",
            "monitoring/README",
            "metrics",
            "troubleshooting",
            "celery",
            "iam",
            "identity",
        ],
    ),
    ("Judge", ["reliability", "performance", "security", "flow-control", "push-client", "benchmarks", "measurements"]),
    (
        "Look up",
        [
            "settings",
            "api",
            "compatibility",
            "spec",
            "spec-messages",
            "spec-delivery",
            "spec-access",
            "migration",
            "faq",
            "glossary",
            "changelog",
        ],
    ),
    ("Build", ["architecture", "design", "design-servers", "pipeline-design", "lessons", "contributing"]),
]
#: Pages whose file has another name.
FILES = {"benchmarks": "bench/README.md", "measurements": "bench/NOTES.md", "systemd": "deploy/systemd/README.md"}
CHINESE_FOLDER = "zh_Hans"
CHINESE = [
    ("开始", ["first-push", "push", "authentication", "pull"]),
    ("使用与排查", ["console", "troubleshooting"]),
]

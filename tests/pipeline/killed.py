"""A command of the pipeline in small steps, for test_kills.py: `python -m tests.pipeline.killed ARGUMENT...`."""

from __future__ import annotations

import sys

import django


def main() -> None:
    django.setup()
    from django.core.management import call_command

    from deliveries.pipeline.archiving import archive
    from deliveries.pipeline.publishing import parts
    from deliveries.telemetry.counting import rollup

    archive.RANGE_ROWS, archive.STEP_RANGES, archive.MERGES_A_JOB = 20, 2, 1
    parts.PART_ROWS = 100
    rollup.FILES_A_TASK = 1
    call_command("pipeline", *sys.argv[1:])


if __name__ == "__main__":
    main()

"""Jobs begun before there were parts become jobs of one part, so that still no message is published twice under an id."""

from __future__ import annotations

from typing import Any

from django.db import migrations

LAST_ID = 2**63 - 1


def carry(apps: Any, _schema_editor: Any) -> None:
    jobs = apps.get_model("deliveries", "PublishJob")
    parts = apps.get_model("deliveries", "PublishPart")
    for job in jobs.objects.filter(parts=None):
        parts.objects.create(
            job=job,
            number=0,
            position=job.position,
            until=LAST_ID if job.kind == "replay" else None,
            published=job.published,
            rejected=job.rejected,
            finished=job.finished_at is not None,
        )
        if job.spec.get("subscription"):
            job.spec["topic"] = ""  # one of the two is named now
        job.parts = 1
        job.save(update_fields=["parts", "spec"])


class Migration(migrations.Migration):
    dependencies = [("deliveries", "0007_publish_parts")]

    operations = [migrations.RunPython(carry, migrations.RunPython.noop)]

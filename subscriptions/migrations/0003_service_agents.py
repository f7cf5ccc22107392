"""Projects from before there were policies: their service agents go on minting, by a binding that shows."""

from __future__ import annotations

import time
from datetime import date
from typing import Any

from django.db import migrations

LAST_DAY_OF_EXPLICIT_GRANTS = date(2021, 4, 8)


def grant(apps: Any, schema_editor: Any) -> None:
    policies = apps.get_model("subscriptions", "Policy").objects
    for project in apps.get_model("subscriptions", "Project").objects.all():
        if project.created_at.date() > LAST_DAY_OF_EXPLICIT_GRANTS:
            member = f"serviceAccount:service-{project.number}@gcp-sa-pubsub.iam.gserviceaccount.com"
            policies.get_or_create(
                kind="project",
                resource_pk=project.pk,
                defaults={
                    "generation": time.time_ns() // 1000,
                    "bindings": [{"role": "roles/pubsub.serviceAgent", "members": [member]}],
                },
            )


class Migration(migrations.Migration):
    dependencies = [("subscriptions", "0002_resource_tree")]

    operations = [migrations.RunPython(grant, migrations.RunPython.noop)]

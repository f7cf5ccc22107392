from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("subscriptions", "0019_schema_root_message")]

    operations = [
        migrations.AddField(
            model_name=model,
            name="message_transforms",
            field=models.JSONField(blank=True, help_text="Empty: none", null=True),
        )
        for model in ("topic", "subscription")
    ]

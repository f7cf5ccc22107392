from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("subscriptions", "0018_subscription_paused")]

    operations = [
        migrations.AddField(
            model_name="schemarevision",
            name="root_message",
            field=models.CharField(blank=True, default="", max_length=1024),
        ),
    ]

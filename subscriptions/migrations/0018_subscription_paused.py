from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("subscriptions", "0017_help_texts")]

    operations = [
        migrations.AddField(
            model_name="subscription",
            name="paused",
            field=models.BooleanField(
                default=False, help_text="Nothing is pushed until it is resumed", verbose_name="paused"
            ),
        ),
    ]

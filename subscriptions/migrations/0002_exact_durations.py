from django.db import migrations, models

from pushhub.common.migrations import AddColumn

COLUMNS = (
    ("topic", "message_retention_ms"),
    ("subscription", "message_retention_ms"),
    ("subscription", "expiration_ttl_ms"),
)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("subscriptions", "0001_tables")]

    operations = [
        AddColumn(
            model_name=model,
            name=name,
            field=models.BigIntegerField(
                blank=True, help_text="What the API shows, if the seconds are this rounded up", null=True
            ),
        )
        for model, name in COLUMNS
    ]

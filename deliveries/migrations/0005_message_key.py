from django.db import migrations, models

from pushhub.common.migrations import AddIndexOnline


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("deliveries", "0004_lostoffer")]

    operations = [
        AddIndexOnline(
            model_name="message",
            index=models.Index(
                fields=["topic", "ordering_key", "id"], name="message_key", condition=models.Q(ordering_key__gt="")
            ),
        ),
    ]

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("deliveries", "0006_region_holds")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="snapshotmessage",
                    name="snapshot",
                    field=models.ForeignKey(
                        on_delete=models.DO_NOTHING,
                        db_constraint=False,
                        related_name="messages",
                        to="subscriptions.snapshot",
                    ),
                ),
            ]
        ),
    ]

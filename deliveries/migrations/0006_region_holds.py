from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("deliveries", "0005_message_key")]

    operations = [
        migrations.CreateModel(
            name="RegionHold",
            fields=[
                ("region", models.CharField(max_length=63, primary_key=True, serialize=False)),
                ("holder", models.CharField(max_length=63)),
                ("renewed_at", models.DateTimeField(help_text="When a push worker of the holder lived last")),
                ("held_since", models.DateTimeField()),
                ("wanted_at", models.DateTimeField(help_text="When the region asked for itself last", null=True)),
            ],
        ),
        # Only the text changed.
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="lostoffer",
                    name="message_id",
                    field=models.BigIntegerField(
                        help_text="A message, or 0 for other settings, or -1 for another backlog"
                    ),
                ),
            ]
        ),
    ]

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('deliveries', '0020_shipped_segments'),
    ]

    operations = [
        migrations.AddField(
            model_name='deadletterjob',
            name='chosen_ids',
            field=models.JSONField(help_text='The message ids of the chosen dead letters; null: all of them', null=True),
        ),
    ]

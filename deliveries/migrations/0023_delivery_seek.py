from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('deliveries', '0022_part_fingerprints'),
    ]

    operations = [
        migrations.AddField(
            model_name='delivery',
            name='seek',
            field=models.IntegerField(db_default=0, editable=False, help_text='The number of the last seek that made the subscription owe it, or 0'),
        ),
    ]

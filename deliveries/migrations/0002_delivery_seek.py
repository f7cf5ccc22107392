from django.db import migrations, models

from pushhub.common.migrations import AddColumn


class Migration(migrations.Migration):

    replaces = [('deliveries', '0023_delivery_seek')]

    dependencies = [
        ('deliveries', '0001_tables'),
    ]

    operations = [
        AddColumn(
            model_name='delivery',
            name='seek',
            field=models.IntegerField(db_default=0, editable=False, help_text='The number of the last seek that made the subscription owe it, or 0'),
        ),
    ]

from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('deliveries', '0008_publish_parts_carried'),
    ]

    operations = [
        migrations.RemoveField(
            model_name='publishjob',
            name='position',
        ),
        migrations.RemoveField(
            model_name='publishjob',
            name='published',
        ),
        migrations.RemoveField(
            model_name='publishjob',
            name='rejected',
        ),
    ]

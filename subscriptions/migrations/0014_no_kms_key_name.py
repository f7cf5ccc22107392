from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('subscriptions', '0013_headings'),
    ]

    operations = [
        migrations.RemoveField(
            model_name='topic',
            name='kms_key_name',
        ),
    ]

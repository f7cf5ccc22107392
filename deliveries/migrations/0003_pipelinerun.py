from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('deliveries', '0002_delivery_seek'),
    ]

    operations = [
        migrations.CreateModel(
            name='PipelineRun',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('embedded', 'Counting, embedded'), ('rollup', 'Counting, by Spark'), ('backfill', 'Backfill'), ('archive', 'Archive'), ('compaction', 'Compaction'), ('replay', 'Replay'), ('ingest', 'Ingest')], max_length=10, verbose_name='kind')),
                ('job_id', models.CharField(blank=True, help_text='Of a replay or an ingest', max_length=100, verbose_name='job id')),
                ('started_at', models.DateTimeField(verbose_name='started')),
                ('reported_at', models.DateTimeField(help_text='When it last said that it runs', verbose_name='last report')),
                ('finished_at', models.DateTimeField(blank=True, null=True, verbose_name='finished')),
                ('rows', models.BigIntegerField(default=0, verbose_name='rows')),
                ('lag_seconds', models.BigIntegerField(blank=True, help_text='How far its work was behind', null=True, verbose_name='lag')),
                ('failure', models.TextField(blank=True, verbose_name='failure')),
            ],
            options={
                'verbose_name': 'pipeline run',
                'verbose_name_plural': 'pipeline runs',
                'indexes': [models.Index(fields=['kind', 'id'], name='pipelinerun_kind')],
            },
        ),
    ]

"""The tables as of 85cde97, in one step: a database that has had all the migrations named here counts as migrated."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    replaces = [
        ('deliveries', '0001_initial'),
        ('deliveries', '0002_names_in_the_console'),
        ('deliveries', '0003_metrics'),
        ('deliveries', '0004_snapshots'),
        ('deliveries', '0005_archive'),
        ('deliveries', '0006_publish_jobs'),
        ('deliveries', '0007_publish_parts'),
        ('deliveries', '0008_publish_parts_carried'),
        ('deliveries', '0009_publish_parts_alone'),
        ('deliveries', '0010_headings'),
        ('deliveries', '0011_pending_publishes'),
        ('deliveries', '0012_archive_by_identity'),
        ('deliveries', '0013_gauge_unserved'),
        ('deliveries', '0014_counting'),
        ('deliveries', '0015_archive_grace'),
        ('deliveries', '0016_region_gauges_and_counter_samples'),
        ('deliveries', '0017_gauge_rounds'),
        ('deliveries', '0018_dead_letters'),
        ('deliveries', '0019_archive_steps'),
        ('deliveries', '0020_shipped_segments'),
        ('deliveries', '0021_dead_letters_chosen'),
        ('deliveries', '0022_part_fingerprints'),
    ]

    dependencies = [
        ('subscriptions', '0001_tables'),
    ]

    operations = [
        migrations.CreateModel(
            name='ArchivedMessage',
            fields=[
                ('message_id', models.BigIntegerField(primary_key=True, serialize=False)),
                ('write_id', models.BigIntegerField(help_text='The message is in the archive when no ArchiveLeftover has this id')),
            ],
        ),
        migrations.CreateModel(
            name='ArchiveFile',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('path', models.CharField(help_text="Below the archive's folder", max_length=500, unique=True, verbose_name='path')),
                ('first_id', models.BigIntegerField(help_text='It has messages from this id on', verbose_name='first message id')),
                ('last_id', models.BigIntegerField(help_text='And up to this one', verbose_name='last message id')),
                ('rows', models.BigIntegerField(verbose_name='rows')),
                ('bytes', models.BigIntegerField(verbose_name='bytes')),
                ('first_step', models.BigIntegerField(default=0, verbose_name='first step')),
                ('last_step', models.BigIntegerField(default=0, verbose_name='last step')),
                ('written_at', models.DateTimeField(auto_now_add=True, verbose_name='written')),
            ],
            options={
                'verbose_name': 'archived file',
                'verbose_name_plural': 'archived files',
                'ordering': ['first_id', 'path'],
            },
        ),
        migrations.CreateModel(
            name='ArchiveLeftover',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('token', models.CharField(blank=True, help_text='A write: its files have this token in their names', max_length=12)),
                ('path', models.CharField(blank=True, help_text='A file that compaction has replaced', max_length=500)),
                ('replaced_at', models.DateTimeField(help_text='When that was: readers may need the file for a while', null=True)),
            ],
        ),
        migrations.CreateModel(
            name='ArchiveOwner',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('identity', models.CharField(max_length=32)),
            ],
        ),
        migrations.CreateModel(
            name='CounterSample',
            fields=[
                ('field', models.CharField(max_length=200, primary_key=True, serialize=False)),
                ('value', models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name='CountingLease',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('counter', models.CharField(choices=[('spark', 'Spark'), ('embedded', 'Embedded')], max_length=10)),
                ('until', models.DateTimeField()),
                ('counted_to', models.DateTimeField(help_text='All events before this time are in the metrics')),
                ('waiting', models.IntegerField(help_text='Sealed segments that are not counted yet')),
            ],
        ),
        migrations.CreateModel(
            name='Message',
            fields=[
                ('id', models.BigIntegerField(primary_key=True, serialize=False, verbose_name='ID')),
                ('region', models.CharField(max_length=63, verbose_name='region')),
                ('data', models.BinaryField()),
                ('attributes', models.TextField(blank=True, help_text='A JSON object of strings, or empty', verbose_name='attributes')),
                ('ordering_key', models.TextField(blank=True, verbose_name='ordering key')),
                ('topic', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, to='subscriptions.topic', verbose_name='topic')),
            ],
            options={
                'verbose_name': 'message',
                'verbose_name_plural': 'messages',
            },
        ),
        migrations.CreateModel(
            name='GaugeRound',
            fields=[
                ('at', models.DateTimeField(primary_key=True, serialize=False)),
            ],
        ),
        migrations.CreateModel(
            name='PendingPublish',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('first_id', models.BigIntegerField()),
                ('last_id', models.BigIntegerField()),
                ('ids', models.JSONField(help_text='The ids of its messages')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('abandoned', models.BooleanField(default=False, help_text='Its deliveries are being removed')),
            ],
        ),
        migrations.CreateModel(
            name='PublishJob',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('job_id', models.CharField(max_length=100, unique=True, verbose_name='job id')),
                ('kind', models.CharField(help_text='replay or ingest', max_length=10, verbose_name='kind')),
                ('spec', models.JSONField(help_text='What it was asked to do: the same id must ask for the same', verbose_name='specification')),
                ('total', models.BigIntegerField(blank=True, help_text='Messages of the plan; empty: not counted', null=True, verbose_name='total')),
                ('parts', models.PositiveIntegerField(blank=True, help_text='Empty: not divided yet', null=True, verbose_name='parts')),
                ('failure', models.TextField(blank=True, help_text='Why its last run ended early', verbose_name='failure')),
                ('finished_at', models.DateTimeField(blank=True, null=True, verbose_name='finished')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
            ],
            options={
                'verbose_name': 'publish job',
                'verbose_name_plural': 'publish jobs',
                'ordering': ['-created_at'],
            },
        ),
        migrations.CreateModel(
            name='Segment',
            fields=[
                ('name', models.CharField(max_length=255, primary_key=True, serialize=False, verbose_name='name')),
                ('state', models.CharField(choices=[('counting', 'being counted'), ('counted', 'counted'), ('quarantined', 'quarantined')], max_length=12, verbose_name='state')),
                ('reason', models.CharField(blank=True, help_text='Why it is in quarantine', max_length=255, verbose_name='reason')),
                ('rows', models.BigIntegerField(verbose_name='rows')),
                ('place', models.JSONField(default=list, help_text='The last key that is in the metrics while it is being counted')),
                ('job', models.CharField(help_text='Who added it: the rollup or a backfill', max_length=40, verbose_name='job')),
                ('at', models.DateTimeField(db_index=True, verbose_name='time')),
            ],
            options={
                'verbose_name': 'segment',
                'verbose_name_plural': 'segments',
            },
        ),
        migrations.CreateModel(
            name='ShippedSegment',
            fields=[
                ('name', models.CharField(max_length=255, primary_key=True, serialize=False)),
                ('opened_ms', models.BigIntegerField(db_index=True)),
                ('first_id', models.BigIntegerField()),
                ('last_id', models.BigIntegerField()),
                ('is_counted', models.BooleanField(db_index=True, default=False)),
            ],
        ),
        migrations.CreateModel(
            name='DeadLetterJob',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('action', models.CharField(choices=[('redrive', 'Redrive'), ('discard', 'Discard')], max_length=10)),
                ('last_id', models.BigIntegerField(help_text='Dead letters with higher ids came after the order')),
                ('chosen_ids', models.JSONField(help_text='The message ids of the chosen dead letters; null: all of them', null=True)),
                ('position', models.BigIntegerField(default=0, help_text='The last dead letter that was looked at')),
                ('rate', models.PositiveIntegerField(help_text='Dead letters a second, at most')),
                ('member', models.CharField(help_text='Who ordered it: the policies are asked again at each batch', max_length=400)),
                ('is_superuser', models.BooleanField(default=False)),
                ('unique_id', models.CharField(blank=True, max_length=30)),
                ('total', models.BigIntegerField()),
                ('done', models.BigIntegerField(default=0)),
                ('failure', models.TextField(blank=True, help_text='Why it ended early')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('advanced_at', models.DateTimeField(help_text='When its last batch was moved', null=True)),
                ('finished_at', models.DateTimeField(db_index=True, null=True)),
                ('subscription', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, to='subscriptions.subscription')),
            ],
        ),
        migrations.CreateModel(
            name='Delivery',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('region', models.CharField(max_length=63, verbose_name='region')),
                ('attempts', models.PositiveIntegerField(default=0, help_text='Attempts that were nacked so far', verbose_name='attempts')),
                ('last_attempt_at', models.DateTimeField(blank=True, null=True, verbose_name='last attempt')),
                ('last_result', models.CharField(blank=True, help_text='HTTP status or reason of the last nack', max_length=40, verbose_name='last result')),
                ('message', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, to='deliveries.message', verbose_name='message')),
                ('subscription', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, to='subscriptions.subscription', verbose_name='subscription')),
            ],
            options={
                'verbose_name': 'delivery',
                'verbose_name_plural': 'deliveries',
            },
        ),
        migrations.CreateModel(
            name='GaugeMinute',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('project', models.CharField(max_length=63)),
                ('resource', models.CharField(help_text='The full name of a subscription', max_length=350)),
                ('at', models.DateTimeField()),
                ('undelivered', models.BigIntegerField(help_text='Messages not acknowledged')),
                ('oldest_unacked_seconds', models.BigIntegerField()),
                ('outstanding', models.BigIntegerField()),
                ('push_window', models.IntegerField()),
                ('backoff_ms', models.IntegerField()),
                ('unserved', models.BigIntegerField(default=0, help_text='Messages of regions that no push worker serves')),
                ('open_streams', models.IntegerField(default=0, help_text='Open streaming pulls')),
            ],
            options={
                'indexes': [models.Index(fields=['project', 'at'], name='gaugeminute_read'), models.Index(fields=['at'], name='gaugeminute_at')],
                'constraints': [models.UniqueConstraint(fields=('resource', 'at'), name='gaugeminute_key')],
            },
        ),
        migrations.CreateModel(
            name='MetricDay',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('project', models.CharField(max_length=63)),
                ('resource', models.CharField(help_text='The full name of a subscription or topic', max_length=350)),
                ('event', models.CharField(max_length=20)),
                ('at', models.DateTimeField(help_text='Where the time begins')),
                ('response_class', models.CharField(max_length=40)),
                ('response_code', models.IntegerField()),
                ('host', models.CharField(blank=True, max_length=260)),
                ('count', models.BigIntegerField()),
                ('bytes', models.BigIntegerField()),
                ('latency_us_sum', models.BigIntegerField()),
                ('latency_us_max', models.BigIntegerField()),
                ('buckets', models.JSONField(default=dict, help_text='Latencies: count by bucket (rules/histogram.py)')),
            ],
            options={
                'abstract': False,
                'indexes': [models.Index(fields=['project', 'event', 'at'], name='metricday_read'), models.Index(fields=['at'], name='metricday_at')],
                'constraints': [models.UniqueConstraint(fields=('resource', 'event', 'at', 'response_class', 'response_code', 'host'), name='metricday_key')],
            },
        ),
        migrations.CreateModel(
            name='MetricHour',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('project', models.CharField(max_length=63)),
                ('resource', models.CharField(help_text='The full name of a subscription or topic', max_length=350)),
                ('event', models.CharField(max_length=20)),
                ('at', models.DateTimeField(help_text='Where the time begins')),
                ('response_class', models.CharField(max_length=40)),
                ('response_code', models.IntegerField()),
                ('host', models.CharField(blank=True, max_length=260)),
                ('count', models.BigIntegerField()),
                ('bytes', models.BigIntegerField()),
                ('latency_us_sum', models.BigIntegerField()),
                ('latency_us_max', models.BigIntegerField()),
                ('buckets', models.JSONField(default=dict, help_text='Latencies: count by bucket (rules/histogram.py)')),
            ],
            options={
                'abstract': False,
                'indexes': [models.Index(fields=['project', 'event', 'at'], name='metrichour_read'), models.Index(fields=['at'], name='metrichour_at')],
                'constraints': [models.UniqueConstraint(fields=('resource', 'event', 'at', 'response_class', 'response_code', 'host'), name='metrichour_key')],
            },
        ),
        migrations.CreateModel(
            name='MetricMinute',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('project', models.CharField(max_length=63)),
                ('resource', models.CharField(help_text='The full name of a subscription or topic', max_length=350)),
                ('event', models.CharField(max_length=20)),
                ('at', models.DateTimeField(help_text='Where the time begins')),
                ('response_class', models.CharField(max_length=40)),
                ('response_code', models.IntegerField()),
                ('host', models.CharField(blank=True, max_length=260)),
                ('count', models.BigIntegerField()),
                ('bytes', models.BigIntegerField()),
                ('latency_us_sum', models.BigIntegerField()),
                ('latency_us_max', models.BigIntegerField()),
                ('buckets', models.JSONField(default=dict, help_text='Latencies: count by bucket (rules/histogram.py)')),
            ],
            options={
                'abstract': False,
                'indexes': [models.Index(fields=['project', 'event', 'at'], name='metricminute_read'), models.Index(fields=['at'], name='metricminute_at')],
                'constraints': [models.UniqueConstraint(fields=('resource', 'event', 'at', 'response_class', 'response_code', 'host'), name='metricminute_key')],
            },
        ),
        migrations.CreateModel(
            name='PublishPart',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField()),
                ('position', models.BigIntegerField(default=0, help_text='Replay: the last message id. Ingest: rows read')),
                ('until', models.BigIntegerField(help_text='Replay: the last message id that belongs to it', null=True)),
                ('fingerprint', models.CharField(blank=True, help_text='Frames: a hash of the published messages', max_length=32)),
                ('published', models.BigIntegerField(default=0)),
                ('rejected', models.BigIntegerField(default=0)),
                ('finished', models.BooleanField(default=False)),
                ('job', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='divided', to='deliveries.publishjob')),
            ],
        ),
        migrations.CreateModel(
            name='PublishReject',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('row', models.BigIntegerField()),
                ('line', models.TextField()),
                ('part', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='deliveries.publishpart')),
            ],
            options={
                'ordering': ['part', 'row'],
            },
        ),
        migrations.CreateModel(
            name='RegionGaugeMinute',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('project', models.CharField(max_length=63)),
                ('resource', models.CharField(help_text='The full name of a subscription, topic or snapshot', max_length=350)),
                ('region', models.CharField(max_length=63)),
                ('at', models.DateTimeField()),
                ('messages', models.BigIntegerField(default=0, help_text='Messages not acknowledged')),
                ('bytes', models.BigIntegerField(default=0)),
                ('oldest_seconds', models.BigIntegerField(default=0)),
                ('acked_messages', models.BigIntegerField(default=0, help_text='Acknowledged messages that are retained')),
                ('acked_bytes', models.BigIntegerField(default=0)),
                ('oldest_acked_seconds', models.BigIntegerField(default=0)),
                ('kept_messages', models.BigIntegerField(default=0, help_text="Messages that a topic's retention keeps")),
                ('kept_bytes', models.BigIntegerField(default=0)),
                ('oldest_kept_seconds', models.BigIntegerField(default=0)),
            ],
            options={
                'indexes': [models.Index(fields=['project', 'at'], name='regiongauge_read'), models.Index(fields=['at'], name='regiongauge_at')],
                'constraints': [models.UniqueConstraint(fields=('resource', 'at', 'region'), name='regiongauge_key')],
            },
        ),
        migrations.CreateModel(
            name='SnapshotMessage',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('message_id', models.BigIntegerField(db_index=True)),
                ('region', models.CharField(max_length=63)),
                ('included', models.BooleanField()),
                ('snapshot', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, related_name='messages', to='subscriptions.snapshot')),
            ],
        ),
        migrations.CreateModel(
            name='DeadLetter',
            fields=[
                ('message', models.OneToOneField(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, primary_key=True, serialize=False, to='deliveries.message', verbose_name='message')),
                ('source_id', models.BigIntegerField(help_text='The id of the message in the subscription', verbose_name='original message')),
                ('attempts', models.PositiveIntegerField(verbose_name='attempts')),
                ('result', models.CharField(blank=True, help_text='HTTP status or reason of the last nack; empty: pulled', max_length=40, verbose_name='last result')),
                ('replaced', models.TextField(blank=True, help_text='The attributes that those of the dead letter replaced, as a JSON object; a redrive puts them back')),
                ('is_kept', models.BooleanField(default=False, help_text='No subscription of the dead-letter topic got it, so this row keeps its message')),
                ('subscription', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, to='subscriptions.subscription', verbose_name='subscription')),
            ],
            options={
                'verbose_name': 'dead letter',
                'verbose_name_plural': 'dead letters',
            },
        ),
        migrations.AddIndex(
            model_name='message',
            index=models.Index(fields=['topic', 'id'], name='message_topic'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(fields=['subscription', 'region', 'message'], name='delivery_backlog'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(fields=['message'], name='delivery_message'),
        ),
        migrations.AddConstraint(
            model_name='publishpart',
            constraint=models.UniqueConstraint(fields=('job', 'number'), name='publish_part'),
        ),
        migrations.AddConstraint(
            model_name='snapshotmessage',
            constraint=models.UniqueConstraint(fields=('snapshot', 'message_id'), name='snapshot_message'),
        ),
        migrations.AddIndex(
            model_name='deadletter',
            index=models.Index(fields=['subscription', 'message'], name='deadletter_of'),
        ),
        migrations.AddIndex(
            model_name='deadletter',
            index=models.Index(fields=['subscription', 'result', 'attempts', 'message'], name='deadletter_reasons'),
        ),
    ]

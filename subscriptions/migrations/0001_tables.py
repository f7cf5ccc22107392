"""The tables as of 85cde97, in one step: a database that has had all the migrations named here counts as migrated."""

import django.db.models.deletion
import pushhub.common.clock
import subscriptions.models.resources
import subscriptions.models.schemas
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    replaces = [
        ('subscriptions', '0001_initial'),
        ('subscriptions', '0002_resource_tree'),
        ('subscriptions', '0003_service_agents'),
        ('subscriptions', '0004_credentials'),
        ('subscriptions', '0005_project_details'),
        ('subscriptions', '0006_signing_key_rotation'),
        ('subscriptions', '0007_audit_and_perimeters'),
        ('subscriptions', '0008_names_in_the_console'),
        ('subscriptions', '0009_snapshots'),
        ('subscriptions', '0010_no_exports'),
        ('subscriptions', '0011_schemas'),
        ('subscriptions', '0012_audit_actions'),
        ('subscriptions', '0013_headings'),
        ('subscriptions', '0014_no_kms_key_name'),
        ('subscriptions', '0015_audit_left_out'),
        ('subscriptions', '0016_access_epoch'),
        ('subscriptions', '0017_help_texts'),
        ('subscriptions', '0018_subscription_paused'),
        ('subscriptions', '0019_schema_root_message'),
        ('subscriptions', '0020_message_transforms'),
    ]

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='AccessEpoch',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('token', models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name='Group',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('email', models.CharField(max_length=320, unique=True, verbose_name='email')),
            ],
            options={
                'verbose_name': 'group',
                'verbose_name_plural': 'groups',
                'ordering': ['email'],
            },
        ),
        migrations.CreateModel(
            name='Organization',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.BigIntegerField(default=subscriptions.models.resources.new_project_number, unique=True, verbose_name='number')),
                ('display_name', models.CharField(max_length=255, verbose_name='display name')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
            ],
            options={
                'verbose_name': 'organization',
                'verbose_name_plural': 'organizations',
                'ordering': ['number'],
            },
        ),
        migrations.CreateModel(
            name='SigningKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('generation', models.PositiveIntegerField(unique=True)),
                ('kid', models.CharField(max_length=40, unique=True, verbose_name='key id')),
                ('certificate', models.TextField(help_text='The public half, as X.509 in PEM', verbose_name='certificate')),
                ('private_key', models.TextField(help_text='Encrypted; empty after retirement')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('signs_from', models.DateTimeField(default=pushhub.common.clock.utcnow, help_text='Verifiers see the key earlier', verbose_name='signs from')),
                ('retired_at', models.DateTimeField(blank=True, null=True, verbose_name='retired')),
            ],
            options={
                'verbose_name': 'signing key',
                'verbose_name_plural': 'signing keys',
                'ordering': ['-generation'],
            },
        ),
        migrations.CreateModel(
            name='UsedAssertion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=64, unique=True)),
                ('first_used_at', models.DateTimeField()),
                ('expires_at', models.DateTimeField(db_index=True)),
            ],
        ),
        migrations.CreateModel(
            name='AuditEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(db_index=True, default=pushhub.common.clock.utcnow, verbose_name='time')),
                ('caller', models.CharField(db_index=True, max_length=400, verbose_name='who')),
                ('address', models.CharField(blank=True, max_length=64, verbose_name='from address')),
                ('surface', models.CharField(max_length=20, verbose_name='surface')),
                ('method', models.CharField(blank=True, max_length=200, verbose_name='method')),
                ('action', models.CharField(max_length=100, verbose_name='action')),
                ('kind', models.CharField(max_length=40, verbose_name='kind')),
                ('resource', models.CharField(db_index=True, max_length=700, verbose_name='resource')),
                ('before', models.JSONField(null=True, verbose_name='before')),
                ('after', models.JSONField(null=True, verbose_name='after')),
                ('outcome', models.CharField(choices=[('done', 'done'), ('denied', 'denied')], default='done', max_length=10, verbose_name='outcome')),
                ('left_out', models.PositiveIntegerField(default=0, help_text='Later denied calls of the same caller that have no entry of their own', verbose_name='left out')),
            ],
            options={
                'verbose_name': 'audit entry',
                'verbose_name_plural': 'audit log',
                'ordering': ['-at', '-id'],
                'indexes': [models.Index(fields=['caller', 'outcome', 'at'], name='audit_caller')],
            },
        ),
        migrations.CreateModel(
            name='Folder',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.BigIntegerField(default=subscriptions.models.resources.new_project_number, unique=True, verbose_name='number')),
                ('display_name', models.CharField(max_length=255, verbose_name='display name')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('folder', models.ForeignKey(blank=True, help_text='The folder that contains it', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='folders', to='subscriptions.folder', verbose_name='folder')),
                ('organization', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='folders', to='subscriptions.organization', verbose_name='organization')),
            ],
            options={
                'verbose_name': 'folder',
                'verbose_name_plural': 'folders',
                'ordering': ['number'],
            },
        ),
        migrations.CreateModel(
            name='Policy',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(max_length=20)),
                ('resource_pk', models.BigIntegerField()),
                ('generation', models.BigIntegerField()),
                ('bindings', models.JSONField(blank=True, default=list)),
                ('audit_configs', models.JSONField(blank=True, default=list)),
                ('updated_at', models.DateTimeField(auto_now=True)),
            ],
            options={
                'verbose_name': 'policy',
                'verbose_name_plural': 'policies',
                'ordering': ['kind', 'resource_pk'],
                'constraints': [models.UniqueConstraint(fields=('kind', 'resource_pk'), name='policy_resource')],
            },
        ),
        migrations.CreateModel(
            name='Project',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('project_id', models.CharField(max_length=100, unique=True, verbose_name='project id')),
                ('number', models.BigIntegerField(default=subscriptions.models.resources.new_project_number, unique=True, verbose_name='number')),
                ('created_at', models.DateTimeField(default=pushhub.common.clock.utcnow, verbose_name='created')),
                ('display_name', models.CharField(blank=True, max_length=100)),
                ('labels', models.JSONField(blank=True, default=dict)),
                ('delete_requested_at', models.DateTimeField(blank=True, null=True)),
                ('folder', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='projects', to='subscriptions.folder')),
                ('organization', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='projects', to='subscriptions.organization')),
            ],
            options={
                'verbose_name': 'project',
                'verbose_name_plural': 'projects',
                'ordering': ['project_id'],
            },
        ),
        migrations.CreateModel(
            name='Perimeter',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('title', models.CharField(max_length=100, unique=True, verbose_name='title')),
                ('enabled', models.BooleanField(default=True, verbose_name='enabled')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('projects', models.ManyToManyField(related_name='perimeters', to='subscriptions.project', verbose_name='protected projects')),
            ],
            options={
                'verbose_name': 'service perimeter',
                'verbose_name_plural': 'service perimeters',
                'ordering': ['title'],
            },
        ),
        migrations.CreateModel(
            name='RoleResource',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('role_id', models.CharField(max_length=64, verbose_name='role id')),
                ('title', models.CharField(blank=True, max_length=100, verbose_name='title')),
                ('description', models.CharField(blank=True, max_length=300, verbose_name='description')),
                ('permissions', models.JSONField(blank=True, default=list, verbose_name='permissions')),
                ('stage', models.CharField(default='ALPHA', max_length=12, verbose_name='stage')),
                ('deleted', models.BooleanField(default=False, verbose_name='deleted')),
                ('generation', models.BigIntegerField(default=0, verbose_name='generation')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('organization', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='roles', to='subscriptions.organization', verbose_name='organization')),
                ('project', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='roles', to='subscriptions.project', verbose_name='project')),
            ],
            options={
                'verbose_name': 'custom role',
                'verbose_name_plural': 'custom roles',
                'ordering': ['role_id'],
            },
        ),
        migrations.CreateModel(
            name='Schema',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('schema_id', models.CharField(max_length=255)),
                ('type', models.CharField(choices=[('PROTOCOL_BUFFER', 'Protocol Buffer'), ('AVRO', 'Avro')], max_length=15)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='schemas', to='subscriptions.project')),
            ],
            options={
                'verbose_name': 'schema',
                'verbose_name_plural': 'schemas',
                'ordering': ['project', 'schema_id'],
            },
        ),
        migrations.CreateModel(
            name='SchemaRevision',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('revision_id', models.CharField(default=subscriptions.models.schemas.new_revision_id, max_length=8)),
                ('definition', models.TextField()),
                ('compiled', models.BinaryField(blank=True, default=bytes)),
                ('root_message', models.CharField(blank=True, default='', max_length=1024)),
                ('created_at', models.DateTimeField(default=pushhub.common.clock.utcnow)),
                ('schema', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='revisions', to='subscriptions.schema')),
            ],
            options={
                'verbose_name': 'schema revision',
                'verbose_name_plural': 'schema revisions',
                'ordering': ['pk'],
            },
        ),
        migrations.CreateModel(
            name='ServiceAccount',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('email', models.CharField(max_length=320, unique=True, verbose_name='email')),
                ('unique_id', models.CharField(default=subscriptions.models.resources.new_unique_id, max_length=21, unique=True, verbose_name='unique id')),
                ('display_name', models.CharField(blank=True, max_length=100, verbose_name='display name')),
                ('description', models.CharField(blank=True, max_length=256)),
                ('disabled', models.BooleanField(default=False, verbose_name='disabled')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True)),
                ('deleted_at', models.DateTimeField(blank=True, null=True)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='service_accounts', to='subscriptions.project')),
            ],
            options={
                'verbose_name': 'service account',
                'verbose_name_plural': 'service accounts',
                'ordering': ['email'],
            },
        ),
        migrations.CreateModel(
            name='ServiceAccountKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key_id', models.CharField(max_length=40, unique=True, verbose_name='key id')),
                ('certificate', models.TextField(help_text='The public half, as X.509 in PEM')),
                ('uploaded', models.BooleanField(default=False, help_text='The user created the key pair', verbose_name='uploaded')),
                ('disabled', models.BooleanField(default=False, verbose_name='disabled')),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('expires_at', models.DateTimeField(verbose_name='expires')),
                ('account', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='keys', to='subscriptions.serviceaccount', verbose_name='service account')),
            ],
            options={
                'verbose_name': 'service account key',
                'verbose_name_plural': 'service account keys',
                'ordering': ['created_at', 'pk'],
            },
        ),
        migrations.CreateModel(
            name='AccessToken',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=64, unique=True)),
                ('member', models.CharField(db_index=True, help_text='user:ada@example.com', max_length=340, verbose_name='member')),
                ('scopes', models.JSONField(blank=True, default=list)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('expires_at', models.DateTimeField(db_index=True, verbose_name='expires')),
                ('account', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='access_tokens', to='subscriptions.serviceaccount')),
                ('key', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='access_tokens', to='subscriptions.serviceaccountkey')),
            ],
            options={
                'verbose_name': 'access token',
                'verbose_name_plural': 'access tokens',
                'ordering': ['-created_at', '-pk'],
            },
        ),
        migrations.CreateModel(
            name='Topic',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('topic_id', models.CharField(max_length=255)),
                ('labels', models.JSONField(blank=True, default=dict)),
                ('message_retention_seconds', models.BigIntegerField(blank=True, help_text='Empty: off', null=True)),
                ('message_storage_policy', models.JSONField(blank=True, null=True)),
                ('schema_settings', models.JSONField(blank=True, null=True)),
                ('message_transforms', models.JSONField(blank=True, help_text='Empty: none', null=True)),
                ('tags', models.JSONField(blank=True, default=dict)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('updated_at', models.DateTimeField(auto_now=True)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='topics', to='subscriptions.project')),
            ],
            options={
                'verbose_name': 'topic',
                'verbose_name_plural': 'topics',
                'ordering': ['project', 'topic_id'],
            },
        ),
        migrations.CreateModel(
            name='Subscription',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('subscription_id', models.CharField(max_length=255)),
                ('detached', models.BooleanField(default=False, verbose_name='detached')),
                ('paused', models.BooleanField(default=False, help_text='Nothing is pushed until it is resumed', verbose_name='paused')),
                ('push_endpoint', models.CharField(blank=True, help_text='Empty: a pull subscription', max_length=2048, verbose_name='push endpoint')),
                ('push_attributes', models.JSONField(blank=True, default=dict)),
                ('oidc_service_account_email', models.CharField(blank=True, max_length=320)),
                ('oidc_audience', models.CharField(blank=True, help_text="Empty: the endpoint's URL", max_length=2048)),
                ('push_wrapper', models.CharField(blank=True, choices=[('', 'default (wrapped)'), ('pubsub', 'wrapped in JSON'), ('none', 'unwrapped')], default='', max_length=6)),
                ('push_write_metadata', models.BooleanField(default=False, help_text='Write the metadata of unwrapped messages as headers')),
                ('ack_deadline_seconds', models.PositiveIntegerField(default=10)),
                ('retain_acked_messages', models.BooleanField(default=False)),
                ('message_retention_seconds', models.PositiveIntegerField(default=604800)),
                ('expiration_ttl_seconds', models.BigIntegerField(blank=True, help_text='Empty: never', null=True)),
                ('labels', models.JSONField(blank=True, default=dict)),
                ('enable_message_ordering', models.BooleanField(default=False)),
                ('enable_exactly_once_delivery', models.BooleanField(default=False)),
                ('filter', models.CharField(blank=True, max_length=256)),
                ('max_delivery_attempts', models.PositiveIntegerField(default=0, help_text='0: no dead-letter policy')),
                ('minimum_backoff_ms', models.PositiveIntegerField(blank=True, help_text='Empty: no retry policy', null=True)),
                ('maximum_backoff_ms', models.PositiveIntegerField(blank=True, null=True)),
                ('message_transforms', models.JSONField(blank=True, help_text='Empty: none', null=True)),
                ('tags', models.JSONField(blank=True, default=dict)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('updated_at', models.DateTimeField(auto_now=True)),
                ('active_at', models.DateTimeField(default=pushhub.common.clock.utcnow, help_text='The hour of the last successful pull or push')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='subscriptions', to='subscriptions.project', verbose_name='project')),
                ('dead_letter_topic', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='dead_letter_sources', to='subscriptions.topic')),
                ('topic', models.ForeignKey(blank=True, help_text='Empty: deleted', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='subscriptions', to='subscriptions.topic', verbose_name='topic')),
            ],
            options={
                'verbose_name': 'subscription',
                'verbose_name_plural': 'subscriptions',
                'ordering': ['project', 'subscription_id'],
            },
        ),
        migrations.CreateModel(
            name='Snapshot',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('snapshot_id', models.CharField(max_length=255)),
                ('topic_pk', models.BigIntegerField(db_index=True, help_text='The key of the topic, even after its deletion')),
                ('boundary_id', models.BigIntegerField(help_text='It has the messages from here on, except those it excludes')),
                ('expire_at', models.DateTimeField(db_index=True, verbose_name='expires')),
                ('labels', models.JSONField(blank=True, default=dict)),
                ('tags', models.JSONField(blank=True, default=dict)),
                ('created_at', models.DateTimeField(auto_now_add=True, verbose_name='created')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='snapshots', to='subscriptions.project')),
                ('topic', models.ForeignKey(blank=True, help_text='Empty: deleted', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='snapshots', to='subscriptions.topic', verbose_name='topic')),
            ],
            options={
                'verbose_name': 'snapshot',
                'verbose_name_plural': 'snapshots',
                'ordering': ['project', 'snapshot_id'],
            },
        ),
        migrations.CreateModel(
            name='GroupMember',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('member', models.CharField(db_index=True, help_text='user:ada@example.com', max_length=340, verbose_name='member')),
                ('group', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='members', to='subscriptions.group')),
            ],
            options={
                'verbose_name': 'member',
                'verbose_name_plural': 'members',
                'ordering': ['member'],
                'constraints': [models.UniqueConstraint(fields=('group', 'member'), name='group_member')],
            },
        ),
        migrations.AddConstraint(
            model_name='folder',
            constraint=models.CheckConstraint(condition=models.Q(('organization', None), ('folder', None), _connector='XOR'), name='folder_has_one_parent'),
        ),
        migrations.AddConstraint(
            model_name='project',
            constraint=models.CheckConstraint(condition=models.Q(('organization', None), ('folder', None), _connector='OR'), name='project_has_at_most_one_parent'),
        ),
        migrations.AddConstraint(
            model_name='roleresource',
            constraint=models.UniqueConstraint(fields=('project', 'role_id'), name='project_role_name'),
        ),
        migrations.AddConstraint(
            model_name='roleresource',
            constraint=models.UniqueConstraint(fields=('organization', 'role_id'), name='organization_role_name'),
        ),
        migrations.AddConstraint(
            model_name='roleresource',
            constraint=models.CheckConstraint(condition=models.Q(('organization', None), ('project', None), _connector='XOR'), name='role_has_one_owner'),
        ),
        migrations.AddConstraint(
            model_name='schema',
            constraint=models.UniqueConstraint(fields=('project', 'schema_id'), name='schema_name'),
        ),
        migrations.AddConstraint(
            model_name='schemarevision',
            constraint=models.UniqueConstraint(fields=('schema', 'revision_id'), name='schema_revision_id'),
        ),
        migrations.AddConstraint(
            model_name='topic',
            constraint=models.UniqueConstraint(fields=('project', 'topic_id'), name='topic_name'),
        ),
        migrations.AddConstraint(
            model_name='subscription',
            constraint=models.UniqueConstraint(fields=('project', 'subscription_id'), name='subscription_name'),
        ),
        migrations.AddConstraint(
            model_name='snapshot',
            constraint=models.UniqueConstraint(fields=('project', 'snapshot_id'), name='snapshot_name'),
        ),
    ]

"""How a snapshot differs from its boundary."""

from __future__ import annotations

from django.db import models

from subscriptions.models import Snapshot


class SnapshotMessage(models.Model):
    """A message that a snapshot includes although it is older than its boundary, or excludes although it is not."""

    snapshot = models.ForeignKey(Snapshot, on_delete=models.CASCADE, db_constraint=False, related_name="messages")
    message_id = models.BigIntegerField(db_index=True)
    region = models.CharField(max_length=63)
    included = models.BooleanField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["snapshot", "message_id"], name="snapshot_message")]

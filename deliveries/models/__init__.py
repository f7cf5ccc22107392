"""What the data plane keeps in the database: the truth of which message is still owed to which subscription.

Django expects the tables in this module.
"""

from __future__ import annotations

from deliveries.models.archive import ArchivedMessage, ArchiveFile, ArchiveLeftover, ArchiveOwner
from deliveries.models.deadletters import DeadLetter, DeadLetterJob
from deliveries.models.jobs import PipelineRun, PublishJob, PublishPart, PublishReject
from deliveries.models.journal import CountingLease, Segment, ShippedSegment
from deliveries.models.messages import Delivery, LostOffer, Message, PendingPublish, RegionHold, SnapshotMessage
from deliveries.models.metrics import (
    CounterSample,
    GaugeMinute,
    GaugeRound,
    Metric,
    MetricDay,
    MetricHour,
    MetricMinute,
    RegionGaugeMinute,
)

__all__ = [
    "ArchiveFile",
    "ArchiveLeftover",
    "ArchiveOwner",
    "ArchivedMessage",
    "CounterSample",
    "CountingLease",
    "DeadLetter",
    "DeadLetterJob",
    "Delivery",
    "GaugeMinute",
    "GaugeRound",
    "LostOffer",
    "Message",
    "Metric",
    "MetricDay",
    "MetricHour",
    "MetricMinute",
    "PendingPublish",
    "PipelineRun",
    "PublishJob",
    "PublishPart",
    "PublishReject",
    "RegionGaugeMinute",
    "RegionHold",
    "Segment",
    "ShippedSegment",
    "SnapshotMessage",
]

"""What the data plane keeps in the database: the truth of which message is still owed to which subscription.

Django expects the tables in this module.
"""

from __future__ import annotations

from deliveries.models.jobs import ArchivedMessage as ArchivedMessage
from deliveries.models.jobs import ArchiveFile as ArchiveFile
from deliveries.models.jobs import ArchiveLeftover as ArchiveLeftover
from deliveries.models.jobs import ArchiveOwner as ArchiveOwner
from deliveries.models.jobs import PipelineRun as PipelineRun
from deliveries.models.jobs import PublishJob as PublishJob
from deliveries.models.jobs import PublishPart as PublishPart
from deliveries.models.jobs import PublishReject as PublishReject
from deliveries.models.messages import DeadLetter as DeadLetter
from deliveries.models.messages import DeadLetterJob as DeadLetterJob
from deliveries.models.messages import Delivery as Delivery
from deliveries.models.messages import LostOffer as LostOffer
from deliveries.models.messages import Message as Message
from deliveries.models.messages import PendingPublish as PendingPublish
from deliveries.models.messages import RegionHold as RegionHold
from deliveries.models.messages import SnapshotMessage as SnapshotMessage
from deliveries.models.metrics import CounterSample as CounterSample
from deliveries.models.metrics import CountingLease as CountingLease
from deliveries.models.metrics import GaugeMinute as GaugeMinute
from deliveries.models.metrics import GaugeRound as GaugeRound
from deliveries.models.metrics import Metric as Metric
from deliveries.models.metrics import MetricDay as MetricDay
from deliveries.models.metrics import MetricHour as MetricHour
from deliveries.models.metrics import MetricMinute as MetricMinute
from deliveries.models.metrics import RegionGaugeMinute as RegionGaugeMinute
from deliveries.models.metrics import Segment as Segment
from deliveries.models.metrics import ShippedSegment as ShippedSegment

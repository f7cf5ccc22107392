"""Regions with a Redis each: one that is cut off is taken over, gets itself back, and never acts beside its heir."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterator
from itertools import count

import pytest
import redis
import requests
from django.db import connection

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.lanestate import LaneSummary
from deliveries.backlog.records import Lane
from deliveries.models import Delivery, RegionHold
from tests.lanes import are_known
from tests.ports import wait_for
from tests.receiver import Answer, Receiver
from tests.regions import Region, Regions
from tests.restapi import Api

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
#: All times are a fifth of the usual ones, and a region is taken over after 3 s.
HASTY = """
from django.conf import settings
settings.REGION_TAKEOVER_SECONDS = 3.0
from deliveries.store import regionholds
regionholds.SURE_SECONDS, regionholds.SETTLE_SECONDS, regionholds.READ_SECONDS = 1.0, 2.0, 0.2
"""
KEYS, A_REQUEST = 5, 4


@pytest.fixture(autouse=True)
def only_postgresql() -> None:
    if connection.vendor != "postgresql":
        pytest.xfail("regions share a PostgreSQL")


@pytest.fixture
def regions(api: Api, redis_url: str) -> Iterator[Regions]:
    api.create("topics/orders")
    with Regions(first=HASTY) as regions:
        wait_for(lambda: holders() == {"near": "near", "far": "far"}, what="the holds")
        yield regions


def holders() -> dict[str, str]:
    return dict(RegionHold.objects.values_list("region", "holder"))


class Publisher:
    """Publishes numbered messages of some ordering keys in a region, and keeps what was answered."""

    def __init__(self, region: Region) -> None:
        self._url = f"{region.web.url}/v1/{TOPIC}:publish"
        self._keys = [f"{region.name}-{key}" for key in range(KEYS)]
        self._numbers = count()
        self.published: dict[str, list[int]] = defaultdict(list)

    def publish(self) -> int:
        """Publish the next messages, of one key, and return the status."""
        numbers = [next(self._numbers) for _ in range(A_REQUEST)]
        key = self._keys[numbers[0] // A_REQUEST % KEYS]
        messages = [{"data": base64.b64encode(b"%d" % number).decode(), "orderingKey": key} for number in numbers]
        answer = requests.post(self._url, json={"messages": messages}, timeout=60)
        if answer.ok:
            self.published[key] += numbers
        return answer.status_code


def arrivals(receiver: Receiver) -> dict[str, list[int]]:
    """Return the numbers of the messages of each key in the order of their arrival."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for request in list(receiver.requests):
        message = request.json["message"]
        numbers[message["orderingKey"]].append(int(base64.b64decode(message["data"])))
    return numbers


def test_a_region_that_is_cut_off_is_taken_over_and_gets_itself_back(api: Api, regions: Regions) -> None:
    near, far = Publisher(regions.near), Publisher(regions.far)
    with Receiver(default=Answer(204, delay_seconds=0.02)) as receiver:
        push = {"pushEndpoint": receiver.url}
        api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": push, "enableMessageOrdering": True})
        # Given messages of both regions, of which many wait
        for _ in range(100):
            assert (near.publish(), far.publish()) == (200, 200)
        wait_for(lambda: all(len(arrivals(receiver)[f"far-{key}"]) > 2 for key in range(KEYS)), what="some pushes")
        # When the far one is cut off from the database, then it takes no message, and the near one goes on
        regions.network.cut()
        assert far.publish() == 503
        assert near.publish() == 200
        # And takes over what the far one has answered
        wait_for(lambda: holders()["far"] == "near", what="the take-over")
        wait_for(lambda: not Delivery.objects.exists(), what="the acks")
        # When the network is back, then the far one gets itself back
        regions.network.mend()
        wait_for(lambda: far.publish() == 200, what="a publish in the far region")
        wait_for(lambda: holders()["far"] == "far", what="the far region's return")
        far.publish()
        near.publish()
        wait_for(lambda: not Delivery.objects.exists(), what="the last acks")
    # Nothing was lost, and each key kept its order. At most the message that was outstanding in the cut came again
    arrived = arrivals(receiver)
    for key, published in (near.published | far.published).items():
        assert sorted(set(arrived[key])) == published, key
        assert arrived[key] == sorted(arrived[key]), key
        assert len(arrived[key]) <= len(published) + 2, key


def test_what_one_region_changes_the_other_one_knows_soon(api: Api, regions: Regions) -> None:
    far = Publisher(regions.far)
    with Receiver(default=503) as old, Receiver() as new:
        # Given messages of the far region that its endpoint refuses
        api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": old.url}})
        far.publish()
        old.wait(A_REQUEST)
        # When the endpoint is changed in the near region
        url = f"{regions.near.web.url}/v1/projects/shop/subscriptions/push"
        changed = {"pushConfig": {"pushEndpoint": new.url}}
        assert requests.post(f"{url}:modifyPushConfig", json=changed, timeout=60).ok
        # Then the far one's worker pushes there
        wait_for(lambda: not Delivery.objects.exists(), what="the acks")
        # And the near one's Redis, where nobody pushes them, has none of these messages
        with redis.Redis.from_url(regions.near.redis_url) as client:
            assert {lane.region for lane in Backlog(client).lanes()} == {"near"}
        # And a message that the near one's server publishes for the far region arrives too
        header = {"X-PushHub-Region": "far"}
        body = {"messages": [{"data": "MQ=="}]}
        near_url = f"{regions.near.web.url}/v1/{TOPIC}:publish"
        assert requests.post(near_url, json=body, headers=header, timeout=60).ok
        wait_for(lambda: not Delivery.objects.exists(), what="the ack")
        assert len(new.requests) == A_REQUEST + 1


def test_what_one_region_seeks_or_deletes_the_other_one_forgets(api: Api, regions: Regions) -> None:
    far = Publisher(regions.far)
    with redis.Redis.from_url(regions.far.redis_url) as client, Receiver(default=503) as receiver:
        backlog = Backlog(client)

        def known() -> dict[Lane, LaneSummary]:
            return {lane: summary for lane, summary in backlog.summaries().items() if lane.region == "far"}

        # Given messages that the endpoint of the far region refuses
        api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
        far.publish()
        receiver.wait(A_REQUEST)
        [lane] = known()
        ids = list(Delivery.objects.values_list("message_id", flat=True))
        assert any(are_known(backlog, lane, ids))
        # When the near region's server skips them, then the far one's Redis forgets them
        url = f"{regions.near.web.url}/v1/projects/shop/subscriptions/push"
        assert requests.post(f"{url}:seek", json={"time": "2100-01-01T00:00:00Z"}, timeout=60).ok
        wait_for(lambda: not any(are_known(backlog, lane, ids)), what="the seek")
        # And when it deletes the subscription, the lane too
        assert requests.delete(url, timeout=60).ok
        wait_for(lambda: not known(), what="the end of the lane")

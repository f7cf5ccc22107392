"""Celery over kombu's transport for Cloud Pub/Sub: tasks are run and retried, and outlive a worker that is stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deliveries.models import Delivery
from subscriptions.models import Subscription
from tests.grpcservers import GrpcServer
from tests.ports import wait_for

FOLDER = Path(__file__).parent / "clients" / "celery"
WORKER = ("-m", "celery", "-A", "shop", "worker", "-P", "solo", "--without-gossip", "--without-mingle")
TASKS = 40


@contextmanager
def worker(environment: dict[str, str]) -> Iterator[None]:
    """Run a worker. At the end, tell it to stop, and wait until it has finished its task."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", *WORKER], cwd=FOLDER, env=environment, stdout=log, stderr=log
        )
        try:
            yield
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read())
            raise
        finally:
            process.terminate()
            process.wait(timeout=60)


def test_every_task_runs_although_the_worker_is_replaced(server: GrpcServer, tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    orders.touch()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "PUSHHUB"))}
    environment |= {"PACKED_ORDERS": str(orders), "PYTHONDONTWRITEBYTECODE": "1"}
    packed: set[str] = set()

    def is_packed(count: int) -> bool:
        packed.update(orders.read_text().split())
        return len(packed) >= count

    with worker(environment):
        producer = [sys.executable, "-W", "ignore", "shop.py", str(TASKS)]
        subprocess.run(producer, cwd=FOLDER, env=environment, check=True, timeout=60)
        wait_for(lambda: is_packed(10), what="the first tasks")
    with worker(environment):
        wait_for(lambda: is_packed(TASKS), what="the other tasks")
        queue = Subscription.objects.get(subscription_id="kombu-celery")
        wait_for(lambda: not Delivery.objects.filter(subscription_id=queue.pk).exists(), what="the acknowledgements")
    assert packed == {str(number) for number in range(TASKS)}

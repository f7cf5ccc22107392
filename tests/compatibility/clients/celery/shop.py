"""A Celery application over kombu's transport for Cloud Pub/Sub.

`celery -A shop worker` runs its tasks; `python shop.py 20` sends twenty.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from celery import Celery
from celery.signals import worker_shutdown

app = Celery("shop", broker="gcpubsub://projects/shop")
app.conf.update(
    broker_transport_options={"ack_deadline_seconds": 10},
    task_acks_late=True,
    worker_enable_remote_control=False,
)


@app.task(bind=True, default_retry_delay=0)
def order_pack(self, number: int) -> None:  # type: ignore[no-untyped-def]
    """Record an order. Every tenth order succeeds only at its second attempt."""
    if number % 10 == 9 and not self.request.retries:
        raise self.retry()
    with Path(os.environ["PACKED_ORDERS"]).open("a") as orders:
        orders.write(f"{number}\n")


@worker_shutdown.connect
def await_last_batch(**_: object) -> None:
    """Wait until the transport has published its last batch, which it does in the background and an exit would lose."""
    for name in ("Thread-PubSubBatchCommitter", "Thread-CommitBatchPublisher"):  # the first thread starts the second
        for thread in threading.enumerate():
            if thread.name == name:
                thread.join()


if __name__ == "__main__":
    with app.producer_or_acquire() as producer:
        for number in range(int(sys.argv[1])):
            order_pack.apply_async((number,), producer=producer)
        producer.channel.publisher.stop()
        await_last_batch()

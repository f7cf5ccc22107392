"""What a message costs: with a long backlog, with many subscriptions, and with nothing to do."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench.message import TOPIC
from bench.processes import BenchError, Nginx, cpu_seconds, nginx, say, wait_until
from bench.stand import Row, Stand, stand
from deliveries.backlog import reconcile
from deliveries.rules.shards import SHARDS
from deliveries.tasks import audit_backlog
from tests.ports import free_port

IDLE_TOPIC = "projects/bench/topics/idle"
#: Subscriptions that get messages while the others are idle.
ACTIVE = 10
SHORT = 10_000
#: Messages whose cost is measured, after a share of them that let the worker start and the window open.
SAMPLE, WARM_SHARE = 7_000, 0.3


def backlog(quick: bool) -> Row:
    """Measure Redis' memory behind a dead endpoint, and the cost per message of a long and a short backlog."""
    long, short, sample, rounds = (10_000, 2_000, 1_000, 1) if quick else (1_000_000, SHORT, SAMPLE, 5)
    with nginx(free_port()) as endpoint, stand() as deployment:
        dead = f"http://127.0.0.1:{free_port()}/push"
        deployment.subscribe(dead)
        with deployment.worker():
            deployment.publish(long)
            wait_until(lambda: deployment.redis.exists("ph:wake"), seconds=20, what="the first backoff")
            time.sleep(0.5 if quick else 5)
            memory = deployment.redis.info("memory")
        if deployment.left() != long:
            raise BenchError("some messages behind a dead endpoint are gone")
        many, few = [], []
        for _ in range(rounds):
            deployment.push_to(endpoint.url)
            many.append(_cost(deployment, endpoint, sample))
            deployment.push_to(dead)
            few.append(_short_cost(endpoint, short, sample))
    ratio = statistics.median(many) / statistics.median(few)
    used, peak = int(memory["used_memory"]) / 1e6, int(memory["used_memory_peak"]) / 1e6
    say(
        f"  backlog: Redis {used:.1f} MB (peak {peak:.1f});"
        f" µs a message {_list(many)} of {long:,}, {_list(few)} of {short:,}"
    )
    return {
        "redis_mb_dead_endpoint": round(used, 1),
        "redis_mb_dead_endpoint_peak": round(peak, 1),
        "cost_ratio_backlog": round(ratio, 2),
        "cost_us_backlog_long": round(statistics.median(many), 1),
        "cost_us_backlog_short": round(statistics.median(few), 1),
    }


def _short_cost(endpoint: Nginx, waiting: int, sample: int) -> float:
    with stand() as deployment:
        deployment.subscribe("")
        deployment.publish(waiting)
        deployment.push_to(endpoint.url)
        return _cost(deployment, endpoint, sample)


def _cost(deployment: Stand, endpoint: Nginx, sample: int) -> float:
    """Return the µs of CPU per message, of a new worker and of Redis, over `sample` messages after the start-up."""
    from_ = endpoint.received()
    with deployment.worker() as worker:
        wait_until(
            lambda: endpoint.received() >= from_ + WARM_SHARE * sample, seconds=120, what="the warm-up", every=0.005
        )
        first, before = endpoint.received(), cpu_seconds(worker.pid, deployment.redis_pid)
        # On a busy machine more than the warm-up has arrived, and the backlog may end before `first + sample`.
        end = from_ + (1 + WARM_SHARE) * sample
        wait_until(lambda: endpoint.received() >= end, seconds=120, what="the sample", every=0.005)
        spent = cpu_seconds(worker.pid, deployment.redis_pid) - before
        return spent / (endpoint.received() - first) * 1e6


def subscriptions(quick: bool) -> Row:
    """Compare 10,000 subscriptions with 10: when ten of them get all messages, and when each gets some."""
    many, total, rounds = (50, 6_000, 1) if quick else (10_000, 60_000, 2)
    ten, idle, busy = [], [], []
    with nginx(free_port()) as endpoint:
        for _ in range(rounds):
            with _among(endpoint, existing=ACTIVE) as deployment:
                ten.append(_cost_of(deployment, endpoint, [TOPIC], each=total // ACTIVE, total=total))
            # Creating the subscriptions takes a minute, so both cases use the same ones.
            with _among(endpoint, existing=many) as deployment:
                idle.append(_cost_of(deployment, endpoint, [TOPIC], each=total // ACTIVE, total=total))
                with deployment.worker():
                    wait_until(lambda deployment=deployment: not deployment.left(), seconds=120, what="the rest")
                busy.append(_cost_of(deployment, endpoint, [TOPIC, IDLE_TOPIC], each=total // many, total=total))
    base = statistics.median(ten)
    say(f"  subscriptions: µs a message {_list(ten)} with 10, {_list(idle)} with {many:,}, {_list(busy)} all active")
    return {
        "cost_ratio_subscriptions": round(statistics.median(idle) / base, 2),
        "cost_ratio_subscriptions_all_active": round(statistics.median(busy) / base, 2),
        "cost_us_subscriptions_ten": round(base, 1),
    }


@contextmanager
def _among(endpoint: Nginx, *, existing: int) -> Iterator[Stand]:
    """Yield a stand with `existing` subscriptions: ten of one topic, and the others of another."""
    with stand() as deployment:
        for number in range(existing):
            deployment.subscribe(endpoint.url, name=f"bench-{number}", topic=TOPIC if number < ACTIVE else IDLE_TOPIC)
        yield deployment


def _cost_of(deployment: Stand, endpoint: Nginx, topics: Sequence[str], *, each: int, total: int) -> float:
    """Return the µs of CPU per message when each subscription of these topics gets `each` messages, `total` in all."""
    for topic in topics:
        deployment.publish(each, topic=topic)
    return _cost(deployment, endpoint, total * 2 // 3)


def audit(quick: bool) -> Row:
    """Measure the CPU, of a maintenance process and of Redis, of one audit of 10,000 lanes with a message each."""
    many, rounds = (50, 1) if quick else (10_000, 3)
    costs = []
    with stand() as deployment:
        deployment.subscribe("http://127.0.0.1:1024/")
        deployment.clone_subscriptions(many - 1)
        deployment.publish(1)
        time.sleep(reconcile.GRACE_MS / 1000)
        for _ in range(rounds):
            before = cpu_seconds(os.getpid(), deployment.redis_pid)
            for shard in range(SHARDS):
                audit_backlog(shard)
            costs.append(cpu_seconds(os.getpid(), deployment.redis_pid) - before)
        if deployment.left() != many:
            raise BenchError("the audit did not compare all messages")
    say(f"  audit: s of CPU of {many:,} lanes {'/'.join(f'{cost:.2f}' for cost in costs)}")
    return {"audit_cpu_seconds": round(statistics.median(costs), 3)}


def idle(quick: bool) -> Row:
    """Measure the share of a core that an idle worker and Redis take."""
    seconds = 1 if quick else 20
    with stand() as deployment, deployment.worker() as worker:
        deployment.subscribe("http://127.0.0.1:1024/")
        wait_until(
            lambda: deployment.redis.keys("ph:work*") or deployment.redis.exists("ph:alive"),
            seconds=60,
            what="the worker",
        )
        time.sleep(0.5 if quick else 6)
        before = cpu_seconds(worker.pid, deployment.redis_pid)
        time.sleep(seconds)
        share = (cpu_seconds(worker.pid, deployment.redis_pid) - before) / seconds * 100
    say(f"  idle: {share:.2f} % of a core")
    return {"idle_percent_of_a_core": round(share, 2)}


def _list(costs: list[float]) -> str:
    return "/".join(f"{cost:.0f}" for cost in costs)

"""The rows of the engine's table. Each function measures one thing on a stand of its own and returns its keys."""

from __future__ import annotations

import base64
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis

from bench.stand import (
    HELLO,
    cpu_seconds,
    environment,
    maintenance_command,
    needed,
    nginx,
    process,
    rss_mb,
    say,
    wait_until,
    worker_command,
)
from tests.ports import free_port
from tests.redisserver import RedisServer

Row = dict[str, Any]
TOPIC = "projects/bench/topics/bench"


class Stand:
    """Redis, database and environment of one row; Django in this process works on the same."""

    def __init__(self, folder: Path, server: RedisServer) -> None:
        self.folder = folder
        self.http_port = free_port()
        self.redis_url = server.url
        self.redis = redis.Redis.from_url(server.url)
        self.redis_pid = server.pid
        self.env = environment(
            folder,
            redis_url=server.url,
            http_port=self.http_port,
            database_url=os.environ.get("PUSHHUB_DATABASE_URL", ""),
        )

    def worker(self) -> Any:
        return process(worker_command(), env=self.env)

    def left(self) -> int:
        from deliveries.models import Delivery

        return Delivery.objects.count()

    def publish(self, count: int, *, topic: str = TOPIC) -> None:
        from deliveries.rules.payload import NewMessage
        from deliveries.services import message_publish
        from subscriptions.selectors import topic_get

        found = topic_get(name=topic)
        messages = [NewMessage(HELLO, {"key": "value"})] * 1000
        for start in range(0, count, 1000):
            message_publish(topic=found, messages=messages[: min(1000, count - start)])

    def subscribe(self, url: str, *, name: str = "bench", topic: str = TOPIC, oidc: bool = True, **more: Any) -> int:
        from subscriptions import services
        from subscriptions.iam.service_accounts import service_account_create
        from subscriptions.models import ServiceAccount, Topic

        if not Topic.objects.filter(topic_id=topic.rpartition("/")[2]).exists():
            services.topic_create(name=topic, topic={})
        if not ServiceAccount.objects.exists():
            service_account_create(project="bench", request={"accountId": "pusher"})
        config: Row = {"pushEndpoint": url}
        if oidc:
            config["oidcToken"] = {"serviceAccountEmail": "pusher@bench.iam.gserviceaccount.com", "audience": "bench"}
        row = services.subscription_create(
            name=f"projects/bench/subscriptions/{name}", subscription={"topic": topic, "pushConfig": config, **more}
        )
        return int(row.pk)


@contextmanager
def stand() -> Iterator[Stand]:
    """A clean stand."""
    from django.conf import settings
    from django.core.management import call_command
    from django.db import connection

    with tempfile.TemporaryDirectory(prefix="pushhub-bench-") as name, RedisServer(Path(name)) as server:
        folder = Path(name)
        made = Stand(folder, server)
        settings.REDIS_URL = server.url
        connection.close()
        if connection.vendor == "sqlite":
            connection.settings_dict["NAME"] = str(folder / "pushhub.sqlite3")
        call_command("migrate", verbosity=0)
        call_command("flush", verbosity=0, interactive=False)
        yield made
        connection.close()


def middle_rate(left: Callable[[], int], count: int, *, seconds: float, what: str) -> float:
    """Messages a second between 95 % and 5 % left: without start-up and without the tail."""
    wait_until(lambda: left() <= 0.95 * count, seconds=seconds, what=what)
    first, began = left(), time.monotonic()
    wait_until(lambda: left() <= 0.05 * count, seconds=seconds, what=what)
    return (first - left()) / (time.monotonic() - began)


def drain(quick: bool) -> Row:
    """Ours against stock Celery and wrk: two rounds each, in turn, to the same nginx."""
    count, rival_count = (20_000, 1_500) if quick else (100_000, 6_000)
    ours, rival, costs, memory = [], [], [], []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(nginx(folder, port=free_port()))
        for _ in range(1 if quick else 2):
            rival.append(stock_round(url, rival_count))
            rate, cost, rss = drain_round(url, count)
            ours.append(rate)
            costs.append(cost)
            memory.append(rss)
        wrk = wrk_round(url, folder, seconds=3 if quick else 8)
    ratio = statistics.median(ours) / statistics.median(rival)
    return {
        "drain_ratio_vs_stock_celery": round(ratio, 1),
        "drain_ratio_vs_wrk": round(statistics.median(ours) / wrk, 3),
        "drain_per_second": round(statistics.median(ours)),
        "stock_celery_per_second": round(statistics.median(rival)),
        "wrk_per_second": round(wrk),
        "drain_cpu_us_a_message": round(statistics.median(costs), 1),
        "drain_worker_rss_mb": round(max(memory)),
    }


def drain_round(url: str, count: int) -> tuple[float, float, float]:
    """Messages a second, microseconds of worker CPU a message, and RSS in MB."""
    with stand() as made:
        made.subscribe(url)
        made.publish(count)
        with made.worker() as worker:
            rate = middle_rate(made.left, count, seconds=180, what="our drain")
            wait_until(lambda: not made.left(), seconds=60, what="the tail")
            cost, rss = cpu_seconds(worker.pid) / count * 1e6, rss_mb(worker.pid)
    say(f"  PushHub: {rate:,.0f} messages/s, {cost:.0f} µs CPU a message")
    return rate, cost, rss


def stock_round(url: str, count: int) -> float:
    """The rival's messages a second, on two prefork processes."""
    with tempfile.TemporaryDirectory() as name, RedisServer(Path(name)) as server:
        broker = server.url.replace("unix://", "redis+socket://")
        client = redis.Redis.from_url(server.url)
        env = {**os.environ, "BENCH_STOCK_BROKER": broker, "PYTHONWARNINGS": "ignore"}
        from bench import stock

        stock.app.conf.broker_url = broker
        body = push_body_text()
        with stock.app.connection_for_write() as connection, stock.app.amqp.Producer(connection) as producer:
            for _ in range(count):
                stock.push.apply_async((url, body, f"Bearer {'x' * 800}"), producer=producer)
        command = [sys.executable, "-m", "celery", "-A", "bench.stock", "worker", "-c", "2"]

        def left() -> int:
            return int(client.llen("celery")) + int(client.hlen("unacked"))

        with process(command, env=env):
            rate = middle_rate(left, count, seconds=180, what="the stock drain")
    say(f"  stock Celery and requests: {rate:,.0f} messages/s")
    return rate


def push_body_text() -> str:
    from deliveries.rules.envelope import push_body
    from deliveries.rules.payload import wire_message

    message = wire_message(911_742_875_595_837_440, HELLO, {"key": "value"}, "")
    return push_body(message, subscription="projects/bench/subscriptions/bench").decode()


def wrk_round(url: str, folder: Path, *, seconds: int) -> float:
    """What the endpoint takes from wrk, with the same body and as long a header."""
    script = folder / "post.lua"
    script.write_text(
        'wrk.method = "POST"\n'
        f"wrk.body = {json.dumps(push_body_text())}\n"
        'wrk.headers["Content-Type"] = "application/json"\n'
        f'wrk.headers["Authorization"] = "Bearer {"x" * 800}"\n'
    )
    command = [needed("wrk"), "-t1", "-c64", f"-d{seconds}s", "-s", str(script), url]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=True).stdout
    rate = float(printed.partition("Requests/sec:")[2].split()[0])
    say(f"  wrk: {rate:,.0f} requests/s")
    return rate


@contextmanager
def web(made: Stand) -> Iterator[None]:
    """The REST server as `make up` starts it."""
    code = "from pushhub import processes; import os; c = processes.web().command; os.execv(c[0], c)"
    with process([sys.executable, "-c", code], env=made.env):
        wait_until(lambda: _healthy(made.http_port), seconds=30, what="the web server")
        yield


def _healthy(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False


class Publisher:
    """A keep-alive connection that publishes the same body again and again."""

    def __init__(self, port: int, messages: int) -> None:
        data = base64.b64encode(HELLO).decode()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._body = json.dumps({"messages": [{"data": data, "attributes": {"key": "value"}}] * messages}).encode()

    def publish(self) -> bytes:
        self._connection.request("POST", f"/v1/{TOPIC}:publish", self._body)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise SystemExit(f"bench: publish was answered {answer.status}: {text[:200]!r}")
        return text


def in_threads(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def publish(quick: bool) -> Row:
    """Publish accepted durably over REST, 1,000 a request, two publishers; no worker runs."""
    seconds = 3 if quick else 15
    with stand() as made, web(made):
        made.subscribe("http://127.0.0.1:9/")
        done = [0, 0]
        deadline = time.monotonic() + seconds

        def work(number: int) -> None:
            publisher = Publisher(made.http_port, 1000)
            while time.monotonic() < deadline:
                publisher.publish()
                done[number] += 1000

        began = time.monotonic()
        in_threads(2, work)
        rate = sum(done) / (time.monotonic() - began)
        assert made.left() == sum(done)
    say(f"  publish: {rate:,.0f} messages/s")
    return {"publish_per_second": round(rate)}


def sustained(quick: bool) -> Row:
    """From publish over REST, 100 a request, to acked: offered at a steady rate, nothing may be left over."""
    from django.db import connection as database

    seconds, offered = (10, 6000) if quick else (60, 6000)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(nginx(folder, port=free_port()))
        made = stack.enter_context(stand())
        stack.enter_context(web(made))
        stack.enter_context(process(maintenance_command(made.folder), env=made.env))
        stack.enter_context(made.worker())
        made.subscribe(url)
        began = time.monotonic()
        total = offered * seconds

        def work(number: int) -> None:
            publisher = Publisher(made.http_port, 100)
            for turn in range(total // 200):
                time.sleep(max(began + (2 * turn + number) * 100 / offered - time.monotonic(), 0))
                publisher.publish()

        in_threads(2, work)
        accepted = time.monotonic() - began
        wait_until(lambda: not made.left(), seconds=60, what="the last ack")
        acked = time.monotonic() - began
    name = f"sustained_per_second_{database.vendor}"
    say(f"  {name}: accepted in {accepted:.1f} s, all acked in {acked:.1f} s of {seconds} s offered")
    return {name: round(total / acked), f"{name}_left_over": 0}


def latency(quick: bool) -> Row:
    """From the publish response to arrival, at 500 single publishes a second over 8 connections."""
    seconds, rate, publishers = (4 if quick else 20), 500, 8
    answered: dict[str, int] = {}
    with ExitStack() as stack:
        made = stack.enter_context(stand())
        stack.enter_context(web(made))
        port, notes = free_port(), made.folder / "arrivals"
        with process([sys.executable, "-m", "bench.sink", str(port), "0", str(notes)]), made.worker():
            made.subscribe(f"http://127.0.0.1:{port}/push")
            made.publish(100)
            wait_until(lambda: not made.left(), seconds=60, what="the warm-up")
            began = time.monotonic() + 0.5

            def work(number: int) -> None:
                publisher = Publisher(made.http_port, 1)
                for turn in range(rate * seconds // publishers):
                    time.sleep(max(began + (turn * publishers + number) / rate - time.monotonic(), 0))
                    [message_id] = json.loads(publisher.publish())["messageIds"]
                    answered[message_id] = time.monotonic_ns()

            in_threads(publishers, work)
            wait_until(lambda: not made.left(), seconds=60, what="the last ack")
        arrived = dict(line.split() for line in notes.read_text().splitlines())
    waits = sorted(max(int(arrived[name]) - at, 0) / 1e6 for name, at in answered.items())
    row = {"latency_ms_p50": waits[len(waits) // 2], "latency_ms_p99": waits[int(len(waits) * 0.99)]}
    say(f"  latency: p50 {row['latency_ms_p50']:.1f} ms, p99 {row['latency_ms_p99']:.1f} ms of {len(waits)}")
    return {name: round(value, 1) for name, value in row.items()}


def backlog(quick: bool) -> Row:
    """Redis' memory behind a dead endpoint, and what a message costs with a long backlog and with a short one."""
    long, short, sample = (100_000, 10_000, 6_000) if quick else (1_000_000, 10_000, 6_000)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(nginx(folder, port=free_port()))
        small = cost_of(url, short, sample)
        made = stack.enter_context(stand())
        made.subscribe(f"http://127.0.0.1:{free_port()}/push")
        with made.worker():
            made.publish(long)
            time.sleep(5)
            memory = int(made.redis.info("memory")["used_memory"]) / 1e6
        endpoint_set(url)
        large = worker_cost(made, sample, long)
    say(f"  backlog: {memory:.0f} MB of Redis, {small:.0f} µs a message with {short:,}, {large:.0f} µs with {long:,}")
    return {"redis_mb_dead_endpoint": round(memory, 1), "cost_ratio_backlog": round(large / small, 2)}


def endpoint_set(url: str) -> None:
    from subscriptions import services

    services.push_config_modify(
        name="projects/bench/subscriptions/bench", request={"pushConfig": {"pushEndpoint": url}}
    )


def cost_of(url: str, waiting: int, sample: int) -> float:
    with stand() as made:
        made.subscribe(url, oidc=False)
        made.publish(waiting)
        return worker_cost(made, sample, waiting)


def worker_cost(made: Stand, sample: int, waiting: int) -> float:
    """Microseconds of CPU, of worker and Redis, for each of the next `sample` messages; start-up is not counted."""
    with made.worker() as worker:
        wait_until(lambda: made.left() <= waiting - 2000, seconds=120, what="the first acks")
        before, from_ = made.left(), cpu_seconds(worker.pid) + cpu_seconds(made.redis_pid)
        wait_until(lambda: made.left() <= before - sample, seconds=120, what="the sample")
        spent = cpu_seconds(worker.pid) + cpu_seconds(made.redis_pid) - from_
        return spent / (before - made.left()) * 1e6


def subscriptions(quick: bool) -> Row:
    """What a message costs where 10,000 subscriptions exist, against 10; the same ten get the messages."""
    many = 1_000 if quick else 10_000
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(nginx(folder, port=free_port()))
        costs = []
        for others in (0, many - 10):
            with stand() as made:
                for number in range(10):
                    made.subscribe(url, name=f"bench-{number}", oidc=False)
                for number in range(others):
                    made.subscribe(url, name=f"idle-{number}", topic="projects/bench/topics/idle", oidc=False)
                made.publish(6_000)
                costs.append(worker_cost(made, 50_000, 60_000))
    say(f"  subscriptions: {costs[0]:.0f} µs a message with 10, {costs[1]:.0f} µs with {many:,}")
    return {"cost_ratio_subscriptions": round(costs[1] / costs[0], 2)}


def idle(quick: bool) -> Row:
    """Share of a core that an idle worker and Redis take, in percent."""
    seconds = 5 if quick else 20
    with stand() as made:
        made.subscribe("http://127.0.0.1:9/")
        with made.worker() as worker:
            time.sleep(6)
            before = cpu_seconds(worker.pid) + cpu_seconds(made.redis_pid)
            time.sleep(seconds)
            share = (cpu_seconds(worker.pid) + cpu_seconds(made.redis_pid) - before) / seconds * 100
    say(f"  idle: {share:.2f} % of a core")
    return {"idle_percent_of_a_core": round(share, 2)}


def outstanding(quick: bool) -> Row:
    """Many outstanding to an endpoint that answers after 10 s: memory, and what it does to a neighbour's latency.

    As many as this machine's limit of open files allows one process, 30,000 at most; their connections leave from four
    loopback addresses. The window is set open beforehand, as growing it would take minutes.
    """
    import resource

    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = 2_000 if quick else min(30_000, int((files - 200) * 0.75))
    with ExitStack() as stack:
        made = stack.enter_context(stand())
        made.env["PUSHHUB_PUSH_SOURCE_ADDRESSES"] = "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4"
        slow, fast, notes = free_port(), free_port(), made.folder / "arrivals"
        stack.enter_context(process([sys.executable, "-m", "bench.sink", str(slow), "10"]))
        sink = process([sys.executable, "-m", "bench.sink", str(fast), "0", str(notes)])
        with sink, made.worker() as worker:
            made.subscribe(f"http://127.0.0.1:{fast}/", name="neighbour")
            neighbours(made, 50)  # until the worker is warm
            idle_rss = rss_mb(worker.pid)
            before = neighbours(made, 200)
            pk = made.subscribe(f"http://127.0.0.1:{slow}/", topic="projects/bench/topics/slow", ackDeadlineSeconds=60)
            made.redis.hset(f"ph:{pk}:local:s", mapping={"w": wanted, "peak": wanted})
            made.publish(wanted * 2, topic="projects/bench/topics/slow")
            reached = 0
            deadline = time.monotonic() + 40
            while reached < 0.98 * wanted and time.monotonic() < deadline:
                reached = max(reached, int(float(made.redis.hget(f"ph:{pk}:local:s", "out") or 0)))
                time.sleep(0.05)
            rss = rss_mb(worker.pid)
            during = neighbours(made, 200)
        arrived = {name: int(at) for name, at in (line.split() for line in notes.read_text().splitlines())}
    ratio = p99(during, arrived) / p99(before, arrived)
    say(f"  outstanding: {reached:,} reached, {rss:.0f} MB (idle {idle_rss:.0f}), neighbour's p99 {ratio:.1f} x")
    return {
        "outstanding_reached": reached,
        "outstanding_30000_rss_mb": round(rss),
        "outstanding_30000_others_p99_ratio": round(ratio, 2),
    }


def neighbours(made: Stand, count: int) -> dict[str, int]:
    """Publish singly, 20 ms apart; returns when each was published."""
    from deliveries.rules.payload import NewMessage
    from deliveries.services import message_publish
    from subscriptions.selectors import topic_get

    topic, sent = topic_get(name=TOPIC), {}
    for _ in range(count):
        [name] = message_publish(topic=topic, messages=[NewMessage(HELLO, {})])
        sent[name] = time.monotonic_ns()
        time.sleep(0.02)
    time.sleep(2)
    return sent


def p99(sent: dict[str, int], arrived: dict[str, int]) -> float:
    waits = sorted(max(arrived[name] - at, 0) / 1e6 for name, at in sent.items() if name in arrived)
    return max(waits[int(len(waits) * 0.99)], 1.0)


ROWS: dict[str, Callable[[bool], Row]] = {
    "drain": drain,
    "publish": publish,
    "sustained": sustained,
    "latency": latency,
    "backlog": backlog,
    "subscriptions": subscriptions,
    "outstanding": outstanding,
    "idle": idle,
}

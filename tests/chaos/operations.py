"""The faults of storms that are an operator's doing. kinds.py says what a fault is."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.chaos.faults import HIT_SECONDS
from tests.chaos.kinds import fault
from tests.chaos.ledger import now
from tests.ports import wait_for

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

#: A change of a policy is promised to take effect within a second; this also has what a busy machine takes.
REVOKED_SECONDS = 5.0


@fault("moved", seconds=(0.0, 0.1), felt=10.0)
@contextmanager
def endpoint_moved(storm: Storm, target: str) -> Iterator[str]:
    contract = storm.world.contracts[target]
    storm.moves += 1
    storm.world.modify_push_config(contract, storm.world.push_config(contract, path=f"/moved/{storm.moves}"))
    yield f"to /moved/{storm.moves}"


@fault("moved", "plain", seconds=(1.0, 4.0), felt=30.0)
@contextmanager
def subscription_paused(storm: Storm, target: str) -> Iterator[str]:
    """Take the endpoint away and give it back: meanwhile it is a pull subscription that nobody pulls from."""
    contract = storm.world.contracts[target]
    storm.world.modify_push_config(contract, {})
    yield "without an endpoint"
    storm.world.modify_push_config(contract, storm.world.push_config(contract))


@fault("moved", "plain", seconds=(1.0, 4.0), felt=30.0)
@contextmanager
def push_paused(storm: Storm, target: str) -> Iterator[str]:
    """Pause by the verb, which keeps the endpoint, and resume. A repeated call says that nothing is left to do."""
    contract, caller = storm.world.contracts[target], storm.world.caller
    caller.until_done("POST", f"{contract.path}:pause")
    state = storm.subscription_state(target)
    assert state == (True, True), f"paused and with an endpoint: {state}"
    yield "paused, with its endpoint"
    caller.until_done("POST", f"{contract.path}:resume", accept=(200, 400))
    assert storm.subscription_state(target) == (False, True), f"{target} stays paused"


@fault("mayfly", seconds=(0.0, 1.0), felt=10.0)
@contextmanager
def subscription_made_again(storm: Storm, target: str) -> Iterator[str]:
    contract = storm.world.contracts[target]
    contract.since = float("inf")
    storm.world.caller.until_done("DELETE", contract.path, accept=(200, 404))
    yield "deleted"
    storm.world.make_subscription(contract)


@fault("orphan", seconds=(0.0, 2.0), felt=10.0)
@contextmanager
def topic_deleted(storm: Storm, target: str) -> Iterator[str]:
    """Delete a topic and make it again under its name, and then its subscription, which belonged to the old one."""
    contract = storm.world.contracts[target]
    contract.since = float("inf")
    storm.world.caller.until_done("DELETE", storm.topic_path(contract.topic), accept=(200, 404))
    yield "deleted"
    storm.world.make_topic(contract.topic)
    storm.world.caller.until_done("DELETE", contract.path, accept=(200, 404))
    storm.world.make_subscription(contract)


@fault("sought", seconds=(0.0, 0.1), felt=20.0)
@contextmanager
def seek(storm: Storm, target: str) -> Iterator[str]:
    """Seek to the past, by which messages come again, or to the present, by which none is owed any more."""
    contract = storm.world.contracts[target]
    past_seconds = storm.dice.choice([0, 5, 20])
    contract.seeks.append(now())
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - past_seconds))
    storm.world.caller.until_done("POST", f"{contract.path}:seek", {"time": moment})
    contract.replays.append((contract.seeks[-1] - past_seconds, contract.seeks[-1]))
    contract.seeks.append(now())
    yield f"to {moment}"


@fault("keys", seconds=(0.0, 0.1), felt=10.0)
@contextmanager
def key_replaced(storm: Storm, target: str) -> Iterator[str]:
    """Replace the key that signs pushes at once, as after a private key leaked; again if the database is away."""
    from django.core.management import CommandError, call_command
    from django.db import Error, connection

    from subscriptions.models.iam import SigningKey

    def replace() -> bool:
        try:
            before = SigningKey.objects.count()
            call_command("signing_keys", "replace", stdout=io.StringIO())
            assert SigningKey.objects.count() > before, "there is no new key"
        except (Error, CommandError):
            return False
        finally:
            connection.close()
        return True

    wait_for(replace, timeout_seconds=HIT_SECONDS, what="another key")
    yield "another key"


@fault("guest", seconds=(7.0, 9.0), felt=10.0)
@contextmanager
def permission_revoked(storm: Storm, target: str) -> Iterator[str]:
    """Take a publisher's role on its topic away and give it back. Meanwhile no server takes what it publishes."""
    storm.world.grant_guest(is_granted=False)
    revoked = now() + REVOKED_SECONDS
    wait_for(storm.world.is_guest_refused, timeout_seconds=HIT_SECONDS, what="a refusal by each web server")
    yield "both web servers answer 403"
    restored = now()
    storm.world.grant_guest(is_granted=True)
    for message in list(storm.ledger.published):
        if message.publisher == target and revoked < message.began < restored:
            storm.ledger.outrages.append(f"{message.message_id} was published without permission")


@fault("signed", seconds=(2.0, 4.0), felt=30.0)
@contextmanager
def account_disabled(storm: Storm, target: str) -> Iterator[str]:
    """Disable the service account whose tokens pushes carry, and enable it again. Meanwhile none of them goes out."""
    storm.world.enable_account(is_enabled=False)
    refused = now() + REVOKED_SECONDS
    wait_for(lambda: storm.token_refusals(target), timeout_seconds=HIT_SECONDS, what="a push without a token")
    time.sleep(max(refused - now(), 0))
    began = now()
    yield f"{storm.token_refusals(target)} messages wait for a token"
    restored = now()
    storm.world.enable_account(is_enabled=True)
    for delivery in list(storm.ledger.deliveries):
        if delivery.subscription == target and began < delivery.at < restored:
            storm.ledger.outrages.append(f"{delivery.message_id} was pushed although its account is disabled")

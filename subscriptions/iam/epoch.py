"""The access epoch: a token in the database by which each process notices that another one has changed access.

Processes keep decisions, callers and topics with their subscriptions for a second. A change of policies, roles, groups,
credentials, projects, folders, topics or subscriptions replaces the token right after its commit, before the change is
answered. A process that reads a token other than the last one forgets what it kept.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from time import sleep

from django.db import Error, connection, transaction
from django.db.models import Subquery

from pushhub.common.prepared import PreparedRows
from subscriptions.models import Subscription
from subscriptions.models.iam import AccessEpoch

#: How long a process may use what it keeps.
KEPT_SECONDS = 1.0
_ROW_ID = 1
_TOKEN_BITS = 62

_newest = Subquery(Subscription.objects.order_by("-pk").values("pk")[:1])
_tokens = PreparedRows(lambda pk: AccessEpoch.objects.filter(pk=pk).values_list("token", _newest), slots=(-1,))


def current() -> Sequence[int]:
    """Return the token, and the newest subscription: the release before 0.2.0 makes one without a new token.

    Before the first change there is nothing.
    """
    return next(_tokens(_ROW_ID), ())


def end_after_commit() -> None:
    """Replace the token once this transaction is committed, or at once outside of a transaction.

    It isn't part of the transaction, which would make all administrative changes wait for each other. A process that
    crashes in between leaves the others what they kept, for a second at most, and has not answered the change.
    """
    if not any(_end in entry for entry in connection.run_on_commit):
        transaction.on_commit(_end, robust=True)


def _end() -> None:
    row = AccessEpoch(pk=_ROW_ID, token=secrets.randbits(_TOKEN_BITS) + 1)
    try:
        AccessEpoch.objects.bulk_create([row], update_conflicts=True, unique_fields=["id"], update_fields=["token"])
    except Error:
        sleep(KEPT_SECONDS)  # the change is answered when nobody uses any more what was kept before
        raise

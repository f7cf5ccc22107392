"""Which errors mean that the database or Redis is away: they pass, and the same call made later succeeds."""

from __future__ import annotations

import redis
from django.db import InterfaceError, InternalError, OperationalError

#: InternalError is what PostgreSQL raises on a server that has just become read-only in a failover.
OUTAGES = (OperationalError, InterfaceError, InternalError, redis.ConnectionError, redis.TimeoutError)

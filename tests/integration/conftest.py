"""The integration tests call REST in their own process."""

from __future__ import annotations

from tests.restapi import api as api
from tests.restapi import client as client
from tests.restapi import no_decisions_of_the_test_before as no_decisions_of_the_test_before

"""Timed tasks about the files of a machine, which reach every maintenance worker."""

from __future__ import annotations

from kombu.common import Broadcast

OF_A_MACHINE = frozenset({"deliveries.journals_seal", "deliveries.segments_ship"})
#: Each worker's queue of them.
MACHINES = Broadcast("machines")

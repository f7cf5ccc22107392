"""Which tests share one of pytest-xdist's processes, so that Spark, a deployment and each client start once."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

#: Tests of one group run in one process, one after the other. All others go to whichever process is free.
GROUPS = {
    "tests/pipeline/test_archive.py": "spark",
    "tests/pipeline/test_data_source.py": "spark",
    "tests/pipeline/test_replay_and_ingest.py": "spark",
    "tests/pipeline/test_rollup.py": "spark",
    "tests/endtoend/test_make_up.py": "make up",
    "tests/compatibility/test_clients.py": "clients",
}


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Sends the tests of a group to one process, the largest group first."""

    def _split_scope(self, nodeid: str) -> str:
        return GROUPS.get(nodeid.partition("::")[0], nodeid)

"""Functions are named with the verb first: `create_topic`, not `topic_create` (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.layering import modules_of

ROOT = Path(__file__).parents[2]
#: Words that a name should begin with, not end with. What is as often a noun (count, list, name, page) is left out.
_VERBS = """
accept acknowledge add adopt advance allow apply assign attach audit authenticate authorize backfill begin bind build
cancel charge check choose close collect commit compare compile compress configure confirm convert create decode delete
deliver describe detach diagnose disable discard divide drop enable encode encrypt ensure enter execute expire fetch
find finish flush forget forward generate get grant include ingest insert install intercept invalidate keep leave load
maintain make merge migrate mint modify move nack normalise normalize note observe parse pause prepare produce prune
publish purge put raise read rebuild receive record redirect reencrypt refine refresh refuse register reject release
remember remove rename render renew repair replace require resend reserve reset resolve restart restore resume retire
retry revoke rollback rotate run save send serve settle shorten sign spawn start stop store submit subscribe sweep
take tell terminate transform undelete unlink update upload use validate verify wait write
"""
VERBS = frozenset(_VERBS.split())
#: How a question begins, or what a parser calls (`on_message_begin`).
QUESTIONS = frozenset(("is", "has", "can", "may", "must", "on"))
#: Words before which the first verb has been: `ask_to_stop`.
JOINING = frozenset(("to", "or", "and", "after"))
#: Those of Django's database routers, of redis-py's retries, and of kombu's transport.
GIVEN = frozenset(("db_for_read", "db_for_write", "call_with_retry", "_brpop_start", "_brpop_read"))


def verb_last(source: str) -> list[str]:
    """Return the functions of a module whose verb is their last word, or that are called by an adverb alone."""
    functions = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return [node.name for node in functions if _is_verb_last(node.name) and node.name not in GIVEN]


def _is_verb_last(name: str) -> bool:
    first, *others = name.removeprefix("_").split("_")
    if not others:
        return first.endswith("ly") and first not in VERBS  # an adverb
    if not first or others[-1] not in VERBS:
        return False
    return first not in VERBS | QUESTIONS and JOINING.isdisjoint(others)


@pytest.mark.parametrize("unit", ["pushhub", "deliveries", "subscriptions"])
def test_a_function_begins_with_its_verb(unit: str) -> None:
    modules = {name: source for name, source in modules_of(ROOT).items() if name.split(".")[0] == unit}
    assert [f"{name}.{function}" for name, source in modules.items() for function in verb_last(source)] == []


def test_a_verb_at_the_end_is_found_and_a_noun_is_not() -> None:
    source = "def topic_create(): ...\ndef create_topic(): ...\ndef topic_name(): ...\ndef _topic_create(): ..."
    assert verb_last(source + "\ndef gladly(): ...\ndef apply(): ...") == ["topic_create", "_topic_create", "gladly"]

"""Functions in sandbox processes: their input, what they may return, and what follows their failures."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pushhub.common.errors import ResourceExhausted
from subscriptions.transforms import sandboxes as module
from subscriptions.transforms.functions import Function
from subscriptions.transforms.results import FILTERED, Failed, Input, Transformed
from subscriptions.transforms.sandboxes import GROUP_MESSAGES, Sandboxes

SECONDS = 30.0


@pytest.fixture
def sandboxes() -> Iterator[Sandboxes]:
    sandboxes = Sandboxes(2)
    yield sandboxes
    sandboxes.close()


def run(sandboxes: Sandboxes, code: str, *inputs: Input, name: str = "f", project: str = "shop") -> list[object]:
    return list(sandboxes.run(project, [Function(name, code)], inputs, seconds=SECONDS))


def message(data: bytes = b"", attributes: dict[str, str] | None = None, **metadata: str) -> Input:
    return Input(data, attributes or {}, metadata)


def why(result: object) -> str:
    assert isinstance(result, Failed)
    return result.why


def processes(sandboxes: Sandboxes) -> dict[str, int]:
    return {project: sandbox.pid for project, sandbox in sandboxes._sandboxes.items()}


def test_a_function_changes_data_and_attributes(sandboxes: Sandboxes) -> None:
    code = """
        function f(message, metadata) {
            const order = JSON.parse(message.data);
            delete order.card;
            message.data = JSON.stringify(order);
            message.attributes.kind = "order";
            return message;
        }
    """
    data = json.dumps({"id": 1, "card": "4111", "name": "Zoë 店"}).encode()

    [result] = run(sandboxes, code, message(data, {"origin": "web"}))

    assert isinstance(result, Transformed)
    assert json.loads(result.data) == {"id": 1, "name": "Zoë 店"}
    assert result.attributes == {"origin": "web", "kind": "order"}


def test_a_function_sees_the_metadata_and_cannot_change_it(sandboxes: Sandboxes) -> None:
    code = """
        function f(message, metadata) {
            metadata.ordering_key = "other";
            return {data: JSON.stringify(metadata)};
        }
    """
    metadata = {"message_id": "12", "publish_time": "2026-01-02T03:04:05Z", "ordering_key": "key"}

    [result] = run(sandboxes, code, message(b"x", **metadata))

    assert isinstance(result, Transformed)
    assert json.loads(result.data) == metadata


def test_null_filters_a_message_and_no_attributes_remove_them(sandboxes: Sandboxes) -> None:
    code = 'function f(m) { return m.data === "drop" ? null : {data: m.data}; }'

    results = run(sandboxes, code, message(b"drop"), message(b"keep", {"a": "b"}))

    assert results == [FILTERED, Transformed(b"keep", {})]


def test_functions_run_one_after_the_other_until_one_filters_or_fails(sandboxes: Sandboxes) -> None:
    chain = [
        Function("first", 'const first = m => m.data === "1" ? null : {data: m.data + "a", attributes: m.attributes};'),
        Function(
            "second", 'function second(m) { if (m.data === "2a") throw new Error("two"); m.data += "b"; return m; }'
        ),
    ]
    inputs = [message(data) for data in (b"1", b"2", b"3")]

    assert sandboxes.run("shop", chain, inputs, seconds=SECONDS) == [
        FILTERED,
        Failed("Error: two (line 1)"),
        Transformed(b"3ab", {}),
    ]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("undefined", "must return an object"),
        ("true", "must return an object"),
        ("[1]", "must return an object"),
        ("{}", "data of the returned message must be a string"),
        ("{data: 1}", "data of the returned message must be a string"),
        ('{data: "", attributes: {a: 1}}', "must be strings"),
        ('{data: "", attributes: ["a"]}', "must be an object"),
        ('{data: "", attributes: "a"}', "must be an object"),
        ('{data: "x".repeat(10000001)}', "larger than 10 MB"),
        ("Promise.resolve(null)", "data of the returned message must be a string"),
        ('{data: "\\ud800"}', "not valid Unicode"),
    ],
)
def test_a_result_that_is_no_message_fails(sandboxes: Sandboxes, returned: str, words: str) -> None:
    [result] = run(sandboxes, f"function f() {{ return {returned}; }}", message(b"x"))

    assert words in why(result)


def test_a_message_whose_data_is_no_text_fails_alone(sandboxes: Sandboxes) -> None:
    results = run(sandboxes, "const f = m => m;", message(b"a"), message(b"\xff\xfe"), message(b"b"))

    assert "not UTF-8" in why(results[1])
    assert [results[0], results[2]] == [Transformed(b"a", {}), Transformed(b"b", {})]


def test_a_thrown_error_fails_its_message_alone(sandboxes: Sandboxes) -> None:
    code = 'function f(m) { if (m.data === "2") throw new RangeError("no two"); return m; }'

    results = run(sandboxes, code, *(message(str(number).encode()) for number in range(4)))

    assert why(results[2]) == "RangeError: no two (line 1)"
    assert [isinstance(result, Transformed) for result in results] == [True, True, False, True]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("function f(m) {\n  const order = {};\n  return order.card.number;\n}", "of undefined (line 3)"),
        ("const f = m =>\n  parse(m);\nconst parse = m => JSON.parse('no');", "(line 3)"),
        ("function f(m) {\n  return null;\n", "(line 3)"),
        ("function f(m) {\n  return {};\n}", "The data of the returned message must be a string."),
    ],
)
def test_an_error_names_the_line_of_the_users_code(sandboxes: Sandboxes, code: str, words: str) -> None:
    assert why(run(sandboxes, code, message(b"x"))[0]).endswith(words)


def test_more_messages_than_one_group_come_back_in_order(sandboxes: Sandboxes) -> None:
    inputs = [message(str(number).encode()) for number in range(2 * GROUP_MESSAGES + 1)]

    results = run(sandboxes, "function f(m) { return m; }", *inputs)

    assert results == [Transformed(input_message.data, {}) for input_message in inputs]


def test_messages_are_left_for_later_when_the_time_is_up(sandboxes: Sandboxes) -> None:
    function = Function("f", "function f(m) { const ends = Date.now() + 50; while (Date.now() < ends); return m; }")

    results = sandboxes.run("shop", [function], [message(b"x")] * 100, seconds=0.2)

    assert 1 <= len(results) < 100


def test_projects_take_turns(sandboxes: Sandboxes) -> None:
    slow = Function("f", "function f(m) { const ends = Date.now() + 20; while (Date.now() < ends); return m; }")
    quick = Function("f", "function f(m) { return m; }")

    long_calls = [sandboxes.submit(project, [slow], [message(b"x")] * 100, seconds=SECONDS) for project in ("a", "b")]
    second_calls = [sandboxes.submit(project, [quick], [message(b"x")], seconds=SECONDS) for project in ("a", "c")]

    assert second_calls[1].result(SECONDS) == [Transformed(b"x", {})]
    assert not any(call.done() for call in [*long_calls, second_calls[0]])
    assert [len(call.result(SECONDS)) for call in long_calls] == [100, 100]
    assert second_calls[0].result(SECONDS) == [Transformed(b"x", {})]


def test_calls_that_leave_no_time_are_refused(sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subscriptions.transforms.sandboxes.WAIT_SECONDS", -SECONDS)

    with pytest.raises(ResourceExhausted):
        sandboxes.submit("shop", [Function("f", "const f = m => m;")], [message(b"x")], seconds=1).result(SECONDS)


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("f", "function f(m) {", "SyntaxError"),
        ("f", "function g(m) { return m; }", "no function f"),
        ("f", "const f = 1;", "no function f"),
        ("f", "import x from 'os'; function f(m) { return m; }", "SyntaxError"),
        ("f", "for (;;);", "longer than 500 ms"),
        ("f", "throw new Error('no');", "Error: no"),
        ("class", "var x;", "SyntaxError"),
    ],
)
def test_code_that_cannot_run_is_reported(sandboxes: Sandboxes, name: str, code: str, words: str) -> None:
    assert words in sandboxes.check("shop", Function(name, code))
    assert words in why(run(sandboxes, code, message(b"x"), name=name)[0])


@pytest.mark.parametrize("code", ["function f(m) { return m; }", "const f = m => m;", "var f = function () {};"])
def test_code_that_has_the_function_is_valid(sandboxes: Sandboxes, code: str) -> None:
    assert sandboxes.check("shop", Function("f", code)) == ""


def test_each_project_has_a_process_and_the_one_idle_for_longest_makes_room(sandboxes: Sandboxes) -> None:
    for project in ("one", "two", "one", "three"):
        run(sandboxes, "function f(m) { return m; }", message(b"x"), project=project)

    assert list(processes(sandboxes)) == ["one", "three"]
    assert len(set(processes(sandboxes).values())) == 2


def test_a_sandbox_has_no_environment_and_can_open_nothing(sandboxes: Sandboxes) -> None:
    run(sandboxes, "function f(m) { return m; }", message(b"x"))
    process = Path("/proc") / str(processes(sandboxes)["shop"])

    assert (process / "environ").read_bytes() == b""
    assert "Max open files            3" in (process / "limits").read_text()
    assert len(list((process / "fd").iterdir())) == 3


def test_a_process_that_dies_is_replaced(sandboxes: Sandboxes) -> None:
    run(sandboxes, "function f(m) { return m; }", message(b"x"))
    os.kill(processes(sandboxes)["shop"], signal.SIGKILL)

    [result] = run(sandboxes, "function f(m) { return m; }", message(b"x"))

    assert isinstance(result, Failed | Transformed)
    assert run(sandboxes, "function f(m) { return m; }", message(b"y")) == [Transformed(b"y", {})]


def test_without_room_for_a_process_messages_wait_and_none_fails(
    sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a machine that cannot start a process twice, then the messages get their results from the third."""
    real, failures = module.subprocess.Popen, [OSError(errno.EAGAIN, "no more processes")] * 2

    def start(*args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*args, **kwargs)

    monkeypatch.setattr(module.subprocess, "Popen", start)
    code = "function f(message) { return message; }"
    assert run(sandboxes, code, message(b"a")) == [Transformed(b"a", {})]
    assert not failures


def test_a_process_that_ends_at_its_start_fails_no_message(
    sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the kernel ends it for want of memory: its messages would be nacked as if they were at fault."""
    real, programs = module.subprocess.Popen, ["pass", "import sys; sys.stdin.readline()"]
    silence_seconds = module.SILENCE_SECONDS

    def start(arguments: list[str], **kwargs: Any) -> Any:
        monkeypatch.setattr(module, "SILENCE_SECONDS", silence_seconds)
        return real([arguments[0], "-c", programs.pop()] if programs else arguments, **kwargs)

    monkeypatch.setattr(module.subprocess, "Popen", start)
    # The first process says nothing, which is found soon. The others may take their time on a busy machine.
    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.1)
    code = "function f(message) { return message; }"
    assert run(sandboxes, code, message(b"a")) == [Transformed(b"a", {})]
    assert not programs


def test_without_room_for_a_process_code_cannot_be_checked_now(
    sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(module.subprocess, "Popen", start)
    with pytest.raises(ResourceExhausted, match="Try again later"):
        sandboxes.check("shop", Function("f", "function f(message) { return message; }"))

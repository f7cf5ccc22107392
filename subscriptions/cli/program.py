"""What all commands have in common: parsers that are built from verbs, exit codes, errors of one line.

It imports neither Django nor the verbs, so that `pushhub` starts at once.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from subscriptions.cli.client import Client, client_of, quoted
from subscriptions.cli.errors import CliError
from subscriptions.cli.formats import harmless, parse_format, rendered
from subscriptions.cli.values import NO_PROJECT
from subscriptions.cli.verbs import Result, Verb

Tree = Mapping[str, "Verb | Tree"]
PROJECT_VARIABLES = ("PUSHHUB_PROJECT", "CLOUDSDK_CORE_PROJECT", "GOOGLE_CLOUD_PROJECT")


def add_parsers(parser: ArgumentParser, tree: Tree, path: Sequence[str]) -> None:
    children = parser.add_subparsers(required=True, metavar=" | ".join(tree))
    for name, node in tree.items():
        text = node.help if isinstance(node, Verb) else ", ".join(node)
        child = children.add_parser(name, help=text)
        if isinstance(node, Verb):
            child.description = f"{text[:1].upper()}{text[1:]}."
            for flag in node.flags:
                flag.add(child)
            _add_common(child)
            child.set_defaults(verb=node, path=[*path, name], parser=child)
        else:
            add_parsers(child, node, [*path, name])


def run_verb(options: dict[str, Any]) -> int:
    """Run the parsed verb, print its result, and return the exit code."""
    verb: Verb = options["verb"]
    try:
        options["project"] = _project(verb, options)
        client = client_of(options)
        result = verb.run(client, options)
        if result.note:
            sys.stderr.write(result.note + "\n")
        text = _text(result, options, client)
        if text:
            sys.stdout.write((harmless(text) if sys.stdout.isatty() else text) + "\n")
    except CliError as error:
        sys.stderr.write(f"ERROR: ({'.'.join(options['path'])}) {harmless(str(error))}\n")
        return 1
    except UnicodeEncodeError:
        sys.stderr.write(f"ERROR: ({'.'.join(options['path'])}) an argument is not UTF-8\n")
        return 1
    for failure in result.failures:
        sys.stderr.write(f"ERROR: ({'.'.join(options['path'])}) {harmless(failure)}\n")
    return 1 if result.failures else 0


def _text(result: Result, options: Mapping[str, Any], client: Client) -> str:
    form, value = options["format"], result.value
    if isinstance(value, list):
        value = [row for row in value if client.is_listed(row)]
    if options.get("uri"):
        rows = value if isinstance(value, list) else [value]
        names = [row["name"] for row in rows if isinstance(row, dict) and "name" in row]
        return "\n".join(f"{client.address}/v1/{quoted(name)}" for name in names)
    if result.form == "text" and (form is None or form.name == "table"):
        return harmless(str(result.value))
    if value is None:
        return ""
    return rendered(value, form or parse_format(result.form), columns=result.columns)


def _add_common(parser: ArgumentParser) -> None:
    common = parser.add_argument_group("which PushHub, as whom")
    common.add_argument("--project", help="or PUSHHUB_PROJECT, CLOUDSDK_CORE_PROJECT, GOOGLE_CLOUD_PROJECT")
    common.add_argument("--url", help="or PUSHHUB_URL; else http:// and PUSHHUB_HTTP")
    common.add_argument("--access-token-file", help="a file with an access token; or PUSHHUB_TOKEN holds one")
    common.add_argument("--key-file", help="a service account's key file")
    output = parser.add_argument_group("what is printed")
    output.add_argument(
        "--format", type=parse_format, help="json, yaml, none, table(name, topic), value(name), csv(...)"
    )
    output.add_argument("--filter", help="the rows of a list to print, such as topic:orders AND ackDeadlineSeconds=10")
    output.add_argument("--uri", action="store_true", help="print the URLs of resources and nothing else")
    output.add_argument("-q", "--quiet", action="store_true", help="do not ask before discarding or skipping messages")


def confirm(question: str, options: Mapping[str, Any]) -> None:
    """Ask the user of a terminal, unless --quiet is set. Raises CliError for any answer but yes."""
    if options["quiet"] or not sys.stdin.isatty():
        return
    sys.stderr.write(f"{question} (y/N) ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CliError("nothing was done")


def _project(verb: Verb, options: Mapping[str, Any]) -> str:
    """Return the project of short names, or "" if a name is full. Raises CliError without a project."""
    project = options["project"] or next((os.environ[name] for name in PROJECT_VARIABLES if os.environ.get(name)), "")
    if project:
        return str(project)
    values = [options.get(flag.key) for flag in verb.flags]
    texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
    if options["path"][0] == "projects" or any(str(text).startswith("projects/") for text in texts):
        return ""
    if options["path"][:2] == ["iam", "service-accounts"] and options["path"][2] not in ("create", "list"):
        return ""
    raise CliError(NO_PROJECT)


def each(names: Sequence[str], act: Callable[[str], object], *, done: str) -> Result:
    """Act on each of the named resources, even if others fail, and report each result."""
    notes, failures = [], []
    for name in names:
        try:
            act(name)
            notes.append(f"{done} [{name}].")
        except CliError as error:
            failures.append(f"[{name}]: {error}" if len(names) > 1 else str(error))
    return Result(note="\n".join(notes), failures=failures)

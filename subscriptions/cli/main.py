"""The commands of `pushhub` that call a running PushHub. Each loads neither Django nor the modules of the others."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType

from pushhub.common.parser import Parser
from subscriptions.cli.program import Tree, add_parsers, run_verb
from subscriptions.cli.verbs import Verb

#: The commands of `gcloud pubsub`, for which `pubsub` may be omitted.
PUBSUB_WORDS = ("topics", "subscriptions", "snapshots", "schemas", "message-transforms")
PUBSUB = "pubsub"
#: Every first word that `main` accepts.
WORDS = (*PUBSUB_WORDS, PUBSUB, "dead-letters", "iam", "messages", "projects")


def tree_of(word: str) -> Tree:
    if word == PUBSUB:
        return {name: tree_of(name) for name in PUBSUB_WORDS}
    if word == "iam":
        accounts = _noun("accounts")
        return {"service-accounts": {**accounts.VERBS, "keys": accounts.KEY_VERBS}}
    tree: Tree = _noun(word).VERBS
    return tree


def _noun(word: str) -> ModuleType:
    return import_module(f"subscriptions.cli.nouns.{word.replace('-', '_')}")


def commands_of(verb: str) -> list[str]:
    """Return the commands that end with a verb, such as `subscriptions diagnose`."""
    nouns = [word for word in WORDS if word not in (PUBSUB, "iam")]
    return [f"{word} {verb}" for word in nouns if verb in tree_of(word)]


def main(arguments: Sequence[str]) -> int:
    """Run a command line that begins with one of WORDS; return the exit code."""
    word, *rest = arguments
    path = [word]
    if word == PUBSUB and rest[:1] and rest[0] in PUBSUB_WORDS:
        path, rest = [PUBSUB, rest[0]], rest[1:]
    elif word in PUBSUB_WORDS:
        path = [PUBSUB, word]
    parser = Parser(prog=" ".join(("pushhub", *path[path[0] == PUBSUB and word != PUBSUB :])))
    add_parsers(parser, tree_of(path[-1]), path)
    options, unknown = parser.parse_known_args(rest)
    if unknown:
        options.parser.refuse(unknown)
    return run_verb(vars(options))


def candidates(words: Sequence[str], *, commands: Sequence[str] = ()) -> list[str]:
    """Return the completions of the last of the words after `pushhub`. `commands` are further first words."""
    *before, last = words or [""]
    node: Verb | Tree | None = {word: {} for word in (*WORDS, *commands)}
    for position, word in enumerate(before):
        if isinstance(node, Verb):
            break
        if not position:
            node = tree_of(word) if word in WORDS else None
        else:
            node = node.get(word) if isinstance(node, Mapping) else None
        if node is None:
            return []
    if isinstance(node, Verb):
        return flags_of(_parser_of(node), last)
    return [word for word in node or () if word.startswith(last)]


def flags_of(parser: ArgumentParser, beginning: str) -> list[str]:
    """Return the flags of a parser that begin with a text, which has to be the beginning of a flag."""
    flags = sorted(parser._option_string_actions)
    return [flag for flag in flags if flag.startswith(beginning)] if beginning.startswith("-") else []


def _parser_of(verb: Verb) -> ArgumentParser:
    parser = ArgumentParser(add_help=False)
    add_parsers(parser, {"verb": verb}, [])
    [subparsers] = [action for action in parser._actions if action.nargs == "A..."]
    choices: Mapping[str, ArgumentParser] = subparsers.choices  # type: ignore[assignment]
    return choices["verb"]


#: What each shell runs to ask for candidates.
SCRIPTS = {
    "bash": """\
_pushhub() {
  local IFS=$'\\n'
  COMPREPLY=($(pushhub __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _pushhub pushhub
""",
    "zsh": """\
#compdef pushhub
(( $+functions[compdef] )) || { autoload -U compinit && compinit -i }
_pushhub() {
  local -a words_found
  words_found=(${(f)"$(pushhub __complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  compadd -- $words_found
}
compdef _pushhub pushhub
""",
    "fish": """\
function __pushhub_complete
  set -l tokens (commandline -opc) (commandline -ct)
  pushhub __complete $tokens[2..-1] 2>/dev/null
end
complete -c pushhub -f -a '(__pushhub_complete)'
""",
}


def completion(arguments: Sequence[str]) -> int:
    """Print a shell's completion script: `source <(pushhub completion bash)`."""
    parser = Parser(
        prog="pushhub completion",
        description="Print the script by which a shell completes PushHub's commands, words and flags.",
        epilog="In bash: source <(pushhub completion bash). In fish: pushhub completion fish | source.",
    )
    parser.add_argument("shell", choices=SCRIPTS, help="the shell")
    sys.stdout.write(SCRIPTS[parser.parse_args(arguments).shell])
    return 0

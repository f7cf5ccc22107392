"""The parser of every command line. It imports little, as the emulator starts with it."""

from __future__ import annotations

from argparse import Action, ArgumentError, ArgumentParser
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn


class Parser(ArgumentParser):
    """Answers a mistake with one line, which has the nearest word if a word is unknown."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} ({self.prog} --help says more)\n")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Exit, as these arguments are none that this parser has."""
        hint = nearest(unknown[0].partition("=")[0], self._option_string_actions)
        self.error(f"unknown arguments: {' '.join(unknown)}{': ' if hint else ''}{hint}")

    def _check_value(self, action: Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        hint = nearest(str(value), action.choices) or f"choose from {', '.join(map(str, action.choices))}"
        raise ArgumentError(action if action.option_strings else None, f"unknown word {str(value)!r}: {hint}")


def nearest(word: str, words: Iterable[str]) -> str:
    """Return `did you mean X?` for the word that resembles this one, or "" if none does."""
    from difflib import get_close_matches

    [*close] = get_close_matches(word, words, n=1, cutoff=0.7)
    return f"did you mean {close[0]}?" if close else ""

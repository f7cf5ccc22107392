"""Finds the objects of a JSON file whose objects take several lines, or are the elements of one array."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

CHUNK_BYTES = 64 * 1024
#: The characters that matter within a string, and outside of strings.
IN_STRING = re.compile(r'["\\]')
OUTSIDE = re.compile(r'["{}\[\]]')
#: What is skipped between two objects: white space, and in an array also commas and the closing bracket.
SPACE, BETWEEN = re.compile(r"\s*"), re.compile(r"[\s,\]]*")
#: A stray text between two objects goes to the end of its line.
STRAY = re.compile(r"[^\n{]*")


@dataclass(frozen=True, slots=True)
class JsonText:
    """A text that should be an object, and the lines that it takes."""

    text: str
    first: int
    last: int
    #: Whether the file ends within it, or it is longer than allowed. No text follows it.
    is_cut: bool = False


class JsonScanner:
    """Splits the text of a file at the brackets. It does not check what stands between them."""

    def __init__(self, file: BinaryIO, *, encoding: str, longest: int) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="surrogateescape")
        self._longest = longest
        self._text = ""
        self._line = 1

    def __iter__(self) -> Iterator[JsonText]:
        self._read()
        self._text = self._text.removeprefix("\ufeff")
        self._drop(SPACE)
        between = SPACE
        if self._text[:1] == "[":
            self._text, between = self._text[1:], BETWEEN
        while True:
            self._drop(between)
            if not self._text:
                return
            if self._text[0] != "{":
                yield self._taken(self._stray_end())
                continue
            end = self._object_end()
            if end is None:
                yield self._taken(len(self._text), is_cut=True)
                return
            yield self._taken(end)

    def _read(self) -> bool:
        """Read on; return whether there was anything."""
        text = ""
        while not text and (chunk := self._file.read(CHUNK_BYTES)):
            text = self._decoder.decode(chunk)  # "" for a part of a character
        text = text or self._decoder.decode(b"", final=True)
        self._text += text
        return bool(text)

    def _drop(self, pattern: re.Pattern[str]) -> None:
        """Drop what the pattern matches from here on."""
        while True:
            match = pattern.match(self._text)
            assert match is not None
            self._line += self._text.count("\n", 0, match.end())
            self._text = self._text[match.end() :]
            if self._text or not self._read():
                return

    def _stray_end(self) -> int:
        while True:
            match = STRAY.match(self._text)
            assert match is not None
            if match.end() < len(self._text) or len(self._text) > self._longest or not self._read():
                return match.end()

    def _object_end(self) -> int | None:
        """Return where the object that begins here ends; None if it does not end, or is too long."""
        depth, position, in_string = 0, 0, False
        while True:
            match = (IN_STRING if in_string else OUTSIDE).search(self._text, position)
            # A backslash at the very end needs the character that it escapes.
            if match is None or (match[0] == "\\" and match.end() == len(self._text)):
                position = match.start() if match else len(self._text)
                if len(self._text) > self._longest or not self._read():
                    return None
                continue
            position = match.end()
            if match[0] == "\\":
                position += 1
            elif match[0] == '"':
                in_string = not in_string
            else:
                depth += 1 if match[0] in "{[" else -1
                if not depth:
                    return position

    def _taken(self, end: int, *, is_cut: bool = False) -> JsonText:
        text, self._text = self._text[:end], self._text[end:]
        first = self._line
        self._line += text.count("\n")
        return JsonText(text, first, self._line, is_cut)

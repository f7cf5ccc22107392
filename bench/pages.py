"""Tables that a program writes into a page of the docs, each below a comment that names the program."""

from __future__ import annotations

import re
from collections.abc import Sequence


def put_block(text: str, mark: str, block: str) -> str:
    """Return the page's text with a block in place of the one below this comment, which ends at the next blank line.

    If a heading follows the comment, there is none yet.
    """
    pattern = re.compile(f"(?<={re.escape(mark)}\n\n)(?:(?!#).*?(?=\n\n))?", re.DOTALL)
    return pattern.sub(lambda old: block if old[0] else f"{block}\n\n", text)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows])

"""Files in JSON or YAML, as arguments of flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from subscriptions.cli.errors import CliError


def content_of(path: str) -> Any:
    """Return the content of a file in JSON or YAML. Raises CliError."""
    import yaml  # slow to load, and rarely needed

    try:
        text = Path(path).read_text(encoding="utf-8")
        return json.loads(text) if text.lstrip().startswith(("{", "[")) else yaml.safe_load(text)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from None
    except (ValueError, yaml.YAMLError):
        raise CliError(f"{path}: neither JSON nor YAML") from None

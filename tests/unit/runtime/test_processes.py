"""Which settings keep a process from being started."""

from __future__ import annotations

import pytest

from pushhub.common.environment import SettingError
from pushhub.runtime import processes


@pytest.mark.parametrize("login", ["admin", "admin:", ":hunter2", "admin:hunter2,"])
def test_a_login_of_flower_has_a_name_and_a_password(monkeypatch: pytest.MonkeyPatch, login: str) -> None:
    monkeypatch.setenv("PUSHHUB_FLOWER_LOGIN", login)
    with pytest.raises(SettingError, match="^PUSHHUB_FLOWER_LOGIN: give user:password$"):
        processes.flower()
    monkeypatch.setenv("PUSHHUB_FLOWER_LOGIN", "admin:hunter2,ada:x:y")
    assert processes.flower().environment == {"FLOWER_BASIC_AUTH": "admin:hunter2,ada:x:y"}

"""The error for an option of [kafka] that has a value it must not have."""

from __future__ import annotations

from conf.errors import SettingError
from conf.secrets import is_secret


def wrong_option(name: str, value: str | None, allowed: str) -> SettingError:
    """Return the error for the option `name`, which is not set if `value` is None; a secret value is masked."""
    shown = "not set" if value is None else "******" if is_secret(name, value) else repr(value)
    return SettingError(f"kafka.{name} = {shown}: allowed is {allowed}")

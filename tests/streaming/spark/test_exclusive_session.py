"""Errors that are reported before waiting for Spark and the lease."""

from __future__ import annotations

import pytest

from conf.errors import SettingError
from conf.load import load_settings
from streaming.spark.exclusive_session import exclusive_session


def test_options_that_the_leases_producer_cannot_use_are_wrong_settings() -> None:
    wrong = ["kafka.bootstrap_servers=127.0.0.1:1", "kafka.socket.timeout.ms=30000"]
    settings = load_settings(None, wrong, environ={})
    with pytest.raises(SettingError, match=r"lease\.period"), exclusive_session(settings, "rescale"):
        pass

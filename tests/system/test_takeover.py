"""One job for each application id: a second one is refused, and one that resumes too late does nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.eventually import assert_eventually
from tests.system.conftest import Application, MakeService
from tests.system.load import publish_mixed
from tests.system.service import Service


def _elsewhere(application: Application, name: str, *overrides: str) -> Service:
    """Return a service of the same application, with its logs in another folder."""
    folder: Path = application.folder / name
    folder.mkdir()
    return Service(folder, application.overrides(*overrides))


@pytest.mark.thorough
@pytest.mark.takes(80)
def test_a_driver_paused_past_a_takeover_can_neither_deliver_nor_seal(
    application: Application, make_service: MakeService
) -> None:
    first, ledger = make_service()
    first.start()
    publish_mixed(ledger, application, 300, seed=1, longest_ms=20_000)

    second = _elsewhere(application, "second")
    try:
        second.start(wait=False)
        # While the first job is alive.
        assert second.wait() == 1
        assert f"application-held: process {first.pid} on host" in second.log

        first.pause()
        publish_mixed(ledger, application, 300, seed=2, longest_ms=20_000)
        second.start()
        publish_mixed(ledger, application, 300, seed=3, longest_ms=20_000)
        ledger.check = second.check
        delivered = len(ledger.got)
        assert_eventually(lambda: len(ledger.got) > delivered, 60, "a delivery by the second")
        first.resume()
        assert first.wait() == 1
        assert f"application-held: process {second.pid} on host" in first.log
        publish_mixed(ledger, application, 300, seed=4, longest_ms=5_000)
        ledger.verify_after_outage(60)
        assert second.stop() == 0, second.log[-3000:]
    finally:
        second.kill()

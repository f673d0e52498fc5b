"""Names: of the messages of one, the newest comes out, and a cancel by it is answered."""

from __future__ import annotations

import time

import pytest

from tests.system.conftest import Application
from tests.system.in_process.conftest import MakeJob
from tests.system.named_load import NamedLoad

pytestmark = pytest.mark.system


@pytest.mark.takes(40)
def test_the_newest_message_of_each_name_comes_out(application: Application, make_job: MakeJob) -> None:
    job, ledger = make_job("policies.names=key")
    ledger.close()
    load = NamedLoad(application)

    def publish() -> None:
        for seed in range(4):
            load.publish_some(50, seed, longest_ms=8_000, names=30)
            time.sleep(1)
        load.verify(60)

    job.run_until(publish)
    load.close()
    assert load.replaced()

"""The switch to a new checkpoint, for another number of shards or after a loss, interrupted at every step."""

from __future__ import annotations

import shutil
import signal

import pytest

from conf.failpoints import SUCCESSION_POINTS
from tests.eventually import assert_eventually
from tests.system.checkpoint_files import accepted
from tests.system.conftest import Application, MakeService
from tests.system.cut_off import finish, kill_in_the_middle
from tests.system.ledger import Ledger
from tests.system.load import publish_mixed
from tests.system.service import Service


@pytest.mark.thorough
@pytest.mark.takes(90)
def test_a_rescale_loses_and_duplicates_nothing(application: Application, make_service: MakeService) -> None:
    service, ledger = make_service("release.slice=20ms")
    kill_in_the_middle(service, ledger, application, seed=1)
    for point in SUCCESSION_POINTS:
        code = service.command("rescale", "--shards", "3", failpoint=f"{point}=kill")
        assert code == -signal.SIGKILL, f"{point} was not reached:\n{service.log[-3000:]}"
        if point in ("rest-sealed", "successor-born"):
            # The job refuses the checkpoint, because its state is in a bucket by now.
            assert service.command("run") == 1
            assert "checkpoint-mismatch" in service.log
            assert "delayline rescale" in service.log
    # The last point was passed with the pointer written.
    assert application.checkpoint.name == "checkpoint-2"
    assert service.command("rescale", "--shards", "3") == 2
    assert "already has 3 shards" in service.log
    service.overrides.append("bucket.shards=3")
    finish(service, ledger, application, seed=2)


@pytest.mark.thorough
@pytest.mark.takes(150)
def test_a_lost_checkpoint_is_rebuilt_and_no_message_is_lost_or_duplicated(
    application: Application, make_service: MakeService
) -> None:
    service, ledger = make_service("release.slice=20ms")
    kill_in_the_middle(service, ledger, application, seed=1)
    checkpoint = application.checkpoint
    assert service.command("rebuild") == 2
    assert "there is a checkpoint" in service.log
    shutil.rmtree(checkpoint)
    for point in SUCCESSION_POINTS:
        code = service.command("rebuild", failpoint=f"{point}=kill")
        assert code == -signal.SIGKILL, f"{point} was not reached:\n{service.log[-3000:]}"
    # The last point was passed with the pointer written.
    assert service.command("rebuild") == 2
    assert "there is a checkpoint" in service.log
    # Again: from a rebuilt checkpoint, to another number of shards, and with the checkpoint still there.
    kill_in_the_middle(service, ledger, application, seed=3)
    service.overrides.append("bucket.shards=1")
    for point in SUCCESSION_POINTS:
        code = service.command("rebuild", "--discard-checkpoint", failpoint=f"{point}=kill")
        assert code == -signal.SIGKILL, f"{point} was not reached:\n{service.log[-3000:]}"
        if point == "rest-sealed":
            # The checkpoint's messages are in a bucket by now: neither command goes on from it.
            for command in (("run",), ("rescale", "--shards", "3")):
                assert service.command(*command) == 1
                assert "checkpoint-mismatch" in service.log
            assert "delayline rebuild --discard-checkpoint" in service.log
    finish(service, ledger, application, seed=4)


@pytest.mark.thorough
@pytest.mark.takes(120)
def test_a_driver_paused_past_a_rebuild_seals_nothing_of_what_that_accepted_again(
    application: Application, make_service: MakeService
) -> None:
    first, ledger = make_service("release.slice=20ms")
    publish_mixed(ledger, application, 400, seed=1, longest_ms=40_000)
    rebuild_while_paused(first, "run", ledger=ledger, application=application)


@pytest.mark.thorough
@pytest.mark.takes(150)
def test_a_rescale_paused_past_a_rebuild_seals_nothing_of_what_that_accepted_again(
    application: Application, make_service: MakeService
) -> None:
    # All waiting messages are in the state, and no batch is left to replay, so the rescale seals the state first.
    first, ledger = make_service("release.slice=20ms", "bucket.max_messages=1000")
    first.start()
    publish_mixed(ledger, application, 400, seed=1, longest_ms=80_000)
    checkpoint = application.checkpoint
    assert_eventually(lambda: accepted(checkpoint) == len(ledger.sent), 60, "acceptance")
    assert first.stop() == 0, first.log[-3000:]
    rebuild_while_paused(first, "rescale", "--shards", "3", ledger=ledger, application=application)


def rebuild_while_paused(first: Service, *command: str, ledger: Ledger, application: Application) -> None:
    """Pause `command` between its check of the lease and its commit to the table, rebuild, and let it go on."""
    first.launch("sealing=pause", *command)
    assert_eventually(first.is_paused, 180, "the pause")
    folder = application.folder / "second"
    folder.mkdir()
    second = Service(folder, application.overrides("release.slice=20ms"))
    try:
        assert second.command("rebuild", "--discard-checkpoint") == 0, second.log[-3000:]
        first.resume()
        assert first.wait(120) == 1
        assert "application-held" in first.log
        ledger.check = second.check
        finish(second, ledger, application, seed=2)
    finally:
        second.kill()

"""A release process or a forwarder, with what monitors it: as a supervisor or an operator starts one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal

from prometheus_client.registry import Collector

from conf.settings import Settings
from streaming.monitor.monitored import monitored
from streaming.monitor.server import Health
from streaming.processes.kinds import Kind

if TYPE_CHECKING:
    from sinks.release.process import ReleaseProcess
    from streaming.forward.process import ForwardProcess


@contextmanager
def monitored_member(
    kind: Kind, settings: Settings, name: str, waits_for_address: bool = False
) -> Iterator[ReleaseProcess | ForwardProcess]:
    """Yield the process `name`, to be run. In this context it answers at its address in `[monitor]`, if that is set.

    If `waits_for_address`, it works without an answer while another process listens there. Raises SettingError,
    MissingExtra, and what making the process raises.
    """
    process: ReleaseProcess | ForwardProcess
    metrics: Collector
    health: Callable[[], Health]
    role: Literal["release", "forward"]
    # Each kind imports what it needs alone.
    if kind is Kind.RELEASE:
        from sinks.release.process import ReleaseProcess
        from streaming.monitor.release_metrics import ReleaseMetrics, release_health

        role, process = "release", ReleaseProcess(settings, name)
        metrics = ReleaseMetrics(process, settings.release.transaction_timeout)
        health = partial(release_health, process, settings.release.transaction_timeout)
    else:
        from streaming.forward.process import ForwardProcess
        from streaming.monitor.forward_metrics import ForwardMetrics, forward_health

        role, process = "forward", ForwardProcess(settings, name)
        metrics = ForwardMetrics(process)
        health = partial(forward_health, process)
    with monitored(role, settings, metrics, health, waits_for_address=waits_for_address, process=name):
        yield process

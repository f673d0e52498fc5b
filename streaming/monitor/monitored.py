"""The monitoring of a process: its server and the export of its metrics, each if the settings enable it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Literal

from prometheus_client.registry import Collector

from conf.errors import MissingExtra
from conf.settings import Settings
from streaming.monitor.job_status import JobStatus
from streaming.monitor.look_door import LookDoor
from streaming.monitor.server import Health, MonitorServer, PatientServer, registry_of


@contextmanager
def monitored(
    role: Literal["job", "release", "forward"],
    settings: Settings,
    collector: Collector,
    health: Callable[[], Health],
    status: Callable[[], JobStatus | None] = lambda: None,
    waits_for_address: bool = False,
    process: str = "",
    looks: LookDoor | None = None,
) -> Iterator[None]:
    """In this context the process answers at its address in `[monitor]`, and sends its metrics to `monitor.otlp`.

    If `waits_for_address`, it goes on without an answer while another process listens there. `process` is its name, by
    default its role. It shows messages if there are `looks`.

    Raises SettingError if it cannot listen at the address; MissingExtra.
    """
    address, endpoint = getattr(settings.monitor, role), settings.monitor.otlp
    with ExitStack() as stack:
        if address:
            own = (registry_of(collector), health, status, settings.application_id, process or role, looks)
            server = partial(MonitorServer, f"monitor.{role}", address, *own)
            stack.enter_context(PatientServer(server) if waits_for_address else server())
        if endpoint:
            # Imported here: it is an extra, and takes a while.
            try:
                from streaming.monitor.otlp import MetricsExport
            except ModuleNotFoundError as missing:
                raise MissingExtra(f"{missing.name} is not installed: pip install 'delayline[otlp]'") from missing
            attributes = {
                "service.namespace": settings.application_id,
                "service.name": f"delayline-{role}",
                "service.instance.id": f"{socket.gethostname()}/{os.getpid()}",
            }
            stack.enter_context(MetricsExport(endpoint, collector, attributes))
        yield

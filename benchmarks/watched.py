"""Watched: the CPU that metrics and the page take, relative to the CPU of the job at 1,000 messages/s."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

from benchmarks.aims import Figures, figure
from benchmarks.job import Application, Job
from benchmarks.lateness import light_traffic
from benchmarks.outcome import Aim, Outcome
from benchmarks.plots import lateness_figure
from benchmarks.release_processes import release_children
from benchmarks.stand import Stand
from benchmarks.traffic import Traffic, curve, run_through
from benchmarks.waiting import say, wait_until
from streaming.local.free_port import free_port
from streaming.monitor.client import ask

CASE = "1,000 messages/s, with the page"
SHARE = 0.02
# Prometheus' usual interval. The page's own requests are in the CPU of the job already.
_EVERY_S = 15.0
# So many that their CPU is far above the clock's tick of 10 ms.
_ASKS = 200
_START_S = 60.0


def measure(stand: Stand, scale: float) -> Outcome:
    """Send the load of `lateness` through a job while the page samples it, then ask for its metrics many times."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    application = stand.application("watched", f"monitor.job={addresses[0]}", f"monitor.release={addresses[1]}")
    job, traffic = stand.job(application), light_traffic(scale)
    page = _Page(application)
    try:
        with ThreadPoolExecutor(1) as executor:
            cores = executor.submit(page.cores, traffic)
            lateness_ms, measured = run_through(stand, application, job, traffic)
        say(f"{_ASKS} times /metrics")
        scrapes = [_cpu_of_asks(process, address) for process, address in zip(_serving(job), addresses, strict=True)]
        figures = {
            CASE: measured
            | {"cpu_page": round(cores.result(), 4), "cpu_s_scrape": round(sum(scrapes), 4)}
            | {"share": round((cores.result() + sum(scrapes) / _EVERY_S) / float(measured["cpu_job"]), 4)}
        }
    finally:
        page.end()
    job.stop()
    return Outcome("watched", f"{traffic}, with the page", aims_of(figures), figures, {CASE: curve(lateness_ms)})


def aims_of(figures: Figures) -> list[Aim]:
    """Return the aim: CPU of the page and of a scrape of each process every 15 s, relative to the job's."""
    return [Aim("CPU of page and metrics, of the job's", figure(figures, CASE, "share"), SHARE)]


def draw(outcome: Outcome) -> Any:
    """Draw the share of messages that came within a lateness."""
    return lateness_figure(outcome, 50.0)


class _Page:
    """`delayline web` next to the job. Nobody looks at its page, but it samples all the same."""

    def __init__(self, application: Application) -> None:
        log = application.folder / "web.log"
        command = [sys.executable, "-m", "streaming.cli", "web", "--set", f"web.address=127.0.0.1:{free_port()}"]
        for override in application.overrides:
            command += ["--set", override]
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        wait_until(lambda: "the page is at" in log.read_text(), _START_S, "the start of the page", self._check)

    def cores(self, traffic: Traffic) -> float:
        """Return how many cores it takes while the traffic counts, which begins now with its warm-up."""
        begin_s, end_s = traffic.counts_s
        time.sleep(begin_s)
        process = psutil.Process(self._process.pid)
        before_s = _cpu_s(process)
        time.sleep(end_s - begin_s)
        return (_cpu_s(process) - before_s) / (end_s - begin_s)

    def end(self) -> None:
        """End it, and wait until it has ended."""
        self._process.terminate()
        self._process.wait(_START_S)

    def _check(self) -> None:
        if (code := self._process.poll()) is not None:
            raise RuntimeError(f"the page ended with {code}")


def _serving(job: Job) -> list[psutil.Process]:
    """Return the job's driver and its release process, which answer."""
    driver = psutil.Process(job.pid)
    releases = release_children(driver)
    return [driver, *releases]


def _cpu_of_asks(process: psutil.Process, address: str) -> float:
    """Return the CPU seconds of a scrape: the CPU with requests, less the CPU of the same time without them."""
    begun_s, before_s = time.monotonic(), _cpu_s(process)
    for _ in range(_ASKS):
        answer = ask(address, "/metrics")
        assert answer.code == 200, answer.body
    asked_s, with_s = time.monotonic(), _cpu_s(process)
    time.sleep(asked_s - begun_s)
    return max(0.0, (with_s - before_s) - (_cpu_s(process) - with_s)) / _ASKS


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)

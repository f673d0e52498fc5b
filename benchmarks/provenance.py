"""The provenance of a measurement: date, command, machine, and code."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from conf.java.command import java_command, java_version
from conf.java.jars.installed import broker_jars

_ROOT = Path(__file__).parent.parent
_SERVICE = ("conf", "sources", "state", "sinks", "streaming")
_PACKAGES = ("pyspark", "delta-spark", "pyarrow", "pandas", "confluent-kafka")


def provenance(scale: float) -> dict[str, Any]:
    """Return the date, the command, the scale and the machine of a measurement."""
    started = sys.modules["__main__"].__spec__
    module = "benchmarks" if started is None else started.name.removesuffix(".__main__")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python -m", module, *sys.argv[1:]]),
        "scale": scale,
        "machine": machine(),
    }


def machine() -> dict[str, Any]:
    """Return the hardware, the software versions and the commit of a measurement."""
    java = java_command()
    kafka = next((jar.stem for jar in broker_jars() if jar.name.startswith("kafka_")), "?")
    return {
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "java": java_version(java),
        "broker": kafka,
        **{package: version(package) for package in _PACKAGES},
        "commit": _git(_ROOT, "rev-parse", "HEAD") or "?",
        "uncommitted_changes": bool(_git(_ROOT, "status", "--porcelain", "--", ".", ":!benchmarks/results")),
        "code": service_code(),
    }


def service_code() -> str:
    """Return a short hash of the service's current files: the same in two commits that differ only in other files."""
    files = (file for package in _SERVICE for file in (_ROOT / package).rglob("*") if "__pycache__" not in file.parts)
    whole = hashlib.sha256()
    for file in sorted(file for file in files if file.is_file()):
        whole.update(str(file.relative_to(_ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return whole.hexdigest()[:12]


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""

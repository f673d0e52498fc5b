"""Explains in one sentence why Spark did not start: Java is missing or too old, or an option is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from conf.errors import DelaylineError, JavaMissing, SettingError
from conf.java.command import java_command
from conf.secrets import is_secret, without_secrets

_UNCAUGHT = 'Exception in thread "main" '
# Lines that do not say why Java ended: stack frames, warnings, empty lines.
_NOT_THE_REASON = re.compile(r"\s|WARNING|.* warning: |$")


def start_failure(
    problem: Py4JError | PySparkException, options: Mapping[str, str], stderr_lines: Callable[[], list[str]]
) -> DelaylineError:
    """Return the error that explains why a start with `options` failed with `problem`, without their secrets.

    `stderr_lines` returns the lines that Java wrote to standard error. It is called only if Java has ended.
    """
    if isinstance(problem, Py4JJavaError):
        reason = _innermost(problem)
    elif isinstance(problem, Py4JError) or problem.getCondition() == "JAVA_GATEWAY_EXITED":
        try:
            java_command()
        except JavaMissing as missing:
            return missing
        reason = next((line for line in stderr_lines() if not _NOT_THE_REASON.match(line)), "Java ended silently")
    else:
        while (cause := getattr(problem, "_cause", None)) is not None:
            problem = cause
        reason = str(problem).partition("\n")[0]
    message = without_secrets(reason.removeprefix(_UNCAUGHT), options)
    # The remaining text may still contain a part of a secret.
    return SettingError(
        f"[spark]: {'the message of Spark may contain a secret' if is_secret('', message) else message}"
    )


def _innermost(problem: Py4JJavaError) -> str:
    """Return the first line of the innermost exception that has a message."""
    exception = cause = problem.java_exception
    while (cause := cause.getCause()) is not None:
        if cause.getMessage():
            exception = cause
    return str(exception.toString()).partition("\n")[0]

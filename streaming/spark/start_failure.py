"""Why Spark did not start, in a sentence: Java is missing or too old, or an option is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from conf.errors import DelaylineError, JavaMissing, SettingError
from conf.java.jars import java_command
from conf.secrets import is_secret, without_secrets

_UNCAUGHT = 'Exception in thread "main" '
# Frames of a trace, and what did not end Java.
_ASIDE = re.compile(r"\s|WARNING|.* warning: |$")


def start_failure(
    problem: Py4JError | PySparkException, options: Mapping[str, str], java_said: Callable[[], list[str]]
) -> DelaylineError:
    """Return the error that says why a start with `options` met `problem`, without the secrets among them.

    `java_said` gives the lines that Java has written to standard error; it is asked only if Java has ended.
    """
    if isinstance(problem, Py4JJavaError):
        why = _innermost(problem)
    elif isinstance(problem, Py4JError) or problem.getCondition() == "JAVA_GATEWAY_EXITED":
        try:
            java_command()
        except JavaMissing as missing:
            return missing
        why = next((line for line in java_said() if not _ASIDE.match(line)), "Java ended without a word")
    else:
        while (cause := getattr(problem, "_cause", None)) is not None:
            problem = cause
        why = str(problem).partition("\n")[0]
    told = without_secrets(why.removeprefix(_UNCAUGHT), options)
    # What is left may be a part of one.
    return SettingError(f"[spark]: {'what Spark says may hold a secret' if is_secret('', told) else told}")


def _innermost(problem: Py4JJavaError) -> str:
    """Return the first line of the innermost exception that says anything."""
    exception = cause = problem.java_exception
    while (cause := cause.getCause()) is not None:
        if cause.getMessage():
            exception = cause
    return str(exception.toString()).partition("\n")[0]

"""The start of Delayline's Spark session."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from conf.failpoints import ROOT_VARIABLE
from conf.logs import FORMAT_VARIABLE, LEVEL_VARIABLE, format_now, level_now
from conf.secrets import is_secret
from conf.settings import Settings
from conf.spark_options import FIXED_OPTIONS, TABLE_DEFAULTS
from streaming.spark.options import executors_python, is_submitted, spark_options
from streaming.spark.start_failure import start_failure
from streaming.spark.startup_noise import without_startup_noise

# Options for Java itself, and for files that the launcher fetches before pyspark connects to Java.
_NEEDED_BY_LAUNCHER = ("spark.driver.", "spark.jars")


def open_session(settings: Settings, options: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark.

    `options` override all others. If `spark-submit` started the job, the options given to it come first, but for
    `FIXED_OPTIONS`, which it cannot change. The handler of Ctrl-C (SIGINT) does not change. Raises JavaMissing, and
    SettingError if Spark or Java refuses an option.
    """
    _silence_py4j()
    # Marks this process as the root of all processes that Spark starts.
    os.environ.setdefault(ROOT_VARIABLE, str(os.getpid()))
    all_options = {**spark_options(settings), **(options or {})}
    os.environ["PYSPARK_PYTHON"] = executors_python(all_options)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    try:
        with without_startup_noise() as (stderr, stderr_lines):
            _launch_java(all_options, stderr)
            _ignore_sigterm()
            spark = _build(all_options)
    except (Py4JError, PySparkException) as problem:
        # The cause is dropped: its text may contain secrets from the options.
        raise start_failure(problem, all_options, stderr_lines) from None
    spark.sparkContext.setLogLevel("ERROR")
    spark.sparkContext.environment[LEVEL_VARIABLE] = level_now()
    spark.sparkContext.environment[FORMAT_VARIABLE] = format_now()
    return spark


def _build(options: Mapping[str, str]) -> SparkSession:
    submitted = _submitted()
    own = {name: value for name, value in options.items() if name not in submitted}
    with _interrupt_handler_kept():
        context = SparkContext.getOrCreate(SparkConf().setAll(list(own.items())))
    _check_sql_options(context)
    spark = SparkSession.builder.config(map=dict(own)).getOrCreate()
    # Creates the session's state, so that Spark checks the SQL options now.
    _ = spark.conf.get("spark.sql.shuffle.partitions")
    for name, _ in context.getConf().getAll():
        if name.startswith(TABLE_DEFAULTS):
            spark.conf.unset(name)
    return spark


def _check_sql_options(context: SparkContext) -> None:
    """Let Spark check the SQL options, without a session.

    pyspark 4.1 never returns from the error of a session with a wrong option: to write that error, it asks the session.
    """
    jvm: Any = context._jvm
    checked = jvm.org.apache.spark.sql.internal.SQLConf()
    for name, value in context.getConf().getAll():
        if name.startswith("spark.sql."):
            checked.setConfString(name, value)


@contextlib.contextmanager
def _interrupt_handler_kept() -> Iterator[None]:
    """Restore the handler of SIGINT after a SparkContext was created in the main thread.

    SparkContext installs a handler as its last step. That handler cancels the running batch, and then ends the process
    at whatever point it has reached.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _silence_py4j() -> None:
    """Silence the logs of py4j: its exceptions say the same, and Delayline prints these once."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    # py4j logs to the root logger that a call was cut off, by Ctrl-C or because Java has ended.
    logging.getLogger().addFilter(_is_not_of_a_cut_off_call)
    # After an interrupt, Spark may not receive the stop command. Java exits with this process in any case.
    warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM", RuntimeWarning)


def _is_not_of_a_cut_off_call(record: logging.LogRecord) -> bool:
    return record.msg not in ("KeyboardInterrupt while sending command.", "Exception while sending command.")


def _submitted() -> set[str]:
    """Return the names of the options that `spark-submit` passed to Java; empty if it did not start this process.

    Without those that no deployment may change: the defaults of a cluster often have one, such as adaptive execution.
    """
    if not is_submitted():
        return set()
    # spark-submit sets the application name to the launcher's file name; Delayline's name applies instead.
    return {name for name, _ in SparkConf().getAll()} - {"spark.app.name", *FIXED_OPTIONS}


def _ignore_sigterm() -> None:
    """Let Java ignore SIGTERM, if this process has started it.

    A service manager sends the signal to all processes of the job, which needs Java to finish its running batch. Java
    ends with this process in any case.
    """
    if not is_submitted():
        jvm: Any = SparkContext._jvm
        jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal("TERM"), jvm.sun.misc.SignalHandler.SIG_IGN)


def _launch_java(options: Mapping[str, str], stderr: int) -> None:
    """Start Java with this standard error, unless it runs already, without the secret `options` on its command line.

    Every user of the host can read a command line, and pyspark would put all options there. Secret options stay on it
    only if the launcher needs them. pyspark sends the others over its connection to Java when the session is built.
    """
    public = [
        (name, value)
        for name, value in options.items()
        if name.startswith(_NEEDED_BY_LAUNCHER) or not is_secret(name, value)
    ]
    if SparkContext._gateway is None:
        conf = SparkConf(loadDefaults=False).setAll(public)
        # Spark 4.0 creates a folder `artifacts` in Java's working folder, regardless of java.io.tmpdir. The folder and
        # the standard error of this process stay as they are: its other threads read files and start processes.
        own = {"cwd": tempfile.gettempdir(), "stderr": stderr}
        launch: Any = launch_gateway
        SparkContext._ensure_initialized(gateway=launch(conf, own))

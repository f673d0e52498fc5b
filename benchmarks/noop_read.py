"""Spark reads an input topic and discards the records, in a separate process and JVM: the reference for `ingest`."""

from __future__ import annotations

import json
import subprocess
import sys
import time

RUNS = 3
_TIMEOUT_S = 1200


def run(overrides: list[str]) -> list[int]:
    """Return the messages/s of `RUNS` reads, after one for warm-up, in a session with the job's options."""
    command = [sys.executable, "-m", "benchmarks.noop_read", *overrides]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_S, check=True)
    return list(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Read the topic `RUNS` + 1 times; print the rates as JSON."""
    from conf.kafka.options import java_options
    from conf.load import load_settings
    from streaming.spark.session import open_session

    settings = load_settings(None, sys.argv[1:], environ={})
    spark = open_session(settings)
    options = {"isolation.level": "read_committed", **java_options(settings.kafka)}
    rates = []
    for _ in range(RUNS + 1):
        records = (
            spark.read.format("kafka")
            .options(**{f"kafka.{name}": value for name, value in options.items()})
            .option("subscribe", ",".join(settings.topics.input))
            .option("includeHeaders", "true")
            .option("startingOffsets", "earliest")
            .load()
        )
        begun = time.monotonic()
        records.write.format("noop").mode("overwrite").save()
        seconds = time.monotonic() - begun
        # Counting is a separate Spark job, after the measured time.
        rates.append(round(records.count() / seconds))
    spark.stop()
    print(json.dumps(rates[1:]))


if __name__ == "__main__":
    main()

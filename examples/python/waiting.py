"""Ask what waits in SQL, and export it: how many messages are due in which hour, by output topic.

    python waiting.py [--config delayline.toml] [--export FOLDER]

Reads what the job has stored, whether it runs or not, with the job's settings. Changes nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from conf.load import load_settings
from streaming.status.messages import waiting_messages
from streaming.status.storage_reader import reader_session

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--config", type=Path, help="the job's settings")
parser.add_argument("--set", action="append", default=[], help="override one setting, as for the job")
parser.add_argument("--export", metavar="FOLDER", help="write all that waits there, as Parquet")
arguments = parser.parse_args()

settings = load_settings(arguments.config, arguments.set)
with reader_session(settings) as spark:
    waiting = waiting_messages(spark, settings)
    waiting.createOrReplaceTempView("waiting")
    spark.sql("""
        SELECT output_topic, date_trunc('HOUR', deliver_at) AS hour, place,
               count(*) AS messages, sum(length(value)) AS bytes
        FROM waiting
        GROUP BY ALL
        ORDER BY hour, output_topic, place
    """).show(100, truncate=False)
    if arguments.export:
        waiting.write.mode("overwrite").parquet(arguments.export)

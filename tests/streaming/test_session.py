"""The options that Spark is started with."""

from __future__ import annotations

import pytest

from conf.load import load_settings
from streaming.session import spark_options

_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.mark.parametrize(
    ("path", "is_ours"),
    [("./data", True), ("file:///srv/delayline", True), ("hdfs://name/delayline", False), ("s3a://bucket/x", False)],
)
def test_only_a_local_checkpoint_is_written_past_sparks_own_choice(path: str, is_ours: bool) -> None:
    options = spark_options(load_settings(None, [f"storage.path={path}"], environ={}))
    assert (_MANAGER in options) == is_ours


def test_options_of_a_deployment_go_over_those_of_delayline() -> None:
    settings = load_settings(None, ["spark.spark.driver.memory=5g", "bucket.shards=3"], environ={})
    options = spark_options(settings)
    assert (options["spark.driver.memory"], options["spark.sql.shuffle.partitions"]) == ("5g", "3")

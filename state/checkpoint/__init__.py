"""What a checkpoint says beside Spark's own logs, as values: origin, settings by batch, progress.

Reading and writing them is left to `streaming.checkpoint` (files) and `sinks.internal_topics` (Kafka).

Read `origin` (how a checkpoint began), `batch_settings` (what decides a batch's outcome), `progress` (the delivery
marker), `delivered` (which messages are delivered, by the markers alone), `file_format` (the number in each file).
"""

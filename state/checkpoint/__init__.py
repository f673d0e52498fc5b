"""Delayline's part of a checkpoint, next to Spark's logs, as values: origin, batch settings and progress.

`streaming.checkpoint` (files) and `sinks.internal_topics` (Kafka) read and write them.

Read `origin` (how a checkpoint began), `input_ids` (which input topics its offsets belong to), `planned_batch` (an
entry of Spark's offset log), `batch_settings` (what decides a batch's result), `progress` (the marker of a batch),
`staged` (which messages are staged, from the markers alone), `pointer` (which checkpoint is the current one),
`stored_json` (how these values are read and written), `file_format` (the number in each file).
"""

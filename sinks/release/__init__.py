"""The release stage: staged messages go to their output topics when they are due, in order and exactly once.

It uses Kafka but not Spark. It runs in its own processes (`delayline release`, or started by the job), and goes on
while the job is down. A consumer group divides the shards between the processes.

Read `process` (a member of its group), `context` (shared by its shards), `shard` (the steps for one shard), and the
modules that these steps use:

- To read: `log_reader`, `log_consumers` (the records of both logs), `log_end` (whether messages are left), `near_end`
  (for which requests wait).
- To plan, the pure core: `pending` (the messages to release next), `planned` (a transaction), `encoded_chunks` (waiting
  chunks, in memory or not), `incoming` (the next chunk to take in), `open_chunks` and `ordered_merge` (decoded
  messages, put in order), `partition_needs` (where they go), `room` (the limits of a transaction) and `rate_limiter`.
- For requests: `recall` (the rules), `recall_desk`, `removals`, `waiting_ids`, `copies`, `recently_released`.
- To write: `shard_writer` (writes again after a failure), `shard_rates`, `ring`, `transaction` with
  `release_producer`, `records` (the records that a subscriber gets), `expiry` (messages that come too late to be of
  use).
- For refused records: `known_topics`, `record_check`, `reports`, `fault_search` and `narrowing` (which record is to
  blame), `rewrites` (how often a transaction is written again), `closed_topics` (which topics take no records), `stubs`
  (replacements of refused dead letters).
- To report: `shard_beat` (signs of life), `releases`, `lateness` and `counts` (released messages), `wall_clock`,
  `waits` (times without a setting).

**Two logs.** Batches stage messages in the ready log, forwarders in the near log. Each shard merges its partitions of
both. The logs are separate because an open transaction hides the records behind it: up to a minute if its writer was
killed.

**Position.** A transaction has messages and the position after them: the offset up to which records of each log are
taken in, and the order key below which messages are released. A message is released if and only if it lies below both
bounds of its log. After a crash the next owner fences the producers of the previous one, reads the position, and goes
on. If a clock was ahead and is set back, the position starts without an order key. It keeps the former key for the
records that were taken in before.

**Ahead of time.** Transactions are filled `release.lead` before they are due, and ended when their last message is due.
So only the end of the transaction, a millisecond, lies between a due time and the broker. Messages staged inside the
lead go into the next transaction that is filled. They are late by up to the lead, and follow messages that are due
later.

**Refused records.** A topic may refuse a record for its size, for a missing key or for its timestamp. Such a record
goes to the dead-letter topic. If that topic refuses it as well, a stub is written, which only its size can rule out.
The writer identifies the refused record with certainty. No batch of several records is larger than its topic takes, so
a batch refused for its size is a single record. Brokers name each invalid record of a batch. A callback for each record
costs time, so a transaction is first written without callbacks. An error that does not say whether the record is to
blame counts as a refusal once it comes again, unless it is an outage or concerns the producer.

**An end to each search.** Each refusal makes the next try differ: smaller batches, a later time, fewer suspects, or one
more dead letter. If a topic refuses a transaction again and again, all of its records in it become dead letters.

**Closed topics.** An output topic that a publisher has named may be gone or barred when a message is due. Once that is
certain (`closed_topics`), its messages become dead letters, and all others go on in order. Transactions with messages
for it check again every few seconds. If a topic of the settings is missing, the process ends: an operator is needed.

**Neighbours.** The limits of a topic do not slow down other topics. Brokers are asked again only about the topic
concerned. If it takes less than the client's `batch.size`, its records are counted, and flushed before a batch would be
too large.

**Memory.** Transactions that are not committed stay in memory, since they may have to be written again. Chunks stay
encoded until their time comes. Beyond `release.max_bytes` they are dropped, and read again. If messages of many chunks
are due at the same time, only the first part of each chunk is decoded at a time.

Positions have no timestamp: a broker's limit might refuse the timestamp of a host with a clock that is ahead. They are
kept in an internal, compacted topic, since consumer group offsets expire.
"""

"""The release stage: staged messages go to their output topics when they are due, in order and exactly once.

It knows Kafka and no Spark, runs in processes of its own (`delayline release`, or started by the job), and goes on
while the job is down. Shards are divided between the processes by a consumer group.

Read `process` (a member of its group), `context` (what its shards share), `shard` (the steps for one shard), and what
these steps use:

- To read: `log_reader`, `log_end` (what is left), `near_end` (for which requests wait).
- To plan, the pure core: `pending` (what is released next), `planned` (a transaction), `encoded_chunks` (what waits, in
  memory or not), `incoming` (which chunk is taken in next), `open_chunks` and `ordered_merge` (what is decoded, and in
  order), `room` (what fits a transaction), `rate_limiter` and `shard_rates`.
- For requests: `recall` (the rules), `recall_desk`, `removals`, `waiting_ids`, `copies`, `recently_released`.
- To write: `shard_writer` (again, after a failure), `ring`, `transaction` with `release_producer`, `records` (what a
  subscriber gets), `expiry` (what comes too late to be of use).
- For what a topic refuses: `known_topics`, `record_check`, `reports`, `fault_search` and `narrowing` (which record is
  to blame), `rewrites` (how often a transaction is written again), `closed_topics` (which take nothing), `stubs` (what
  takes the place of a refused dead letter).
- To report: `shard_beat` (signs of life), `releases`, `lateness` and `counts` (what was released), `wall_clock`.

**Two logs.** Batches stage messages in the ready log, forwarders in the near log. Each shard merges its partitions of
both. They are apart since an open transaction hides what follows it: that of a killed writer, for up to a minute.

**Position.** A transaction has messages and the position after them: the offset up to which records of each log are
taken in, and the order key below which messages are released. Released is exactly what lies below both bounds of its
log. After a crash the next owner fences the producers of the one before, reads the position, and goes on.
If its clock was ahead and is set back, the position begins anew with the second bound, and keeps the one before for
what was taken in by then.

**Ahead of time.** Transactions are filled `release.lead` before they are due, and ended when their last message is. So
the end alone, a millisecond, lies between a due time and the broker. What is staged inside the lead goes into the
next transaction that is filled: up to the lead late, and behind what is due later.

**Refused records.** A record that a topic refuses, for its size, for want of a key or for its timestamp, goes to the
dead-letter topic. If that refuses it as well, a stub does, of which only the size can be refused. The writer finds that
record for certain: no batch of several records is larger than its topic takes, so a batch refused for its size is a
single record; and brokers name each invalid record of a batch. A callback for each record costs time, so a transaction
is first written without. An error of a broker that does not say whether the record is to blame counts as a refusal once
it comes again, unless it is an outage or concerns the producer.

**An end to each search.** Each refusal makes the next try differ: smaller batches, a later time, fewer suspects, or a
dead letter more. If one topic refuses a transaction again and again, all of its records in it become dead letters.

**Closed topics.** An output topic that a publisher has named may be gone or barred when a message is due. Once that is
certain (`closed_topics`), its messages become dead letters, and all others go on in order. Each transaction with a
message for it looks again, every few seconds. Without a topic of the settings the process ends: an operator is needed.

**Neighbours.** What a topic accepts is no burden to others. Brokers are asked again about the topic concerned alone. If
it takes less than the client's `batch.size`, its records are counted, and flushed before a batch would be too large.

**Memory.** Transactions that are not committed stay in memory, since they may have to be written again. Chunks stay
encoded until their time comes; beyond `release.max_bytes` they are dropped, and read again. Where delays are spread, so
that messages of many chunks are due at the same time, only the first part of each is decoded at a time.

Positions have no timestamp, since a broker's limit might refuse that of a host whose clock is ahead. Their topic is an
internal, compacted one, since consumer group offsets expire.
"""

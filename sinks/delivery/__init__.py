"""From a batch's due messages to the output topics, in order and exactly once, past outages and refusals.

It runs in Spark's tasks, one for each shard, and knows neither buckets nor the query.

Read `task` (what Spark calls), `shard_delivery` (one shard's batch), `transactions` (how it is cut),
`transactional_writer` (one transaction), `records` (what a subscriber gets), `record_check` and `reports` (what a
topic refuses), `broker_retry`, `rate_limiter`, `wall_clock`.
"""

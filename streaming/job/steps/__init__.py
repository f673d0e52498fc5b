"""The steps of a batch, in their order. `streaming.job.batch` calls them, and documents their order.

Read `planning` (offsets, claims, refusals: the plan), `output` (of the state stage), `checks` (of that output) with
`earlier_try` (the remains of a try that was cut off), `staging` and `sealing` (the two effects of a batch), `pace`
(size and time of the next batch), and `report` (to the metrics).
"""

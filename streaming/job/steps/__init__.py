"""The steps of a batch, in their order. `streaming.job.batch` calls them, and says what must come before what.

Read `planning` (offsets, claims, refusals: the plan), `output` (what the state stage gives), `checks` (what must hold
of that) with `earlier_try` (what a try that was cut off has left), `staging` and `sealing` (the two effects of a
batch), `pace` (size and time of the next batch), and `report` (what metrics say of it).
"""

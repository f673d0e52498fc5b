"""The judge of deliveries: holds what came out of the output topics against what was published. Finds; repairs nothing.

The demo, the tests of the whole service and the chaos campaign use it. It knows the service by its topics and by the
files of its checkpoint, and imports none of its code: the contract of `docs/publish.md` is written down here a second
time on purpose, so that a mistake in the one does not excuse the same mistake in the other.

The core is pure: read `record` (the values), `contract` (one record alone), `acceptance` (which messages are held to
order), `order`, and `verdict`, whose `judge` joins them. The adapters are `outputs`, which reads the topics, and
`checkpoint_watch`, which collects what the job committed.
"""

"""The judge of deliveries: compares the records of the output topics with the published messages, and reports faults.

The demo, the tests of the whole service and the chaos campaign use it. It observes the service through its topics and
the files of its checkpoint, and imports none of its code. It implements the contract of `docs/publish/` a second time
on purpose: a mistake in the service must not hide behind the same mistake in the judge.

Read `record` (the values), `contract` (checks of a single record), `forwarded` (what forwarders took), `acceptance`
(which messages must be in order), `order`, `verdict`, which combines them, `cancels` (asks and their answers),
`reasons` (what the answers say of what is not cancelled), `deliveries` (what was made due at once), `schedules`
(messages that repeat), `endings` (requests about these) and `names`: these do no I/O. Then `outputs`, which reads the
topics, `claims_watch`, which follows the forwarders, and `checkpoint_watch`, which collects the job's committed
batches."""

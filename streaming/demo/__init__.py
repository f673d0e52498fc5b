"""The demo: runs a broker and the job, publishes a thousand messages, kills the job, and checks what was delivered.

It uses the service as a user does: through processes and topics.

Read `scenario`, `messages` (the published messages), `job`, `result`, `view`. `streaming.judge` checks the deliveries.
"""

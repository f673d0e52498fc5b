"""The demo: runs a broker and the job, publishes a thousand messages, kills the job, and checks what was delivered.

It uses the service as a user does: through processes and topics. `streaming.judge` checks the deliveries.

Read `scenario`, `messages` (the published messages), `job`, `result`, `view`.
"""

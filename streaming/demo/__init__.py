"""The demo: a broker, the job, a thousand messages, a SIGKILL in the middle, and the count at the end.

It uses the service as its users do: by processes and topics.

Read `scenario`, `messages` (what is published), `job`, `result`, `view`. What came out is judged by `streaming.judge`.
"""

"""The endpoints of a running process for operators: `/metrics` for Prometheus, `/healthz` and `/readyz` for probes.

The job, each release process and each forwarder have a server of their own, at the address in the settings. It answers
from memory: a scrape waits for neither Kafka nor storage, and takes no lock that a batch or a release waits for. Only a
look at messages reads.

Read `monitored` and `server`; for the job `job_metrics`, `waiting_metrics`, `table_state`, `held_input` and
`job_health`; `release_metrics`, `forward_metrics`, `recent_problems`, `otlp`; `estimate` and `job_status` for
the answer to `delayline status`; `look_door` for how the job shows messages, and `access` for who may see them, here
and at the page; `client` for the other side of the requests.
"""

"""`delayline deliver-now`: make messages that wait due at once, and show what became of each."""

from __future__ import annotations

from streaming.cli.asking import Headers, Ids, Timeout, ask, ids_given
from streaming.cli.options import ConfigFile, Overrides, RecordFormat, settings_of

_EXIT_CODES = {"due-now": 0, "too-late": 3, "cancelled": 3, "kept": 3}


def deliver_now(
    ids: Ids = None,
    timeout: Timeout = "1m",
    headers: Headers = None,
    output_format: RecordFormat = "table",
    config: ConfigFile = None,
    overrides: Overrides = None,
) -> None:
    """Make messages due at once, and wait for the job's answers: due-now, too-late, cancelled, kept or unknown.

    The id of a message is its place in the input topic. Producers receive it, and `delayline publish` prints it. The
    job answers after its next batch. A message keeps its id and its output topic.

    In JSON an answer has `id`, `result`, `reason` and `why`, and `output` if the message came out before. The codes
    `result` and `reason` are stable (docs/publish/cancelling.md).

    Exit codes: 0 all are due now; 3 at least one came out before, is cancelled, or repeats (kept); 4 the outcome of at
    least one is unknown; 1 at least one has no answer in time, or could not be requested.
    """
    from sources.canceller import RequestRecord, requests_for
    from state.cancel import DELIVER_NOW_HEADER

    settings = settings_of(config, overrides)

    def requests() -> list[RequestRecord]:
        return requests_for(settings, ids_given(ids), header=DELIVER_NOW_HEADER)

    ask(settings, requests, headers, timeout, output_format, _EXIT_CODES)

"""The rest of a checkpoint that an interrupted rebuild or rescale has sealed: whether the next try goes on with it."""

from __future__ import annotations

import logging
from collections.abc import Collection

from conf.errors import CheckpointMismatch
from sinks.buckets.bucket_table import BucketTable
from state.checkpoint.staged import StagedMessages
from streaming.checkpoint.switch_over import check_rest, has_other_inputs, is_repaired
from streaming.operations.reread import Bounds, not_read_again
from streaming.operations.table_contents import only_in

log = logging.getLogger(__name__)


def sealed_rest(
    store: BucketTable,
    sealed_in: int,
    inputs: Collection[str],
    staged: StagedMessages,
    bounds: Bounds,
    gone: Collection[str],
) -> int | None:
    """Return the bucket `sealed_in`, in which an earlier try has sealed the rest, or None if it must be sealed again.

    If `repair` has removed messages since, all of the rest is sealed again. It is kept if it has messages that can no
    longer be accepted again. It is also sealed again if it was accepted from other `inputs`; raises CheckpointMismatch
    if it has such messages then.
    """
    if has_other_inputs(store, sealed_in, staged.origin.checkpoint, inputs):
        if not_read_again(only_in(store, sealed_in), bounds, staged, gone):
            raise CheckpointMismatch(
                "an interrupted rebuild had another topics.input, and some of its sealed messages are no longer "
                "in their topics. Run this command with the topics.input of that rebuild"
            )
        return None
    if is_repaired(store, sealed_in):
        expired = not_read_again(only_in(store, sealed_in), bounds, staged, gone)
        if not expired:
            return None
        log.warning(
            "messages that `repair` has removed are not accepted again: an interrupted rescale or rebuild has sealed "
            "others with them, and %d of these are no longer in the input topics",
            expired,
        )
    check_rest(store, sealed_in)
    return sealed_in

"""Delivering a shard's due messages with its writer: in order, after what is committed, through outages."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator

import pyarrow as pa
from confluent_kafka import KafkaException

from conf.errors import BrokerUnreachable, CheckpointMismatch, DeliveryFailed, Rejected
from sinks.delivery.broker_retry import BrokerRetry
from sinks.delivery.rate_limiter import RateLimiter
from sinks.delivery.records import record_id, records
from sinks.delivery.reports import Refused
from sinks.delivery.transactional_writer import DeliveryPlan, ShardWriter
from sinks.delivery.transactions import Transaction, behind, transactions
from sinks.delivery.wall_clock import now_ms, wait_until
from state.checkpoint.progress import Progress, committed_messages

log = logging.getLogger(__name__)

# Opening a writer costs tens of milliseconds, and Spark reuses its Python workers.
_open_writers: dict[tuple[str, int], ShardWriter] = {}
# The pieces into which a refused transaction is cut. With more, fewer are refused until one message is left.
_PIECES = 16
# Kept from batch to batch.
_rate_limiters: dict[tuple[str, int, float], RateLimiter] = {}


def deliver(plan: DeliveryPlan, shard: int, messages: Iterator[pa.Table], attempt: int = 0) -> tuple[int, str]:
    """Deliver a shard's due messages, in order, and return how many this call committed, and the writer's id.

    What a killed or failed attempt committed is skipped. The call waits for brokers that do not answer. Raises
    DeliveryFailed if a transaction cannot be completed, BrokerUnreachable after `plan.outage_limit_ms`, or what
    `ShardWriter.write` does; nothing of the transaction is then visible.
    """
    key = (plan.application_id, shard)
    writer = _open_writers.pop(key, None)
    if writer is None or writer.id != plan.last_writers.get(shard):
        writer = _opened(plan, shard, _retry(plan, shard))
    # Leave three quarters of a transaction's time for the work on it.
    longest_ms = plan.transaction_timeout_ms // 4
    start = committed_messages(writer.progress, plan.batch)
    end = start
    rest = _not_committed(plan, shard, writer.progress, messages) if start else messages
    limiter = _rate_limiters.setdefault((*key, plan.messages_per_second), RateLimiter(plan.messages_per_second))
    most = limiter.most_at_once(plan.transaction_messages)
    for transaction in transactions(rest, start, plan.slice_ms, most, longest_ms):
        limiter.wait()
        writer = _written(plan, writer, transaction, attempt)
        limiter.spend(transaction.count)
        end = transaction.end
    _open_writers[key] = writer
    return end - start, writer.id


def _not_committed(
    plan: DeliveryPlan, shard: int, done: Progress | None, messages: Iterator[pa.Table]
) -> Iterator[pa.Table]:
    """Yield the messages after the committed ones.

    Raises CheckpointMismatch if the replay has another number of committed ones, unless input loss is tolerated.
    """
    assert done is not None
    assert done.last is not None

    def check(skipped: int) -> None:
        if skipped != done.messages and not plan.tolerates_input_loss:
            raise CheckpointMismatch(
                f"shard {shard}, batch {plan.batch.batch_id}: {done.messages} messages are delivered, and the replay "
                f"has {skipped} of them; please report this with the checkpoint"
            )

    return behind(messages, done.last, check)


def _written(plan: DeliveryPlan, writer: ShardWriter, transaction: Transaction, attempt: int) -> ShardWriter:
    """Commit `transaction`, and return the writer that did, or that found it committed after an outage.

    If a topic refuses it, it is committed in pieces, with a dead letter for each message that is to blame.
    """
    retry = _retry(plan, writer.shard)
    refused: dict[tuple[str, bytes], Rejected] = {}
    pieces = [transaction]
    while pieces:
        piece = pieces.pop()
        begun_ms = now_ms()
        try:
            writer.write(piece, Progress(plan.batch, piece.end, piece.last), attempt, refused)
            continue
        except KafkaException as problem:
            writer.drop()
            failure: Refused | KafkaException = problem
        except Refused as refusal:
            # Otherwise the next writer would wait until the broker aborts it.
            _abort(writer)
            failure = refusal
        except BaseException:
            _abort(writer)
            raise
        known = writer.limits
        if isinstance(failure, KafkaException):
            retry.wait(failure)
        writer = _opened(plan, writer.shard, retry, transaction.topics)
        done = committed_messages(writer.progress, plan.batch)
        if done == piece.end:
            continue
        if done != piece.start:
            raise DeliveryFailed(f"{_who(plan, writer.shard)}: another writer has delivered {done} messages meanwhile")
        if isinstance(failure, KafkaException) or known != writer.limits:
            pieces.append(piece)
        elif begun_ms < piece.last.deliver_at_ms and wait_until(
            piece.last.deliver_at_ms, plan.transaction_timeout_ms // 2
        ):
            # Written ahead, a record may have been too early for its topic; that is no fault of the message.
            pieces.append(piece)
        else:
            pieces += reversed(_find_fault(plan, piece, failure, refused))
    return writer


def _find_fault(
    plan: DeliveryPlan, piece: Transaction, refusal: Refused, refused: dict[tuple[str, bytes], Rejected]
) -> list[Transaction]:
    """Add to `refused` the message that is to blame for the refusal, and return what to write now.

    The client does not name it for certain. So it is searched for in smaller transactions: in one of a single message,
    that message is to blame.
    """
    if refusal.topic == plan.progress_topic:
        raise DeliveryFailed(f"the progress of the delivery cannot be kept: {refusal}. Nothing is lost")
    refused.update(refusal.refusals)
    if refusal.refusals:
        return [piece]
    if piece.count > 1:
        return piece.cut(_PIECES)
    (record,) = records(piece.parts[0])
    refused[refusal.topic, record_id(record)] = refusal.error
    return [piece]


def _opened(plan: DeliveryPlan, shard: int, retry: BrokerRetry, topics: Collection[str] = ()) -> ShardWriter:
    while True:
        try:
            return ShardWriter(plan, shard, topics)
        except (KafkaException, BrokerUnreachable) as problem:
            retry.wait(problem)


def _retry(plan: DeliveryPlan, shard: int) -> BrokerRetry:
    return BrokerRetry(_who(plan, shard), plan.outage_limit_ms)


def _who(plan: DeliveryPlan, shard: int) -> str:
    return f"shard {shard}, batch {plan.batch.batch_id}"


def _abort(writer: ShardWriter) -> None:
    try:
        writer.abort()
    except KafkaException as problem:
        # The first error is the one to raise; the next writer or the timeout ends the transaction.
        log.warning("shard %d: its transaction could not be aborted: %s", writer.shard, problem)

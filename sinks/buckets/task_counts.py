"""Numbers that Spark's tasks report to the driver next to the rows that they write."""

from __future__ import annotations

from itertools import count

from pyspark import Accumulator, AccumulatorParam, SparkContext, TaskContext

# By step and partition: a task that runs twice reports the same number again.
_Counts = dict[tuple[int, int], int]


class _ByPartition(AccumulatorParam[_Counts]):
    def zero(self, value: _Counts) -> _Counts:
        return {}

    def addInPlace(self, value1: _Counts, value2: _Counts) -> _Counts:
        value1.update(value2)
        return value1


class StepCount:
    """The sum of the numbers that the tasks of one step report. A function for `mapInArrow` may hold it."""

    def __init__(self, counts: Accumulator[_Counts], step: int) -> None:
        self._counts = counts
        self._step = step

    def __call__(self, number: int) -> None:
        """Report the number of this task, which runs once for each partition of the step."""
        context = TaskContext.get()
        assert context is not None
        self._counts.add({(self._step, context.partitionId()): number})

    def take(self) -> int:
        """Return the sum when the step has ended, and forget it: for the driver."""
        counts = self._counts.value
        return sum(counts.pop(key) for key in list(counts) if key[0] == self._step)


class TaskCounts:
    """Makes counts. Spark keeps an accumulator as long as the process lives, so all steps share one."""

    def __init__(self, context: SparkContext) -> None:
        self._counts: Accumulator[_Counts] = context.accumulator({}, _ByPartition())
        self._steps = count()

    def next(self) -> StepCount:
        """Return the count of a new step."""
        return StepCount(self._counts, next(self._steps))

"""Java for processes that live for minutes at the most."""

from __future__ import annotations

from functools import partial

from streaming.local.broker import SHORT_LIVED, EmbeddedBroker

QUICK_JAVA = " ".join(SHORT_LIVED)

# A broker as `EmbeddedBroker` makes it.
quick_broker = partial(EmbeddedBroker, java=SHORT_LIVED)

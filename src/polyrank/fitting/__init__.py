"""``polyrank fit``: from chats to the best ranker that this machine can serve, and a report, by the library alone."""

from polyrank.fitting.fit import Fitted as Fitted, fit as fit

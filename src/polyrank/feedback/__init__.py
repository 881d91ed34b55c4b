"""Learning from use: what was shown and what became of it, kept, counted, and written as examples to train on.

Knows nothing of the web; no torch but in ``plots``.
"""

from polyrank.feedback.export import Exported, examples
from polyrank.feedback.rates import report
from polyrank.feedback.records import Action, Outcome, Reply, RequestFeedback, Shown
from polyrank.feedback.store import FeedbackStore

__all__ = ["Action", "Exported", "FeedbackStore", "Outcome", "Reply", "RequestFeedback", "Shown", "examples", "report"]

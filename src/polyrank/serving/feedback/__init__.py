"""Learning from use: what was shown and what became of it, kept, counted, and written as examples to train on.

Knows nothing of the web; no torch but in ``plots``.
"""

from polyrank.serving.feedback.export import Exported, examples
from polyrank.serving.feedback.records import Action, Outcome, Reply, Request, Shown
from polyrank.serving.feedback.report import report
from polyrank.serving.feedback.store import FeedbackStore

__all__ = ["Action", "Exported", "FeedbackStore", "Outcome", "Reply", "Request", "Shown", "examples", "report"]

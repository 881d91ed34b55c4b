"""Feedback from use: records which replies were shown and what users did, reports rates, and exports training examples.

This package contains no web code.
"""

from polyrank.feedback.export import Exported, examples
from polyrank.feedback.rates import count_taken, report
from polyrank.feedback.records import Action, Outcome, Reply, RequestFeedback, Shown
from polyrank.feedback.store import FeedbackStore, context_code

__all__ = [
    "Action",
    "Exported",
    "FeedbackStore",
    "Outcome",
    "Reply",
    "RequestFeedback",
    "Shown",
    "context_code",
    "count_taken",
    "examples",
    "report",
]

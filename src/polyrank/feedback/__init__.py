"""Feedback from use: records which replies were shown and what users did, reports rates, and exports training examples.

This package contains no web code.
"""

from polyrank.feedback.export import Exported as Exported, examples as examples
from polyrank.feedback.rates import count_taken as count_taken, report as report
from polyrank.feedback.records import (
    Action as Action,
    Outcome as Outcome,
    Reply as Reply,
    RequestFeedback as RequestFeedback,
    Shown as Shown,
)
from polyrank.feedback.store import FeedbackStore as FeedbackStore, context_code as context_code

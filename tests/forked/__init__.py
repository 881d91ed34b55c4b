"""Texts and a queue for an application that forks and the tests that send it requests."""

from pathlib import Path
from typing import Any

TEXTS = (
    "my wifi is down", "where is my order", "the router light is red", "please cancel the ticket", "how are you",
    "the train was late", "can i get a refund", "my card was declined", "good morning", "it rains again today",
)  # fmt: skip


def queue_of(folder: Path) -> Any:
    """A celery application whose broker and results are files."""
    from celery import Celery

    for name in ("queue", "control", "results"):
        (folder / name).mkdir(exist_ok=True)
    queue = str(folder / "queue")
    tasks = Celery("forked", broker="filesystem://", backend=f"file://{folder / 'results'}")
    tasks.conf.broker_transport_options = {
        "data_folder_in": queue, "data_folder_out": queue, "control_folder": str(folder / "control"),
        "polling_interval": 0.05,
    }  # fmt: skip
    return tasks

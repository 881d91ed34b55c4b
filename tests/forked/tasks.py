"""The application as a task of celery: ``celery -A forked.tasks worker``."""

from forked import queue_of
from forked.application import FOLDER, handle

tasks = queue_of(FOLDER)
tasks.task(name="handle")(handle)

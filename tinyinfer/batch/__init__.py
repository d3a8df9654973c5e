"""Batch jobs: a file of requests in OpenAI's batch form becomes a file of answers, whatever interrupts it.

    requests.py    IN: a request a line, read one after another, and what is wrong with a line
    answers.py     OUT: an answer a line, appended as it comes; what a killed run left there
    job.py         between them, the engine: a window of requests at a time

The form is that of https://platform.openai.com/docs/api-reference/batch/request-input and request-output.
"""

from .answers import Answers
from .job import Counts, run_batch
from .requests import BatchRequest, read_requests

__all__ = ["Answers", "BatchRequest", "Counts", "read_requests", "run_batch"]

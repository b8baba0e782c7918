"""Where the raw traces are, for tests that compare with them; they are not part of the project."""

import os
from pathlib import Path

import pytest

from course.workload.readers import read_trace

FOLDER = Path(os.environ.get("COURSE_TRACES") or Path(__file__).parents[2] / "shared" / "traces")
FILES = {
    "azure_code_2023": "AzureLLMInferenceTrace_code_2023.csv",
    "azure_conv_2023": "AzureLLMInferenceTrace_conv_2023.csv",
    "mooncake_conversation": "mooncake_conversation_trace.jsonl",
    "mooncake_synthetic": "mooncake_synthetic_trace.jsonl",
    "arxiv_summarization": "vidur_arxiv_summarization.csv",
    "sharegpt_8k_filtered": "sharegpt_8k_filtered.csv",
}
_READ = {}


def raw_trace(name):
    """The requests of a raw trace; skips the test, with the reason, when the file is absent."""
    path = FOLDER / FILES[name]
    if not path.exists():
        pytest.skip(f"the raw trace {path} is not here (set COURSE_TRACES to its folder)")
    if name not in _READ:
        _READ[name] = read_trace(path)
    return _READ[name]

"""The exercises, one file a lab: words, hints and probes. Right and wrong answers: ``answers``."""

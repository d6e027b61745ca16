"""headrace: train LLM agents from the events they emit in production."""

__version__ = "0.1.0"

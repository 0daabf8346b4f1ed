"""Explanations and runs as files that can be sent to anybody: HTML, PNG, JSON, text."""

"""Explanations and runs as files to share: HTML, PNG, JSON, text."""

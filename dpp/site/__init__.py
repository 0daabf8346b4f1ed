"""Pages for the project's web site: a trained network that runs in the visitor's browser."""

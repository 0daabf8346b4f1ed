"""The one exception for mistakes that the person at the keyboard can put right."""


class UserError(Exception):
    """Says what was wrong, where, and what to do. The command line prints it and exits with 2."""

"""What people take away of a run: every place as a table, a package with a card."""

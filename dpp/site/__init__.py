"""The site: the notebooks as a book, the documentation, the results and a demo; `make site`."""

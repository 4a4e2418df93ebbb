"""The figures of the page, drawn by matplotlib. A section chooses the rows of each."""

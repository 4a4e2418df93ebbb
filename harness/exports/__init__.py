"""Formats that other tools read: one file per format, from results or a comparison to text.

No module here prints or writes a file; the caller decides where the text goes.
"""

"""Formats that other tools read: from results or a comparison to text.

No module here prints or writes a file; the caller decides where the text goes.
"""

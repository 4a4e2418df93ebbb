"""What other tools read: one file a format, each from plain values to text. Nothing here decides.

No module here prints or writes a file; whoever asks says where the text goes.
"""

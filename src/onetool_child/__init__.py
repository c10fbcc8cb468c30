"""Code that runs outside the server process: cells, workers and the zygote.

It uses only the standard library.
"""

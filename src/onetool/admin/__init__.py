"""The functions for what people can do, one for each thing, which REST and the command line share.

A function of this package with the decorator `action` takes the application, the person and the input, and returns a
model. `action` says what the person needs, so that there is one rule for who may do what, and it names the REST route.
A command parses its arguments, calls the function and prints the model. Functions raise `AdminError` with a code; REST
has a status for each code, and the command line prints the message.
"""

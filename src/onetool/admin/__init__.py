"""What people can ask about a running application, for the command line and REST."""

"""The command line: parser, commands and configuration file."""

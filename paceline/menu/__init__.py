"""The syntax of members on the command line, and menus that turn their words into objects."""

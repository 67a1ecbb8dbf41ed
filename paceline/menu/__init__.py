"""The syntax of members on the command line, and menus that turn such text into objects."""

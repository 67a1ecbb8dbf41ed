"""Reading files with the line of every error, and removing secrets from what is written."""

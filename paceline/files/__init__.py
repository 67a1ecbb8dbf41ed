"""Read files with errors that name the line, and remove secrets from what is written."""

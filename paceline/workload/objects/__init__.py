"""Objects of an S3 store: addresses, credentials, reading with retries, and a server to try it on one machine."""

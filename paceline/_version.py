"""The version, alone in its file so that packaging reads it without importing anything."""

VERSION = "0.1.0"

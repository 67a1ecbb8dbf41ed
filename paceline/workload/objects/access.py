"""Access to an object store: endpoint, region and credentials, from the variables and files that S3 tools share.

    AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL      a server other than Amazon's; or the option endpoint=
    AWS_REGION, AWS_DEFAULT_REGION             us-east-1 unless set
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY   and AWS_SESSION_TOKEN
    ~/.aws/credentials                         AWS_PROFILE or default in it; AWS_SHARED_CREDENTIALS_FILE names another
    AWS_SKIP_SIGNATURE=true                    public buckets

Roles of machines and containers are used only if one of their variables is set (ROLES). Otherwise no other host is
asked for credentials. No message contains credentials.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from paceline.errors import MissingPackage, WrongCommand

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
ROLES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_METADATA_ENDPOINT",
)
KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


def endpoint_of(environ: Mapping[str, str], option: str = "") -> str:
    """Return the address of the server; empty means Amazon's. Raises if it is no http address."""
    text = option or next((environ[name] for name in ENDPOINTS if environ.get(name)), "")
    parts = urlsplit(text)
    if text and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise WrongCommand("the endpoint of the object store", why="it is no address", remedy="http://HOST:PORT")
    if parts.username or parts.password:
        raise WrongCommand(
            f"the endpoint {parts.hostname}", why="it holds a password", remedy="AWS_ACCESS_KEY_ID and its secret"
        )
    return text


def credentials_of(environ: Mapping[str, str], bucket: str) -> dict[str, Any]:
    """Return credentials, or an empty mapping if a role provides them. Raises if there are none."""
    if environ.get("AWS_SKIP_SIGNATURE", "").lower() in ("1", "true", "yes"):
        return {"skip_signature": True}
    if environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
        return {name.removeprefix("aws_"): environ[name.upper()] for name in KEYS if environ.get(name.upper())}
    if any(environ.get(name) for name in ROLES):
        return {}
    home = Path(environ.get("HOME", "~")).expanduser()
    path = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials")
    profile = environ.get("AWS_PROFILE") or "default"
    known = _section(path, profile)
    if not all(known.get(name) for name in KEYS[:2]):
        raise WrongCommand(
            f"s3://{bucket}",
            why=f"there are no credentials: AWS_ACCESS_KEY_ID is not set, and {path} has none for {profile}",
            remedy="export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; AWS_SKIP_SIGNATURE=true for a public bucket",
        )
    return {name.removeprefix("aws_"): known[name] for name in KEYS if name in known}


def _section(path: Path, profile: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        raise WrongCommand(
            f"{path}", why="it is no file of credentials", remedy="[default] and aws_access_key_id = ..."
        ) from None
    return dict(parser[profile]) if parser.has_section(profile) else {}


def open_store(bucket: str, environ: Mapping[str, str], endpoint: str) -> Any:
    """Return the store of a bucket, without its own retries."""
    try:
        from obstore.store import S3Store
    except ImportError:
        raise MissingPackage(f"s3://{bucket}", package="obstore", extra="s3") from None

    settings: dict[str, Any] = credentials_of(environ, bucket)
    if endpoint:
        settings["endpoint"] = endpoint
    settings["region"] = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return S3Store(
        bucket,
        **settings,
        client_options={"allow_http": endpoint.startswith("http://"), "timeout": "60s", "connect_timeout": "5s"},
        retry_config={"max_retries": 0},
    )

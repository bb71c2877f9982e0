"""The versions of installed packages."""

from importlib.metadata import PackageNotFoundError, version


def version_of(package: str) -> str:
    """Return the version of a package; an empty string where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""

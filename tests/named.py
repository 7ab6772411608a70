"""Names as the docs write them, `module.attribute.attribute`: an error where the code lacks one."""

from pkgutil import resolve_name as assert_exists  # noqa: F401

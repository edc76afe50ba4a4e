"""Setuptools' build backend, with a whole sdist: the tests, CI and the change log travel with the package.

Setuptools reads what an sdist holds beyond the package from MANIFEST.in at the top level only; here that file
lies beside this one. Wheels are setuptools' own.
"""

from setuptools.build_meta import *  # noqa: F403 (all hooks but the one below)
from setuptools.build_meta import build_sdist as _build_sdist
from setuptools.command.egg_info import manifest_maker

MANIFEST = ".ci/MANIFEST.in"  # from the top level, where PEP 517 has hooks run


def build_sdist(sdist_directory, config_settings=None):
    """Build the sdist with what MANIFEST.in names; hook of PEP 517."""
    usual = manifest_maker.template
    manifest_maker.template = MANIFEST
    try:
        return _build_sdist(sdist_directory, config_settings)
    finally:
        manifest_maker.template = usual

# SPDX-License-Identifier: BSD-3-Clause
"""userblk: what it costs to move a block device or file system into user space."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
__version__ = "0.2.0"

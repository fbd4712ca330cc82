# SPDX-License-Identifier: BSD-3-Clause
"""Plan a campaign, bring systems up, run workloads on them, sample and store."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)

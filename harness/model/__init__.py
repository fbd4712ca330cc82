# SPDX-License-Identifier: BSD-3-Clause
"""What is asked for: the configuration files, and the plan made of them."""

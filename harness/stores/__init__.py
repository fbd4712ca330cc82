# SPDX-License-Identifier: BSD-3-Clause
"""Object stores, and the block devices over them."""

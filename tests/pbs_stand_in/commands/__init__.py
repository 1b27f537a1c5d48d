# SPDX-License-Identifier: MIT OR Apache-2.0
"""PBS's commands: each asks the server, and prints and ends as the one of PBS does."""

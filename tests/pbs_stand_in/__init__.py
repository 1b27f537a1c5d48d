# SPDX-License-Identifier: MIT OR Apache-2.0
"""A stand-in for PBS: server, moms and commands, without a scheduler, for labs on machines without an OpenPBS. README.md says what it is."""

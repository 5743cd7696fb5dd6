# SPDX-License-Identifier: Apache-2.0
"""Capstan's version: the name of what //:dist makes."""

CAPSTAN_VERSION = "0.1.0"

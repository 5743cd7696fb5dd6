# SPDX-License-Identifier: Apache-2.0
exec bash tests/gpu/correctness.sh

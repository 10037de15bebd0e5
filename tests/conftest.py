"""What holds for every test: how hypothesis runs."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadline: on a busy machine an example takes as long as it takes, and a time limit would make it a timed test.
settings.register_profile("dev", deadline=None)
# The same examples every time, so that a red run says something about the change; found falsifications print a blob
# to replay them with `@reproduce_failure`.
settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

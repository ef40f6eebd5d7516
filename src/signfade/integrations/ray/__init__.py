"""Many runs on a Ray cluster."""

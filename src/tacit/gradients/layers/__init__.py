"""Rules for operations: how their parameters' gradients are captured, and where examples lie afterwards."""

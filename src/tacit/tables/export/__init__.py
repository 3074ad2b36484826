"""Models of tables for programs without Tacit: a scikit-learn estimator, or a graph for ONNX."""

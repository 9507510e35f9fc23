"""One finished result to one format each. A reporter computes nothing: what it shows is in the model."""

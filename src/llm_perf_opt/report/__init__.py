"""One finished result to one format each. A renderer computes nothing: what it shows is in the model."""

"""The Hydra applications: they turn a configuration into a request and hand it on."""

"""Public names that scripts of users rely on; the code behind them is in `nsight`."""

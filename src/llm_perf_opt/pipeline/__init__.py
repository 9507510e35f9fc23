"""The whole job in order: capture, read, analyse, report. Both front ends (cli, runners) call this."""

"""What can be done about a cause, one file a rule: what it is, why it costs, how it is seen, what to type, what it gains.

`registry.py` lists them; `docs/rules.md` is made from them.
"""

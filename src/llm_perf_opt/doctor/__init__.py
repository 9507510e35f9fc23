"""`llm-perf doctor`: facts gathered from the machine, and pure functions that judge them.

`facts` says what is known, `gather` and `trial` find it out, the other modules turn it into checks, and
`examine` puts them together. The same facts always give the same checks, so a machine that was seen once
can be judged again anywhere.
"""

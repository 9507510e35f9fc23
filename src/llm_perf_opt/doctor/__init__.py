"""`llm-perf doctor`: facts gathered from the machine, and pure functions that evaluate them.

`machine_facts` is what is known, `gather`, `python_packages`, `system_facts` and `trial` find it out, the other modules turn it into checks, and
`examine` puts them together. The same facts always give the same checks, so a machine that was seen once
can be evaluated again anywhere.
"""

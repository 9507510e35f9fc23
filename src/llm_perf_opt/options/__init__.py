"""Every option once: its flag, its configuration key, what it may be, its default, its help and where it goes.

The command line, the Hydra configuration, validation, what a resumed run takes over from its manifest, advice in
either spelling and the page about configuration are all made from the declarations here. It knows nothing of the
rest of the package; `request.py` puts values in the places that options name.
"""

from llm_perf_opt.options.declared import KEYS, OPTIONS, checked_values, default_config, flatten, options_of
from llm_perf_opt.options.option import Option
from llm_perf_opt.options.wording import in_keys

__all__ = ["KEYS", "OPTIONS", "Option", "checked_values", "default_config", "flatten", "in_keys", "options_of"]

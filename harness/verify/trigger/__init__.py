"""Name the trigger of a mistake: the conditions that every failed case has and no other case."""

from harness.verify.trigger.observations import Observation, facts_of
from harness.verify.trigger.search import find_trigger, trigger_text, triggers_of

__all__ = ["Observation", "facts_of", "find_trigger", "trigger_text", "triggers_of"]

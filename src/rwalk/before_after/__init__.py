"""A model before and after training: which skills were lost, and the way back."""

from __future__ import annotations

from rwalk.before_after.skills import Skills, SkillsReport

__all__ = ["Skills", "SkillsReport"]

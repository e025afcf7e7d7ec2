"""What rwalk is for, shown in under a minute: the study behind `rwalk run` without options, and how it is told."""

"""The demonstration behind `rwalk run` without options: its study, table, picture and sentences."""

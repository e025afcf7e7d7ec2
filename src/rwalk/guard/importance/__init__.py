"""The importance of a trained model: its Fisher."""

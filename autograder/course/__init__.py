"""What an instructor writes: lessons, exercises, figures, a sample class."""

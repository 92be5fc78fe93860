"""What several test folders share: real programs, started and stopped so that nothing stays behind."""

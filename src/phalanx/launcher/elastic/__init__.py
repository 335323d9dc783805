"""torchelastic's way to launch from Python: ``LaunchConfig``, ``elastic_launch``, ``launch_agent``."""

"""The report on a job: as text and as data (pure), and the files that an agent leaves behind."""

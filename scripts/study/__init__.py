"""Run and compare the arms of a study: `python -m scripts.study`, which is __main__.py.

plan.py         the plan: arms, tasks and seeds, and the runs that follow from them
dry_run.py      what the runs will cost, before they start
probe.py        the untrained model's dead groups, and the time of a run
runner.py       runs as processes: started, stopped, resumed
runs.py         reads the directories of runs
scores.py       tables of scores: gains, speed-ups, intervals
categories.py   what was chosen and learned, by a column of the data
findings.py     sentences and tables
paper.py        accuracies beside the paper's
figures.py      figures
page.py         reports as Markdown and HTML
results.py      the report of a study, from all of these

`python -m scripts.report` and `python -m scripts.plot` show single runs by the same parts.
"""

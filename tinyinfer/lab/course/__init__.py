"""The course's measurements, each a command: `tinyinfer lab NAME`.

Each file here holds one: a function that takes a `Setting` (which model, how much time) and gives a `Finding` (tables
with what the course saw beside them, drawings, and two or three sentences on what to see). They call the engine's own
parts; nothing is implemented a second time, and no figure is written down but the course's.

finding.py   what an experiment gives
setting.py   what it is given: the model, loaded in the ways that are asked, and whether there is time
catalogue.py the experiments in reading order
drawing.py   drawings, by matplotlib
report.py    all of them as one page
"""

USUAL_MODEL = "qwen2.5-coder-0.5b-instruct"  # whose shape is that of the course's

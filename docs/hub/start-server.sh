#!/bin/sh
# Starts one learner's server, as that learner. Their folder gets the course's notebooks: exercises
# that they worked in stay (a new release is put beside them), lessons that are there stay too.
set -eu
umask 077 # what learners write is theirs
mine="$HOME/paged-attention"
mkdir -p "$mine/notebooks"
chmod 700 "$mine"
"$COURSE_HUB_PYTHON" -m course.practice.keep "$COURSE/exercises" "$mine/exercises" >&2 || true
for lesson in "$COURSE"/notebooks/[0-9][0-9]_*.ipynb; do
  [ -e "$mine/notebooks/$(basename "$lesson")" ] || cp "$lesson" "$mine/notebooks/"
done
mkdir -p "$mine/solutions"
for solution in "$COURSE"/solutions/[0-9][0-9]_*.ipynb; do # place holders, until you replace them
  [ -e "$solution" ] && cp "$solution" "$mine/solutions/"
done
cd "$mine"
exec "$COURSE_HUB_PYTHON" -m jupyterhub.singleuser "$@"

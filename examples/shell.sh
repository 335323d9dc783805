#!/bin/sh
# A plain command as a worker: each rank counts the words of its share of the pages.
#
#   phalanx run --nproc-per-node 3 --no-python examples/shell.sh docs/*.md
#
# The launcher tells RANK and WORLD_SIZE in the environment, whatever the program is written in.
set -eu
number=0
words=0
for page in "$@"; do
    if [ $((number % WORLD_SIZE)) -eq "$RANK" ]; then
        words=$((words + $(wc -w <"$page")))
    fi
    number=$((number + 1))
done
echo "rank $RANK of $WORLD_SIZE: $words words"

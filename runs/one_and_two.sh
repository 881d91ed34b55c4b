#!/usr/bin/env bash
# shipped:minilm on a test file, and its 25 best re-ranked by shipped:rerank.
#   THREADS=2 bash runs/one_and_two.sh NAME WORK TEST [OPTION OF polyrank evaluate ...]
# Stores NAME/one and NAME/two with runs/record.py, unless NAME/two is stored. Writes the scores to the folder WORK.
set -euo pipefail
record=$(dirname "$0")/record.py name=$1 work=$2 test=$3
shift 3
python "$record" --has "$name/two" && exit
scores=$work/${name##*/}
judge() { # one or two, MODEL [OPTION ...]
  polyrank evaluate "$2" "$test" --threads "${THREADS:-2}" --json --overwrite --scores "$scores-$1.scores.jsonl" \
    "${@:3}" >"$scores-$1.json"
  python "$record" "$name/$1" "$scores-$1.json"
  echo "$name/$1 $(cut -c1-200 "$scores-$1.json")"
}
judge one shipped:minilm "$@"
judge two shipped:rerank "$@" --against "$scores-one.scores.jsonl"

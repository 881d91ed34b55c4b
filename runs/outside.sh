#!/usr/bin/env bash
# shipped:minilm, and its 25 best re-ranked by shipped:rerank, on public corpora on which nothing was trained or chosen.
#   CORPORA=folder THREADS=2 bash runs/outside.sh
# CORPORA holds clones of the repositories that runs/outside.py names. A stopped run resumes when you start it again. Stores
# outside/SET/one and two with runs/record.py.
set -euo pipefail
cd "$(dirname "$0")/.."
CORPORA=$(realpath "$CORPORA")
THREADS=${THREADS:-2}
work=$PWD/runs/work/outside
mkdir -p "$work"
[[ -e $work/questions.jsonl ]] || python runs/outside.py "$CORPORA" "$work"

for set in topical-chat meld coffee questions; do
  judge() { # NAME [OPTION ...]
    python runs/record.py --has "outside/$set/$1" && return
    polyrank evaluate shipped:minilm "$work/$set.jsonl" --threads "$THREADS" --json --overwrite \
      --scores "$work/$set-$1.scores.jsonl" "${@:2}" >"$work/$set-$1.json"
    python runs/record.py "outside/$set/$1" "$work/$set-$1.json"
    echo "$set $1 $(cut -c1-200 "$work/$set-$1.json")"
  }
  judge one
  judge two --rerank shipped:rerank --n-retrieved 25 --against "$work/$set-one.scores.jsonl"
done

#!/usr/bin/env bash
# shipped:minilm, and its 25 best re-ranked by shipped:rerank, on public corpora on which nothing was trained or chosen.
#   CORPORA=folder THREADS=2 bash runs/outside.sh
# CORPORA holds clones of the repositories that runs/outside.py names. A stopped run resumes when you start it again.
# Stores outside/SET/one and two, see runs/one_and_two.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
CORPORA=$(realpath "$CORPORA")
THREADS=${THREADS:-2}
work=$PWD/runs/work/outside
mkdir -p "$work"
python runs/outside.py "$CORPORA" "$work"

for set in topical-chat meld coffee questions tickets taxis films support counsel covid; do
  pool=()
  [[ -e $work/$set.pool.jsonl ]] && pool=(--pool "$work/$set.pool.jsonl")
  THREADS=$THREADS bash runs/one_and_two.sh "outside/$set" "$work" "$work/$set.jsonl" "${pool[@]}"
done

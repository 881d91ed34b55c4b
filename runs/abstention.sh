#!/usr/bin/env bash
# "No good answer": chooses a threshold on the development part of a pool and evaluates it on the test part. In both, the right
# answers of a fifth of the contexts are removed.
#   DATA=folder SET=medquad INDEX=runs/work/medquad/index/bi PRECISION=0.6 bash runs/abstention.sh
# The index comes from runs/two_stage.sh. Stores SET/abstention with runs/record.py, and draws runs/results/SET-abstention.svg.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=$(realpath "${DATA:-../shared/data}")
SET=${SET:-medquad}
INDEX=${INDEX:-runs/work/$SET/index/bi}
PRECISION=${PRECISION:-0.6}

polyrank pipeline create "$INDEX" -o "runs/work/$SET/support" --valid "$DATA/$SET/dev.pool.jsonl.gz" --precision "$PRECISION" --overwrite
polyrank pipeline test "runs/work/$SET/support" "$DATA/$SET/test.pool.jsonl.gz" --plot "runs/results/$SET-abstention.svg" \
  --overwrite --json | python runs/record.py "$SET/abstention"
python runs/record.py --show "$SET/abstention"

#!/usr/bin/env bash
# "No good answer": chooses a threshold on the development part of a pool and evaluates it on the test part. In both, the right
# answers of a fifth of the contexts are removed.
#   DATA=folder SET=medquad MODEL=runs/work/medquad/bi/model PRECISION=0.6 bash runs/abstention.sh
# The model comes from runs/two_stage.sh. Stores SET/abstention with runs/record.py, and draws runs/results/SET-abstention.svg.
set -euo pipefail
cd "$(dirname "$0")/.."
DATA=$(realpath "${DATA:-../shared/data}")
SET=${SET:-medquad}

python runs/abstention.py "${MODEL:-runs/work/$SET/bi/model}" "$DATA/$SET/answers.jsonl.gz" "$DATA/$SET/dev.pool.jsonl.gz" \
  "$DATA/$SET/test.pool.jsonl.gz" --precision "${PRECISION:-0.6}" --plot "runs/results/$SET-abstention.svg" \
  | python runs/record.py "$SET/abstention"
python runs/record.py --show "$SET/abstention"

#!/usr/bin/env bash
# polyrank tune on what no model was trained for: shipped:minilm, with every term that needs no training, and without re-rankers.
#   DATA=folder CORPORA=folder THREADS=2 LIMIT=lists SETS="star sgd ..." bash runs/tune.sh
# Weights are chosen on 1,000 lists of the development part; mutual, whose test answers are withheld: of the training part. Of the
# corpora of runs/outside.py, which are lists only, half of the dialogues; they have no training part, so no counts.
# LIMIT: of test lists; empty: all. A stopped run resumes when you start it again. CORPORA: see runs/outside.py.
# KINDS: "searched" is without re-rankers, "best" with all terms.
# Stores tune/SET/KIND-fit (what tune prints) and tune/SET/KIND (the encoder and the ranker on the test lists) with runs/record.py.
set -euo pipefail
cd "$(dirname "$0")/.."
. runs/corpora.sh
DATA=$(realpath "${DATA:-../shared/data}")
THREADS=${THREADS:-2}
SETS=${SETS:-star sgd convai2-valid ubuntu-irc self-dialogue mutual meld coffee support}
KINDS=${KINDS:-searched best}
LIMIT=${LIMIT:-}

for kind in $KINDS; do
for set in $SETS; do
  python runs/record.py --has "tune/$set/$kind" && continue
  work=$PWD/runs/work/tune/$set
  mkdir -p "$work"
  dialogues=()
  case $set in
    meld | coffee | support)
      python runs/outside.py "$(realpath "$CORPORA")" "$PWD/runs/work/outside" "$set"
      valid=$work/valid.jsonl test=$work/test.jsonl
      python - "$PWD/runs/work/outside/$set.jsonl" "$valid" "$test" <<'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
names = list(dict.fromkeys(row["id"].rpartition("#")[0] or row["id"] for row in rows))
half = set(names[::2])
for path, kept in ((sys.argv[2], True), (sys.argv[3], False)):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows if ((row["id"].rpartition("#")[0] or row["id"]) in half) is kept)
PY
      ;;
    mutual)
      valid=$work/valid.jsonl test=$DATA/mutual/dev.jsonl.gz
      zcat "$DATA/mutual/train.jsonl.gz" | tail -n 888 >"$valid"
      zcat "$DATA/mutual/train.jsonl.gz" | head -n -888 >"$work/train.jsonl"
      dialogues=(--dialogues "$work/train.jsonl") ;;
    *)
      training_data "$set"
      valid=$DATA/$set/dev.jsonl.gz test=$DATA/$set/test.jsonl.gz dialogues=(--dialogues "${data[1]#data.train=}") ;;
  esac
  [[ $set != self-dialogue ]] || dialogues+=(--speaker '*')
  without=()
  [[ $kind != searched ]] || without=(--without cross)
  polyrank tune shipped:minilm --valid "$valid" "${dialogues[@]}" "${without[@]}" -o "$work/$kind" --overwrite --threads "$THREADS" \
    --json >"$work/$kind-fit.json"
  models=(shipped:minilm)
  [[ ! -e $work/$kind/ranker.json ]] || models+=("$work/$kind")
  polyrank evaluate "${models[@]}" "$test" ${LIMIT:+--limit "$LIMIT"} --threads "$THREADS" --json >"$work/$kind.json"
  python runs/record.py "tune/$set/$kind-fit" "$work/$kind-fit.json"
  python runs/record.py "tune/$set/$kind" "$work/$kind.json"
done
done

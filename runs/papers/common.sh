# What the scripts of this folder share; they source it.
# SMALL=1: two steps on few examples, from the embedded backbone: each script ends within minutes, and its figures mean nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
DATA=$(realpath -m "${DATA:-../shared/data}")
SMALL=${SMALL:-}
BACKBONE=${BACKBONE:-$([[ $SMALL ]] && echo embedded || echo hf:google-bert/bert-base-uncased)}
LIMIT=${LIMIT:-${SMALL:+4}}
EXTRA=${EXTRA:-}
WORK=$PWD/runs/work/papers
SETS=() # of every training
[[ $SMALL ]] && SETS=(--set train.max_steps=2 --set train.batch_size=8 --set data.max_train=1000 --set data.max_valid=4)

prepare() { # TASK FORMAT ENDING FOLDER [OPTION ...]: its files, the published ones or stand-ins, imported into a folder of their data
  local data=$WORK/data/$1 out=$WORK/data/$4 format=$2 ending=$3 part
  [[ -e $data/train.$ending ]] || python runs/papers/write_data.py "$DATA" "$WORK/data" "$1"
  mkdir -p "$out"
  for part in train valid test; do
    local options=() option
    for option in "${@:5}"; do # that more turns are responses is for training
      [[ $part != train && $option == --every-turn ]] || options+=("$option")
    done
    [[ -e $data/$part.answers.tsv ]] && options+=(--answers "$data/$part.answers.tsv")
    [[ -e $out/$part.jsonl ]] || polyrank import "$format" "$data/$part.$ending" -o "$out/$part.jsonl" "${options[@]}"
  done
}

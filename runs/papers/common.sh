# Shared by the scripts of this folder, which source it.
# SMALL=1: two steps on few examples, from the embedded backbone. Each script ends within minutes; its figures have no meaning.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
DATA=$(realpath -m "${DATA:-../shared/data}")
SMALL=${SMALL:-}
BACKBONE=${BACKBONE:-$([[ $SMALL ]] && echo embedded || echo hf:google-bert/bert-base-uncased)}
LIMIT=${LIMIT:-${SMALL:+4}}
EXTRA=${EXTRA:-}
WORK=$PWD/runs/work/papers
SETS=() # options for every training
[[ $SMALL ]] && SETS=(--set train.max_steps=2 --set train.batch_size=8 --set data.max_train=1000 --set data.max_valid=4)

prepare() { # TASK FORMAT ENDING FOLDER [OPTION ...]: imports the task's files, published ones or substitutes, into FOLDER
  local data=$WORK/data/$1 out=$WORK/data/$4 format=$2 ending=$3 part
  [[ -e $data/train.$ending ]] || python runs/papers/write_data.py "$DATA" "$WORK/data" "$1"
  mkdir -p "$out"
  for part in train valid test; do
    local options=() option
    for option in "${@:5}"; do # --every-turn applies to the training part only
      [[ $part != train && $option == --every-turn ]] || options+=("$option")
    done
    [[ -e $data/$part.answers.tsv ]] && options+=(--answers "$data/$part.answers.tsv")
    [[ -e $out/$part.jsonl ]] || polyrank import "$format" "$data/$part.$ending" -o "$out/$part.jsonl" "${options[@]}"
  done
}

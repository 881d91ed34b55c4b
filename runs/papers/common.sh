# Shared by the scripts of this folder, which source it.
# SMALL=1: two steps on few examples, from the embedded backbone, in a separate folder. Each script ends within ten minutes on two
# cores; its figures have no meaning.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
DATA=$(realpath -m "${DATA:-../shared/data}")
SMALL=${SMALL:-}
BACKBONE=${BACKBONE:-$([[ $SMALL ]] && echo embedded || echo hf:google-bert/bert-base-uncased)}
LIMIT=${LIMIT:-${SMALL:+4}}
EXTRA=${EXTRA:-}
FILES=$PWD/runs/work/papers/data
WORK=$PWD/runs/work/papers${SMALL:+/small}
SETS=() # options for every training
[[ $SMALL ]] && SETS=(--set train.max_steps=2 --set train.batch_size=8 --set data.max_train=1000 --set data.max_valid=4
  --set text.max_context_tokens=40 --set text.max_candidate_tokens=20)

prepare() { # TASK FORMAT ENDING FOLDER [OPTION ...]: imports the task's files, published ones or substitutes, into FOLDER
  local data=$FILES/$1 out=$FILES/$4 format=$2 ending=$3 part
  [[ -e $data/train.$ending ]] || python runs/papers/write_data.py "$DATA" "$FILES" "$1"
  mkdir -p "$out"
  for part in train valid test; do
    local options=() option
    for option in "${@:5}"; do # --every-turn applies to the training part only
      [[ $part != train && $option == --every-turn ]] || options+=("$option")
    done
    [[ -e $data/$part.answers.tsv ]] && options+=(--answers "$data/$part.answers.tsv")
    [[ -e $out/$part.jsonl ]] || polyrank import corpus "$format" "$data/$part.$ending" -o "$out/$part.jsonl" "${options[@]}"
  done
}

evaluate() { # FILE MODEL DATA [OPTION ...]: writes the figures as JSON into FILE of the work folder
  mkdir -p "$(dirname "$WORK/$1")"
  python runs/papers/evaluate.py "${@:2}" ${LIMIT:+--limit "$LIMIT"} >"$WORK/$1.part"
  mv "$WORK/$1.part" "$WORK/$1"
  echo "$1" >&2
}

speed() { # FILE DEVICE [OPTION ...]: milliseconds of networks of BERT-base's size, or of the backbone if SMALL
  mkdir -p "$(dirname "$WORK/$1")"
  python runs/timing/respond.py --device "$2" --backbone "$([[ $SMALL ]] && echo "$BACKBONE" || echo base)" ${SMALL:+--repeats 1} \
    "${@:3}" >"$WORK/$1"
}

show() { # NAME ...: prints tables and figures of published.toml
  python runs/papers/published.py "$@" --work "$WORK"
  [[ ! $SMALL ]] || printf '\nSMALL=1: polyrank'\''s figures have no meaning.\n'
}

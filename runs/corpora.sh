# Sourced by the scripts of this folder: the training pairs of each corpus in DATA.

training_data() { # SET: sets `data` to the options of polyrank train
  case $1 in
    star | sgd) data=(--set "data.train=$DATA/$1/train.dialogues.jsonl.gz" --set data.speaker=agent) ;;
    self-dialogue) data=(--set "data.train=$DATA/$1/train.dialogues.jsonl.gz" --set 'data.speaker=*') ;;
    *) data=(--set "data.train=$DATA/$1/train.jsonl.gz") ;;
  esac
}

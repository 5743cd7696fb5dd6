# trainer completion bash >> ~/.bashrc
# trainer completion zsh >> ~/.zshrc, by zsh's bashcompinit
if [ -n "$ZSH_VERSION" ]; then autoload -Uz bashcompinit && bashcompinit; fi
_trainer() {
  local line="${COMP_LINE:0:$COMP_POINT}" word before flags words w it
  word="${line##* }"  # at the cursor
  before="${line% *}"
  before="${before##* }"
  w="$word"  # without the flag in --set=train.max_steps
  case "$word" in
    --*=*) before="${word%%=*}" w="${word#*=}" ;;
  esac
  flags="@FLAGS@"
  for it in $line; do
    case "$it" in
@CASES@
    esac
  done
  case "$before" in
    --set) words="@SETS@" ;;
    --config) words= ;;
    trainer | */trainer) words="@COMMANDS@ $flags" ;;
    completion) words="bash zsh fish" ;;
    *) words="$flags" ;;
  esac
  # -W expands its words as the shell would: names of files are none of them.
  COMPREPLY=($(compgen -W "$words" -- "$w"))
  if [ "$before" = --config ]; then
    COMPREPLY+=($(cd configs 2>/dev/null && compgen -f -- "$w"))
  fi
  if [ "$before" != --set ]; then COMPREPLY+=($(compgen -f -- "$w")); fi
  if [ -n "$ZSH_VERSION" ]; then
    if [ "$w" != "$word" ]; then COMPREPLY=("${COMPREPLY[@]/#/$before=}"); fi
  elif [ "${w%=*}" != "$w" ]; then
    # To bash what follows the last "=" is a word of its own.
    COMPREPLY=("${COMPREPLY[@]#"${w%=*}="}")
  fi
}
complete -o nospace -o filenames -F _trainer trainer

#compdef gputopo
# Completes gputopo in zsh; written by: gputopo completion zsh
_gputopo() {
    local -a found
    found=("${(@f)$(_GPUTOPO_COMPLETE="${(j: :)words[1,CURRENT]}" gputopo 2>/dev/null)}")
    if [[ -n $found[1] ]]; then compadd -- $found; else _files; fi
}
if ((!$+functions[compdef])); then
    autoload -Uz compinit
    compinit
fi
compdef _gputopo gputopo

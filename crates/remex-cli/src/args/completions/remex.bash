# Completions of remex for bash; `remex complete` knows what may follow.
_remex() {
    local candidate
    COMPREPLY=()
    # The whole line goes there: bash takes `ENV:path` and `--on=ENV` for several words.
    while IFS= read -r candidate; do
        COMPREPLY+=("$candidate")
    done < <("$1" complete bash --word-breaks "$COMP_WORDBREAKS" -- "${COMP_LINE:0:COMP_POINT}" 2> /dev/null < /dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[/:=] ]]; then
        compopt -o nospace 2> /dev/null
    fi
}
complete -F _remex remex

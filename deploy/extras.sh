#!/bin/sh
# Writes the manual pages and shell completions of a binary. Usage: extras.sh BINARY DIRECTORY
set -eu
binary=$1 directory=$2
mkdir -p "$directory/man" "$directory/completions"
"$binary" man "$directory/man"
"$binary" completions bash > "$directory/completions/hushflow.bash"
"$binary" completions zsh > "$directory/completions/_hushflow"
"$binary" completions fish > "$directory/completions/hushflow.fish"

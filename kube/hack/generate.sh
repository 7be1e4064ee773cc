#!/bin/bash
# Makes the deep copies of the resources, and their CustomResourceDefinitions in deploy/crds.
set -euo pipefail
cd "$(dirname "$0")/.."
go tool -modfile=../tools/controller-gen/go.mod controller-gen \
	object paths=./v1alpha1/... \
	crd output:crd:dir=../deploy/crds

// Command tsugiki-runtime is an OCI runtime for container engines. It registers containers
// with tsugiki agent and calls runc, or another runtime, to make them.
package main

import (
	"os"

	"github.com/tsugiki/tsugiki/oci"
)

func main() { os.Exit(oci.Main(os.Args[1:])) }

// Command tsugiki-runtime is an OCI runtime for container engines: it brings
// containers to tsugiki agent and has runc, or another runtime, make them.
package main

import (
	"os"

	"github.com/tsugiki/tsugiki/oci"
)

func main() { os.Exit(oci.Main(os.Args[1:])) }

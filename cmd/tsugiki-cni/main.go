// Command tsugiki-cni is a CNI plugin that attaches pods to a network, and has packets between pods
// of the node go directly.
package main

import (
	"os"

	"github.com/tsugiki/tsugiki/forward/cni"
)

func main() { os.Exit(cni.Main()) }

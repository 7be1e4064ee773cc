// Command tsugiki-launch is the child in which launch.Start executes a program. It is a program of
// its own because it starts in a third of the time that tsugiki takes.
//
// It needs what package launch needs of a child.
package main

import (
	"fmt"
	"os"

	"github.com/tsugiki/tsugiki/internal/launch"
)

func main() {
	if !launch.IsChild() {
		fmt.Fprintln(os.Stderr, "tsugiki-launch: tsugiki run starts this program; it has no use of its own")
		os.Exit(2)
	}
	launch.Child()
}

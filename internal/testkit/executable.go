package testkit

import (
	"os"
	"syscall"
)

// WriteExecutable writes a file as os.WriteFile does, that can be executed from then on. The kernel
// executes no file that is open for writing (ETXTBSY), as it would be in a program that another
// goroutine starts meanwhile, until that has closed its copies.
func WriteExecutable(path string, content []byte, mode os.FileMode) error {
	syscall.ForkLock.RLock() // no process is started while it is held
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, content, mode)
}
